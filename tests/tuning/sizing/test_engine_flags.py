from __future__ import annotations

from hicachectl.tuning.sizing.engine_flags import engine_flags, pool_bytes

GIB = 1 << 30


def values(**pool: object) -> dict[tuple[str, str], str]:
    return {(flag.engine, flag.flag): flag.value for flag in engine_flags(pool_bytes(640, GIB, **pool))}  # type: ignore[arg-type]


def test_the_same_pool_is_another_number_in_every_engine() -> None:
    found = values(n_ranks=8)
    assert found["vLLM", "--kv-offloading-size"] == "640"
    assert found["vLLM simple", "cpu_bytes_to_use"] == str(640 * GIB)
    assert found["vLLM simple", "cpu_bytes_to_use_per_rank"] == str(80 * GIB)
    assert found["SGLang", "--hicache-size"] == "86"  # 80 GiB are 85.9 GB
    assert found["mini-sglang", "--hicache-size-gb"] == "80"
    assert found["LMCache server", "--l1-size-gb"] == "687.2"
    assert found["Mooncake", "global_segment_size"] == str(80 * GIB)
    assert found["Mooncake in SGLang", "global_segment_size"] == str(640 * GIB)


def test_a_latent_that_every_rank_holds_costs_as_many_times_unless_one_pool_is_shared() -> None:
    apart, shared = values(n_ranks=4, same_on_every_rank=True), values(n_ranks=4, same_on_every_rank=True, shared=True)
    assert apart["vLLM", "--kv-offloading-size"] == "2560"
    assert shared["vLLM", "--kv-offloading-size"] == "640"
    assert apart["SGLang", "--hicache-size"] == shared["SGLang", "--hicache-size"] == "688"


def test_values_are_rounded_up_so_that_the_pages_fit() -> None:
    (flag,) = (f for f in engine_flags(pool_bytes(1, GIB + 1)) if f.flag == "--kv-offloading-size")
    assert flag.value == "1.01"

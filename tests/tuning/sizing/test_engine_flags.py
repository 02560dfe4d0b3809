from __future__ import annotations

import pytest

from hicachectl.tuning.sizing.engine_flags import engine_flags, pool_bytes

GIB = 1 << 30
UNITS = {"GiB": GIB, "GB": 10**9, "GB (1e9)": 10**9, "bytes": 1}


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
    assert apart["SGLang", "--hicache-size"] == "688"
    assert apart["Mooncake", "global_segment_size"] == str(640 * GIB)
    assert shared["Mooncake", "global_segment_size"] == str(160 * GIB)
    assert shared["Mooncake in SGLang", "global_segment_size"] == str(640 * GIB)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("same_on_every_rank", [False, True])
def test_no_flag_makes_the_ranks_take_more_than_the_host_was_said_to_have(
    same_on_every_rank: bool, shared: bool
) -> None:
    n_ranks = 8
    pool = pool_bytes(7 * n_ranks, GIB + 1, n_ranks=n_ranks, same_on_every_rank=same_on_every_rank, shared=shared)
    for flag in engine_flags(pool):
        if flag.value is None:
            continue
        takers = n_ranks if flag.scope in ("a TP rank", "a TP worker", "a process") else 1
        step = 10**9 if flag.unit == "GB (1e9)" else UNITS[flag.unit] // 100 or 1  # what rounding up may add
        assert float(flag.value) * UNITS[flag.unit] * takers < pool.host_bytes + takers * step + n_ranks, flag


def test_a_flag_that_gives_each_rank_a_pool_of_its_own_has_no_value_for_one_that_all_map() -> None:
    flags = engine_flags(pool_bytes(640, GIB, n_ranks=4, same_on_every_rank=True, shared=True))
    without = {(flag.engine, flag.flag): flag.reason or "" for flag in flags if flag.value is None}
    assert set(without) == {
        ("vLLM simple", "cpu_bytes_to_use"), ("vLLM simple", "cpu_bytes_to_use_per_rank"), ("SGLang", "--hicache-size"),
        ("LMCache in-process", "max_local_cpu_size"), ("mini-sglang", "--hicache-size-gb"),
    }  # fmt: skip
    assert [flag.pages for flag in flags if flag.value is None] == [None] * 5
    (simple,) = (flag for flag in flags if flag.flag == "cpu_bytes_to_use")
    assert simple.scope == "total over TP ranks"
    for reason in without.values():
        assert f"4 ranks would take {4 * 640 * GIB} bytes" in reason
        assert "without --shared" in reason
    alone = engine_flags(pool_bytes(640, GIB, n_ranks=1, same_on_every_rank=True, shared=True))
    assert all(flag.value for flag in alone)


def test_more_ranks_than_kv_heads_hold_each_head_several_times() -> None:
    fits, twice = values(n_ranks=4, n_kv_heads=4), values(n_ranks=8, n_kv_heads=4)
    assert fits["vLLM", "--kv-offloading-size"] == "640"
    assert twice["vLLM", "--kv-offloading-size"] == "1280"
    assert fits["vLLM simple", "cpu_bytes_to_use_per_rank"] == twice["vLLM simple", "cpu_bytes_to_use_per_rank"]
    assert twice["SGLang", "--hicache-size"] == "172"  # a head is 160 GiB


def test_values_are_rounded_up_so_that_the_pages_fit() -> None:
    (flag,) = (f for f in engine_flags(pool_bytes(1, GIB + 1)) if f.flag == "--kv-offloading-size")
    assert flag.value == "1.01"


def test_a_value_whose_next_step_up_is_more_than_the_host_has_is_rounded_down_and_says_what_it_holds() -> None:
    page = 1 << 20
    most = 20_090_000_000 // page
    pool = pool_bytes(most, page, n_ranks=8)  # 2.51 GB a rank: 3 GB x 8 are 24 GB
    (up,) = (f for f in engine_flags(pool) if f.engine == "SGLang")
    (down,) = (f for f in engine_flags(pool, most_pages=most) if f.engine == "SGLang")
    assert (up.value, down.value) == ("3", "2")
    assert down.pages == 2 * 10**9 * 8 // page
    for flag in engine_flags(pool, most_pages=most):
        assert flag.pages is not None
        assert flag.pages <= most
    (none,) = (f for f in engine_flags(pool_bytes(10, page), most_pages=10) if f.engine == "SGLang")
    assert (none.value, none.pages) == (None, None)
    assert "10485760 bytes are less than its least value, 1 GB (1e9)" in (none.reason or "")
    assert engine_flags(pool_bytes(0, page)) == ()

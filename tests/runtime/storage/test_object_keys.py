"""Laws of object names: what is not interchangeable never shares a name."""

from __future__ import annotations

import dataclasses

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.storage.object_keys import ObjectSpec, RankPlace, Shard, rank_suffix, unified, whole

KEY = bytes(range(32))
SPEC = ObjectSpec("Qwen/Qwen3-8B", "bfloat16", "gqa", 64, "plane-major", n_layers=36, n_heads=8)


@pytest.mark.parametrize(
    ("field", "other"),
    [("model", "Qwen-Qwen3-8B"), ("revision", "2f1"), ("dtype", "float8_e4m3fn"), ("kind", "mla"), ("page_tokens", 32),
     ("object_layout", "token-major"), ("n_layers", 18), ("n_heads", 4)],
)  # fmt: skip
def test_each_field_that_changes_bytes_changes_digest_and_folder(field: str, other: object) -> None:
    changed = dataclasses.replace(SPEC, **{field: other})  # type: ignore[arg-type]
    a, b = whole(SPEC, 4096), whole(changed, 4096)
    assert a.digest != b.digest
    assert a.folder != b.folder


def test_page_bytes_changes_digest_and_folder() -> None:
    assert whole(SPEC, 4096).folder != whole(SPEC, 8192).folder


def test_schemes_do_not_share_a_folder() -> None:
    assert whole(SPEC, 4096).folder != rank_suffix(SPEC, RankPlace(), 4096).folder


def test_equal_specs_give_equal_names_in_another_process_golden() -> None:
    namespace = whole(SPEC, 4096)
    assert namespace.name(KEY) == KEY.hex() + "_l0-36_h0-8"
    # hashlib alone: tag, then each field as 01 + length (8 bytes little-endian) + UTF-8, absent as 00
    assert namespace.folder == "hicache1-" + golden_digest()


def golden_digest() -> str:
    import hashlib

    fields = [b"unified", b"Qwen/Qwen3-8B", None, b"bfloat16", b"gqa", b"64", b"plane-major", b"36", b"8", b"4096",
              b"layers36", b"heads8"]  # fmt: skip
    data = b"hicachectl-object-namespace-v1"
    for field in fields:
        data += b"\0" if field is None else b"\1" + len(field).to_bytes(8, "little") + field
    return hashlib.sha256(data).digest()[:16].hex()


@pytest.mark.parametrize(
    ("place", "replicated", "layers", "suffix"),
    [
        (RankPlace(), False, None, "_Qwen-Qwen3-8B_0_1"),
        (RankPlace(tp_rank=3, tp_size=8), False, None, "_Qwen-Qwen3-8B_3_8"),
        (RankPlace(tp_rank=3, tp_size=8), True, None, "_Qwen-Qwen3-8B"),
        (RankPlace(tp_rank=1, tp_size=2, pp_rank=1, pp_size=2), False, (18, 36), "_Qwen-Qwen3-8B_1_2_2_1"),
        (RankPlace(cp_rank=1, cp_size=4), False, None, "_Qwen-Qwen3-8B_0_1_cp1_4"),
    ],
)
def test_rank_suffix_is_sglangs(
    place: RankPlace, replicated: bool, layers: tuple[int, int] | None, suffix: str
) -> None:
    assert rank_suffix(SPEC, place, 4096, replicated=replicated, layers=layers).suffix == suffix


def test_ranks_share_a_folder_and_differ_in_name_and_digest() -> None:
    ranks = [rank_suffix(SPEC, RankPlace(tp_rank=r, tp_size=4), 4096) for r in range(4)]
    assert len({r.folder for r in ranks}) == 1
    assert len({r.name(KEY) for r in ranks}) == len({r.digest for r in ranks}) == 4


def test_stages_cut_at_another_layer_do_not_share_a_folder() -> None:
    place = RankPlace(pp_rank=0, pp_size=2)
    assert (
        rank_suffix(SPEC, place, 4096, layers=(0, 18)).folder != rank_suffix(SPEC, place, 4096, layers=(0, 20)).folder
    )


def test_a_pipeline_stage_must_say_its_layers() -> None:
    with pytest.raises(UsageError, match="which layers"):
        rank_suffix(SPEC, RankPlace(pp_rank=0, pp_size=2), 4096)


def test_tp4_and_tp8_share_unified_objects() -> None:
    def names(tp_size: int) -> set[str]:
        per_rank = SPEC.n_heads // tp_size
        found = set()
        for rank in range(tp_size):
            shard = Shard((0, 36), (rank * per_rank, (rank + 1) * per_rank))
            found |= {f"{ns.folder}/{ns.name(KEY)}" for ns in unified(SPEC, shard, 512, heads_per_object=1)}
        return found

    assert names(4) == names(8)
    assert len(names(8)) == 8


def test_cells_come_layers_outer_heads_inner() -> None:
    cells = unified(SPEC, Shard((0, 36), (4, 8)), 512, layers_per_object=18, heads_per_object=2)
    assert [c.suffix for c in cells] == ["_l0-18_h4-6", "_l0-18_h6-8", "_l18-36_h4-6", "_l18-36_h6-8"]


def test_the_grid_is_part_of_the_digest() -> None:
    shard = Shard((0, 36), (0, 2))
    (a,) = unified(SPEC, shard, 512, heads_per_object=2)
    b, _ = unified(SPEC, shard, 512, heads_per_object=1)
    assert a.folder != b.folder


@pytest.mark.parametrize(
    ("shard", "layers_per_object", "heads_per_object", "text"),
    [
        (Shard((0, 36), (1, 3)), 36, 2, r"heads \[1, 3\) does not tile the grid of 2 heads"),
        (Shard((0, 36), (0, 1)), 36, 2, r"heads \[0, 1\) does not tile the grid of 2 heads"),
        (Shard((0, 20), (0, 8)), 18, 8, r"layers \[0, 20\) does not tile the grid of 18 layers"),
        (Shard((0, 36), (0, 8)), 35, 8, r"35 layers an object does not divide the model's 36 layers"),
        (Shard((0, 36), (0, 8)), 0, 8, r"0 layers an object does not divide"),
        (Shard((0, 36), (8, 10)), 36, 2, r"heads \[8, 10\) is not inside \[0, 8\)"),
        (Shard((18, 18), (0, 8)), 18, 8, r"layers \[18, 18\) is not inside \[0, 36\)"),
    ],
)
def test_a_shard_that_does_not_tile_the_grid_is_refused(
    shard: Shard, layers_per_object: int, heads_per_object: int, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        unified(SPEC, shard, 512, layers_per_object=layers_per_object, heads_per_object=heads_per_object)


def test_names_are_file_names_whatever_the_model_is_called() -> None:
    odd = dataclasses.replace(SPEC, model="/srv/модели/a b\n..")
    name = rank_suffix(odd, RankPlace(tp_rank=99, tp_size=100), 4096).name(KEY)
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()


def test_a_model_name_too_long_for_a_file_name_is_refused() -> None:
    with pytest.raises(UsageError, match="500 characters"):
        rank_suffix(dataclasses.replace(SPEC, model="m" * 500), RankPlace(), 4096)


@pytest.mark.parametrize(
    "bad", [{"tp_rank": 4, "tp_size": 4}, {"pp_rank": -1, "pp_size": 2}, {"cp_rank": 0, "cp_size": 0}]
)
def test_a_rank_outside_its_group_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="is not in"):
        RankPlace(**bad)


@pytest.mark.parametrize(("field", "value"), [("model", ""), ("page_tokens", 0), ("n_layers", -1), ("n_heads", 0)])
def test_an_empty_spec_is_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError):
        dataclasses.replace(SPEC, **{field: value})  # type: ignore[arg-type]

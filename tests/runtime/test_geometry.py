from __future__ import annotations

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import DTYPE_BYTES, PRESETS, KVGeometry, KVKind, gqa, mla, preset


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        # DeepSeek-AI, "Insights into DeepSeek-V3", arXiv:2505.09343, table 1: DeepSeek-V3 70.272 KB a token (bf16).
        ("deepseek-v3", 70_272),
        # Same table, Qwen-2.5 72B 327.680 KB: 80 layers of 8 KV heads of 128, which Llama-3.3-70B has too.
        ("llama-3.3-70b", 327_680),
        # Llama-3.1-8B, 32 layers of 8 KV heads of 128: 128 KiB a token in bf16.
        ("llama-3.1-8b", 131_072),
        # Qwen3-8B, 36 layers of 8 KV heads of 128: the 147,456 B a token of the published restore measurements.
        ("qwen3-8b", 147_456),
        # Qwen3-235B-A22B, 94 layers of 4 KV heads of 128 (model card: 94 layers, 64 query and 4 KV heads).
        ("qwen3-235b-a22b", 192_512),
    ],
)
def test_bytes_a_token_are_the_published_ones(name: str, bytes_per_token: int) -> None:
    for page_tokens in (1, 16, 64):
        geometry = preset(name, page_tokens)
        assert geometry.bytes_per_token == bytes_per_token
        assert geometry.page_bytes == bytes_per_token * page_tokens


def test_the_reference_case_of_78_latent_layers_has_chunks_of_73728_bytes_and_moves_2_94_gb() -> None:
    geometry = preset("mla-78", 64)
    assert (geometry.n_planes, geometry.chunk_bytes) == (78, 73_728)
    assert round(512 * geometry.page_bytes / 1e9, 2) == 2.94


@pytest.mark.parametrize(
    ("name", "page_bytes"), [("tiny-4k", 4 << 10), ("tiny-64k", 64 << 10), ("tiny-512k", 512 << 10)]
)
def test_tiny_geometries_are_named_by_the_bytes_of_a_512_token_page(name: str, page_bytes: int) -> None:
    assert preset(name, 512).page_bytes == page_bytes
    assert preset(name, 64).page_bytes * 8 == page_bytes


def test_gqa_has_a_plane_for_k_and_one_for_v_of_each_layer_and_mla_one_a_layer() -> None:
    assert preset("qwen3-8b", 64).n_planes == 72
    assert preset("deepseek-v3", 64).n_planes == 61


def test_a_range_of_layers_is_a_range_of_planes_and_all_ranges_tile_the_planes() -> None:
    for geometry in (preset("tiny-512k", 4), preset("mla-78", 4)):
        planes = [p for layer in range(geometry.n_layers) for p in geometry.planes_of(layer, layer + 1)]
        assert planes == list(range(geometry.n_planes))


def test_every_preset_is_named_by_its_key_and_its_page_is_its_chunks() -> None:
    for name in PRESETS:
        geometry = preset(name, 16)
        assert geometry.name == name
        assert geometry.page_bytes == geometry.n_planes * geometry.chunk_bytes


def test_an_unknown_geometry_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        preset("qwen3-8B-chat", 64)
    assert "qwen3-8b" in (caught.value.hint or "")


def test_dtype_scales_the_bytes() -> None:
    assert gqa("g", n_layers=2, n_kv_heads=2, head_dim=4, page_tokens=4, dtype="fp8").bytes_per_token == 32
    assert mla("m", n_layers=2, kv_lora_rank=12, qk_rope_head_dim=4, page_tokens=4, dtype="fp32").bytes_per_token == 128


@pytest.mark.parametrize(
    ("n_layers", "token_plane_bytes", "page_tokens", "dtype", "named"),
    [
        (0, 2, 4, "bf16", "n_layers is 0"),
        (2, 0, 4, "bf16", "token_plane_bytes is 0"),
        (2, 2, -1, "bf16", "page_tokens is -1"),
        (2, 3, 4, "bf16", "token_plane_bytes 3"),
        (2, 4, 4, "int4", "'int4'"),
    ],
)
def test_sizes_that_are_no_whole_number_of_elements_are_refused(
    n_layers: int, token_plane_bytes: int, page_tokens: int, dtype: str, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        KVGeometry("bad", KVKind.GQA, n_layers, token_plane_bytes, page_tokens, dtype)


def test_an_unknown_dtype_is_refused_by_the_builders_too() -> None:
    with pytest.raises(UsageError, match="int4"):
        gqa("g", n_layers=2, n_kv_heads=2, head_dim=4, page_tokens=4, dtype="int4")


@pytest.mark.parametrize(
    ("dtype", "near"),
    [("bfloat16", "bf16"), ("float8_e4m3fn", "fp8_e4m3"), ("half", "fp16"), ("fp8_e4m", "fp8_e4m3"), ("int4", "int8")],
)
def test_an_unknown_dtype_names_the_nearest_and_all_known(dtype: str, near: str) -> None:
    for make in (lambda: preset("qwen3-8b", 64, dtype), lambda: KVGeometry("g", KVKind.MLA, 1, 8, 1, dtype)):
        with pytest.raises(UsageError, match=f"dtype '{dtype}' is not known") as caught:
            make()
        assert f"did you mean {near}?" in str(caught.value.hint)
        assert "one of bf16, fp16, fp32, fp8" in str(caught.value.hint)


@pytest.mark.parametrize("name", PRESETS)
def test_another_dtype_keeps_the_elements_of_a_preset(name: str) -> None:
    own = preset(name, 16)
    assert preset(name, 16, "bf16") == own
    for dtype, width in DTYPE_BYTES.items():
        other = preset(name, 16, dtype)
        assert (other.dtype, other.bytes_per_token) == (dtype, own.bytes_per_token * width // 2)

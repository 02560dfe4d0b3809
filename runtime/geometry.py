"""KV geometry: how many planes a model has, and how many bytes a page takes in each.

A plane is one per-layer buffer of the device pool. GQA and MHA keep K and V of each layer, MLA keeps one latent a layer.
Planes are numbered layer by layer (GQA: plane 2i is K of layer i, plane 2i + 1 its V), so that a group of consecutive
layers is a range of consecutive planes and can move as one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from hicachectl.errors import UsageError

__all__ = [
    "DTYPE_BYTES", "PRESETS", "KVGeometry", "KVKind", "gqa", "mla", "preset", "require_dtype", "with_dtype",
]  # fmt: skip

DTYPE_BYTES = {
    "bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
"""Bytes of an element. Copies move bytes whatever they mean; `fp8` is fp8_e4m3 where it is not said which."""
_OTHER_NAMES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2", "fp8_e4m3fn": "fp8_e4m3",
}  # fmt: skip
"""What engines and torch call them."""


class KVKind(Enum):
    """What attention keeps of a token in a layer."""

    GQA = "gqa"
    """K and V of every KV head (MHA is the case with as many KV heads as heads)."""
    MLA = "mla"
    """One latent vector with its rotary part."""

    @property
    def planes_per_layer(self) -> int:
        return 2 if self is KVKind.GQA else 1


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """The sizes of one model's KV cache at one page size.

    `token_plane_bytes` are the bytes of one token in one plane, `page_tokens` the tokens of a page; `dtype` is the
    logical element type, a key of DTYPE_BYTES. `n_kv_heads` are shared out among TP ranks, None: not said, or MLA. Raises UsageError when a size is not a positive whole number of elements.

    >>> KVGeometry("two", KVKind.GQA, n_layers=2, token_plane_bytes=8, page_tokens=4).page_bytes
    128
    """

    name: str
    kind: KVKind
    n_layers: int
    token_plane_bytes: int
    page_tokens: int
    dtype: str = "bf16"
    n_kv_heads: int | None = None

    def __post_init__(self) -> None:
        require_dtype(self.dtype, where=f"geometry {self.name}")
        for field in ("n_layers", "token_plane_bytes", "page_tokens"):
            value = getattr(self, field)
            if value < 1:
                raise UsageError(
                    f"{field} is {value}", where=f"geometry {self.name}", hint=f"{field} must be at least 1"
                )
        if self.token_plane_bytes % DTYPE_BYTES[self.dtype]:
            raise UsageError(
                f"token_plane_bytes {self.token_plane_bytes} is not a whole number of {self.dtype} elements "
                f"of {DTYPE_BYTES[self.dtype]} bytes",
                where=f"geometry {self.name}",
                hint="give a multiple of the element size",
            )

    @property
    def n_planes(self) -> int:
        """Planes of the device pool: 2 x layers (GQA) or layers (MLA)."""
        return self.kind.planes_per_layer * self.n_layers

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one page in one plane."""
        return self.token_plane_bytes * self.page_tokens

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all planes."""
        return self.chunk_bytes * self.n_planes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all planes."""
        return self.token_plane_bytes * self.n_planes

    def planes_of(self, first_layer: int, end_layer: int) -> range:
        """Return the planes of layers `[first_layer, end_layer)`. Pure.

        >>> preset("tiny-64k", 512).planes_of(1, 2)
        range(2, 4)
        """
        per_layer = self.kind.planes_per_layer
        return range(first_layer * per_layer, end_layer * per_layer)


def require_dtype(dtype: str, where: str | None = None) -> None:
    """Refuse an element type that is not a key of DTYPE_BYTES. Pure. Raises UsageError with the nearest name and all known ones.

    >>> require_dtype("fp8_e5m2")
    """
    if dtype in DTYPE_BYTES:
        return
    near = [_OTHER_NAMES[dtype]] if dtype in _OTHER_NAMES else difflib.get_close_matches(dtype, DTYPE_BYTES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"dtype {dtype!r} is not known", where=where, hint=f"{hint}one of {', '.join(DTYPE_BYTES)}")


def with_dtype(geometry: KVGeometry, dtype: str) -> KVGeometry:
    """Return the same model with elements of another type: as many of them, so other bytes a token. Pure. Raises UsageError.

    >>> with_dtype(preset("qwen3-8b", 64), "fp8_e4m3").bytes_per_token
    73728
    """
    require_dtype(dtype, where=f"geometry {geometry.name}")
    elements = geometry.token_plane_bytes // DTYPE_BYTES[geometry.dtype]
    return replace(geometry, token_plane_bytes=elements * DTYPE_BYTES[dtype], dtype=dtype)


def gqa(
    name: str, *, n_layers: int, n_kv_heads: int, head_dim: int, page_tokens: int, dtype: str = "bf16"
) -> KVGeometry:
    """Build the geometry of grouped-query attention. Pure.

    >>> gqa("qwen3-8b", n_layers=36, n_kv_heads=8, head_dim=128, page_tokens=64).bytes_per_token
    147456
    """
    token_plane_bytes = n_kv_heads * head_dim * DTYPE_BYTES.get(dtype, 1)
    return KVGeometry(name, KVKind.GQA, n_layers, token_plane_bytes, page_tokens, dtype, n_kv_heads)


def mla(
    name: str, *, n_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, page_tokens: int, dtype: str = "bf16"
) -> KVGeometry:
    """Build the geometry of multi-head latent attention: one latent and its rotary part a layer. Pure.

    >>> mla("deepseek-v3", n_layers=61, kv_lora_rank=512, qk_rope_head_dim=64, page_tokens=64).bytes_per_token
    70272
    """
    token_plane_bytes = (kv_lora_rank + qk_rope_head_dim) * DTYPE_BYTES.get(dtype, 1)
    return KVGeometry(name, KVKind.MLA, n_layers, token_plane_bytes, page_tokens, dtype)


# Layers, KV heads, head_dim, kv_lora_rank and qk_rope_head_dim are num_hidden_layers, num_key_value_heads, head_dim,
# kv_lora_rank and qk_rope_head_dim of each model's config.json on huggingface.co: Qwen/Qwen3-8B, Qwen/Qwen3-235B-A22B,
# meta-llama/Llama-3.1-8B, meta-llama/Llama-3.3-70B-Instruct, deepseek-ai/DeepSeek-V3. mla-78 is DeepSeek-V3's latent on
# 78 layers, the reference case of the published transfer measurements. The tiny ones are named by the bytes of a
# 512-token page at bf16; they keep their bytes a token at other page sizes.
PRESETS: dict[str, Callable[[int], KVGeometry]] = {
    "qwen3-8b": lambda p: gqa("qwen3-8b", n_layers=36, n_kv_heads=8, head_dim=128, page_tokens=p),
    "qwen3-235b-a22b": lambda p: gqa("qwen3-235b-a22b", n_layers=94, n_kv_heads=4, head_dim=128, page_tokens=p),
    "llama-3.1-8b": lambda p: gqa("llama-3.1-8b", n_layers=32, n_kv_heads=8, head_dim=128, page_tokens=p),
    "llama-3.3-70b": lambda p: gqa("llama-3.3-70b", n_layers=80, n_kv_heads=8, head_dim=128, page_tokens=p),
    "deepseek-v3": lambda p: mla("deepseek-v3", n_layers=61, kv_lora_rank=512, qk_rope_head_dim=64, page_tokens=p),
    "mla-78": lambda p: mla("mla-78", n_layers=78, kv_lora_rank=512, qk_rope_head_dim=64, page_tokens=p),
    "tiny-4k": lambda p: KVGeometry("tiny-4k", KVKind.GQA, 2, 2, p),
    "tiny-64k": lambda p: KVGeometry("tiny-64k", KVKind.GQA, 2, 32, p),
    "tiny-512k": lambda p: KVGeometry("tiny-512k", KVKind.GQA, 4, 128, p),
}


def preset(name: str, page_tokens: int, dtype: str | None = None) -> KVGeometry:
    """Return the geometry of a known model at a page size; `dtype` None keeps the preset's own, bf16. Pure.

    Raises UsageError, with the nearest name, when `name` is not in PRESETS or `dtype` not in DTYPE_BYTES.

    >>> preset("tiny-64k", 512).page_bytes
    65536
    """
    make = PRESETS.get(name)
    if make is None:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"geometry {name!r} is not known", where="--geometry or run.geometry",
            hint=f"{hint}one of {', '.join(PRESETS)}; for another model the one with the same bytes a token (README, Your traffic)",
        )  # fmt: skip
    geometry = make(page_tokens)
    return geometry if dtype is None else with_dtype(geometry, dtype)

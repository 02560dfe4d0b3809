"""Names of L3 objects: page key + everything that makes bytes not interchangeable. Pure.

A page key names tokens. Two engines may read each other's objects only if model, revision, dtype, page size, order of
bytes inside an object, layers and heads agree too. Those go into the namespace digest, which is the folder and is
stored in every object, so changing one of them starts empty instead of reading wrong bytes (SGLang's file backend has
neither dtype nor layout in its names; docs/facts.md#sglang-names).

    rank-suffix   KEY_model_tprank_tpsize[_ppsize_pprank][_cprank_cpsize]   one object a page and rank, as SGLang names it
    unified       KEY_l0-36_h0-4                                           one object a grid cell (layers x KV heads): TP4
                                                                           and TP8 write and read the same objects
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import UsageError

__all__ = [
    "KEY_BYTES",
    "NameScheme",
    "ObjectNamespace",
    "ObjectSpec",
    "RankPlace",
    "Shard",
    "rank_suffix",
    "unified",
    "whole",
]

KEY_BYTES = 32
_TAG = b"hicachectl-object-namespace-v1"
_MAX_MODEL_CHARS = 120  # file names end at 255 bytes on ext4 and xfs; key, ranks and extension need 64 + 60 + 5


class NameScheme(Enum):
    """How objects of several ranks are told apart."""

    RANK_SUFFIX = "rank-suffix"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class ObjectSpec:
    """What all ranks of one deployment agree on.

    `object_layout` is the order of bytes inside an object ("plane-major", "token-major"), not the layout of a pool.
    `n_heads` counts KV heads; 1 for MLA, whose latent is not split by head. `revision` tells weights of one name apart.
    """

    model: str
    dtype: str
    kind: str
    page_tokens: int
    object_layout: str
    n_layers: int
    n_heads: int = 1
    revision: str | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("the model of an object namespace is empty", hint="name the model, e.g. qwen3-8b")
        for name in ("page_tokens", "n_layers", "n_heads"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name} is {value}, must be at least 1", where="object namespace")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank's coordinates; sizes count ranks."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1

    def __post_init__(self) -> None:
        for axis in ("tp", "pp", "cp"):
            rank, size = getattr(self, f"{axis}_rank"), getattr(self, f"{axis}_size")
            if not 0 <= rank < size:
                raise UsageError(f"{axis} rank {rank} is not in [0, {size})", where="object namespace")


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a page one rank holds: half-open ranges of layers and KV heads."""

    layers: tuple[int, int]
    heads: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ObjectNamespace:
    """Names the objects of one rank or one grid cell.

    `digest` (16 bytes) covers everything that makes bytes not interchangeable, the suffix included; a backend stores
    it with each object. `folder` groups objects that differ in rank or cell only.
    """

    folder: str
    suffix: str
    page_bytes: int
    digest: bytes

    def name(self, key: bytes) -> str:
        """Return the object's name. Pure.

        `key` is a 32-byte page key. The name is safe as a file name and holds at most 250 characters.
        """
        return key.hex() + self.suffix


def whole(spec: ObjectSpec, page_bytes: int) -> ObjectNamespace:
    """Name the pages of a single rank that holds all layers and heads. Pure.

    >>> spec = ObjectSpec("qwen3-8b", "bfloat16", "gqa", 64, "plane-major", n_layers=36, n_heads=8)
    >>> whole(spec, 64 * 147456).name(bytes(32))[64:]
    '_l0-36_h0-8'
    """
    (only,) = unified(spec, Shard((0, spec.n_layers), (0, spec.n_heads)), page_bytes)
    return only


def rank_suffix(
    spec: ObjectSpec,
    place: RankPlace,
    page_bytes: int,
    *,
    replicated: bool = False,
    layers: tuple[int, int] | None = None,
) -> ObjectNamespace:
    """Name one rank's objects with SGLang's suffix. Pure.

    `page_bytes` is the size of this rank's part of a page. `replicated` drops the TP rank: every TP rank holds the same
    bytes (MLA). `layers` is the half-open range this stage holds, needed with PP: stages can be cut in several ways
    that the suffix does not show. Suffix as in sgl-project/sglang 001067f, `mem_cache/hicache_storage.py`, HiCacheFile. Raises UsageError.

    >>> spec = ObjectSpec("Qwen/Qwen3-8B", "bfloat16", "gqa", 64, "token-major", n_layers=36, n_heads=8)
    >>> rank_suffix(spec, RankPlace(tp_rank=1, tp_size=4), 2359296).suffix
    '_Qwen-Qwen3-8B_1_4'
    """
    if layers is None and place.pp_size > 1:
        raise UsageError(
            f"rank {place.pp_rank} of {place.pp_size} pipeline stages does not say which layers it holds",
            where="object namespace",
            hint="give the half-open layer range of the stage",
        )
    start, end = (0, spec.n_layers) if layers is None else layers
    if not 0 <= start < end <= spec.n_layers:
        raise UsageError(f"layers [{start}, {end}) are not inside [0, {spec.n_layers})", where="object namespace")
    suffix = "_" + _file_safe(spec.model)
    if not replicated:
        suffix += f"_{place.tp_rank}_{place.tp_size}"
    if place.pp_size > 1:
        suffix += f"_{place.pp_size}_{place.pp_rank}"
    if place.cp_size > 1:
        suffix += f"_cp{place.cp_rank}_{place.cp_size}"
    tp = "replicated" if replicated else f"tp{place.tp_size}"
    cells = (tp, f"pp{place.pp_size}", f"cp{place.cp_size}", f"layers{start}-{end}")
    return _namespace(NameScheme.RANK_SUFFIX, spec, page_bytes, cells, suffix)


def unified(
    spec: ObjectSpec,
    shard: Shard,
    cell_bytes: int,
    *,
    layers_per_object: int | None = None,
    heads_per_object: int | None = None,
) -> tuple[ObjectNamespace, ...]:
    """Name the objects of a shard on the declared grid, one namespace a cell, layers outer, heads inner. Pure.

    `cell_bytes` is the size of one cell's part of a page. The grid is the same for all deployments that share bytes:
    `layers_per_object` x `heads_per_object`, by default the whole page. Raises UsageError when the grid does not divide
    the model or the shard does not tile the grid: part of a cell would be stored under the name of the whole cell.
    """
    layer_step = spec.n_layers if layers_per_object is None else layers_per_object
    head_step = spec.n_heads if heads_per_object is None else heads_per_object
    layers = tuple(_cells("layers", shard.layers, spec.n_layers, layer_step))
    heads = tuple(_cells("heads", shard.heads, spec.n_heads, head_step))
    grid = (f"layers{layer_step}", f"heads{head_step}")
    return tuple(
        _namespace(NameScheme.UNIFIED, spec, cell_bytes, grid, f"_l{l0}-{l1}_h{h0}-{h1}")
        for l0, l1 in layers
        for h0, h1 in heads
    )


def _cells(axis: str, part: tuple[int, int], total: int, step: int) -> Iterator[tuple[int, int]]:
    start, end = part
    if step < 1 or total % step:
        raise UsageError(
            f"a grid of {step} {axis} an object does not divide the model's {total} {axis}",
            where="object grid", hint=f"choose a divisor of {total}",
        )  # fmt: skip
    if not 0 <= start < end <= total:
        raise UsageError(f"shard {axis} [{start}, {end}) is not inside [0, {total})", where="object grid")
    if start % step or end % step:
        raise UsageError(
            f"shard {axis} [{start}, {end}) does not tile the grid of {step} {axis} an object",
            where="object grid",
            why="the shard would hold part of an object and store it under the name of all of it",
            hint=f"use an {axis} grid that divides both {start} and {end}, or rank-suffix names",
        )
    return ((i, i + step) for i in range(start, end, step))


def _namespace(
    scheme: NameScheme, spec: ObjectSpec, page_bytes: int, cells: tuple[str, ...], suffix: str
) -> ObjectNamespace:
    if page_bytes < 1:
        raise UsageError(f"an object of {page_bytes} bytes cannot be stored", where="object namespace")
    fields = (
        scheme.value, spec.model, spec.revision, spec.dtype, spec.kind, str(spec.page_tokens), spec.object_layout,
        str(spec.n_layers), str(spec.n_heads), str(page_bytes), *cells,
    )  # fmt: skip
    shared = hashlib.sha256(_TAG + b"".join(_field(f) for f in fields)).digest()[:16]
    own = hashlib.sha256(_TAG + shared + _field(suffix)).digest()[:16]
    return ObjectNamespace(folder=f"hicache1-{shared.hex()}", suffix=suffix, page_bytes=page_bytes, digest=own)


def _field(text: str | None) -> bytes:
    """Encode one field so that no two lists of fields give the same bytes: absent, or length and UTF-8. Pure."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return b"\x01" + len(data).to_bytes(8, "little") + data


def _file_safe(model: str) -> str:
    if len(model) > _MAX_MODEL_CHARS:
        raise UsageError(
            f"model name of {len(model)} characters does not fit in a file name; at most {_MAX_MODEL_CHARS}",
            where="object namespace", hint="use a short name for the model",
        )  # fmt: skip
    return re.sub(r"[^A-Za-z0-9._-]", "-", model)

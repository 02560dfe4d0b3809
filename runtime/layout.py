"""Host-pool layouts: where each byte of a page lies, and which copy backend can serve which layout.

    layer_first         [plane, slot, token, byte]   a plane is contiguous: consecutive slots move with one copy a plane
    page_first          [slot, token, plane, byte]   a page is contiguous, token by token: a chunk is in pieces of a token
    page_first_direct   [slot, plane, token, byte]   a page is contiguous, chunk by chunk: storage reads whole pages

The device pool always lies as layer_first does. A row is the largest piece of a chunk that is contiguous in the pool: the
chunk itself, or with page_first one token of it. A segment is a contiguous piece of one transfer, on both sides; a
submission is one call that starts a copy, and its cost is by the call, not by the byte.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.memory.slots import Slots

__all__ = [
    "STAGING_BYTES",
    "Backend",
    "Layout",
    "PoolMap",
    "compatible",
    "pages_a_block",
    "require_compatible",
    "segments",
    "submissions",
]

# Staging of one direction. 8 MiB stays in a processor's last-level cache; a block of it is two calls.
STAGING_BYTES = 8 << 20
# One buffer of an accelerator's staging by default, and the segments of one batched copy: `transfer/options.py`, `pieces.py`.
_BUFFER_BYTES = 64 << 20
_SEGMENTS_A_BATCH = 4096


class Layout(Enum):
    """How a host pool lies in memory."""

    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"
    PAGE_FIRST_DIRECT = "page_first_direct"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a layout's name. Pure. Raises UsageError with the nearest name.

        >>> Layout.parse("page_first")
        <Layout.PAGE_FIRST: 'page_first'>
        """
        return cls(_known(text, "layout", [layout.value for layout in cls]))

    @property
    def page_is_contiguous(self) -> bool:
        return self is not Layout.LAYER_FIRST

    @property
    def object_layout(self) -> Layout:
        """The order of bytes in a storage object written from this layout.

        Part of an object's namespace. A layer_first pool writes its pages plane by plane, as page_first_direct does.
        """
        return Layout.PAGE_FIRST if self is Layout.PAGE_FIRST else Layout.PAGE_FIRST_DIRECT


class Backend(Enum):
    """A way to copy pages between device and host."""

    CPU = "cpu"
    TORCH = "torch"
    DIRECT = "direct"
    BATCH = "batch"
    STRIDED = "strided"
    UVA = "uva"

    @classmethod
    def parse(cls, text: str) -> Backend:
        """Read a copy backend's name. Pure. Raises UsageError with the nearest name.

        >>> Backend.parse("torch")
        <Backend.TORCH: 'torch'>
        """
        return cls(_known(text, "copy backend", [backend.value for backend in cls]))


_ACCELERATOR = "comes with an accelerator"
_CUDA = "comes with a CUDA device"
# THE table of what goes together, by the torch type of the device ("" = any other accelerator): None, or why not.
_TABLE: dict[str, dict[Backend, dict[Layout, str | None]]] = {
    "cpu": {
        Backend.CPU: dict.fromkeys(Layout, None),
        Backend.TORCH: dict.fromkeys(Layout, None),
        Backend.DIRECT: dict.fromkeys(Layout, f"direct {_ACCELERATOR}"),
        Backend.BATCH: dict.fromkeys(Layout, f"batch {_CUDA}"),
        Backend.STRIDED: dict.fromkeys(Layout, f"strided {_CUDA}"),
        Backend.UVA: dict.fromkeys(Layout, f"uva {_CUDA}"),
    },
    "cuda": {
        Backend.CPU: dict.fromkeys(Layout, "cpu reaches host memory alone"),
        Backend.TORCH: dict.fromkeys(Layout, None),
        Backend.DIRECT: dict.fromkeys(Layout, None),
        Backend.BATCH: dict.fromkeys(Layout, None),
        Backend.STRIDED: dict.fromkeys(Layout, None),
        Backend.UVA: dict.fromkeys(Layout, None),
    },
    "": {
        Backend.CPU: dict.fromkeys(Layout, "cpu reaches host memory alone"),
        Backend.TORCH: dict.fromkeys(Layout, None),
        Backend.DIRECT: dict.fromkeys(Layout, None),
        Backend.BATCH: dict.fromkeys(Layout, f"batch {_CUDA}"),
        Backend.STRIDED: dict.fromkeys(Layout, f"strided {_CUDA}"),
        Backend.UVA: dict.fromkeys(Layout, f"uva {_CUDA}"),
    },
}


def compatible(layout: Layout, backend: Backend, device_type: str = "cpu") -> str | None:
    """Say why a copy backend cannot serve a layout on a type of device, or None when it can. Pure.

    >>> compatible(Layout.PAGE_FIRST, Backend.UVA)
    'uva comes with a CUDA device'
    >>> compatible(Layout.PAGE_FIRST, Backend.UVA, "cuda") is None
    True
    """
    return _TABLE.get(device_type, _TABLE[""])[backend][layout]


def require_compatible(layout: Layout, backend: Backend, device_type: str = "cpu") -> None:
    """Refuse a layout and a copy backend that do not go together; neither is ever replaced. Pure.

    Raises UsageError with both names, the reason and what works.
    """
    reason = compatible(layout, backend, device_type)
    if reason is None:
        return
    works = [other.value for other in Backend if compatible(layout, other, device_type) is None]
    raise UsageError(
        f"layout {layout.value} and copy backend {backend.value} do not go together",
        where=None if device_type == "cpu" else f"device {device_type}",
        why=reason,
        hint=f"with layout {layout.value} use copy backend {' or '.join(works)}",
    )


@dataclass(frozen=True, slots=True)
class PoolMap:
    """Where each byte of a pool of `n_slots` pages lies. Pure.

    >>> from hicachectl.runtime.geometry import preset
    >>> PoolMap(Layout.PAGE_FIRST_DIRECT, preset("tiny-64k", 512), 10).offset(slot=2, plane=1)
    147456
    """

    layout: Layout
    geometry: KVGeometry
    n_slots: int

    @property
    def n_bytes(self) -> int:
        return self.n_slots * self.geometry.page_bytes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The four dimensions in the order in which they lie in memory."""
        planes, tokens, token_bytes = self.geometry.n_planes, self.geometry.page_tokens, self.geometry.token_plane_bytes
        if self.layout is Layout.LAYER_FIRST:
            return planes, self.n_slots, tokens, token_bytes
        if self.layout is Layout.PAGE_FIRST:
            return self.n_slots, tokens, planes, token_bytes
        return self.n_slots, planes, tokens, token_bytes

    @property
    def layer_order(self) -> tuple[int, int, int, int]:
        """The transposition of `shape` that gives [plane, slot, token, byte]."""
        if self.layout is Layout.LAYER_FIRST:
            return 0, 1, 2, 3
        return (2, 0, 1, 3) if self.layout is Layout.PAGE_FIRST else (1, 0, 2, 3)

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Bytes from one plane, slot, token and byte to the next."""
        token_bytes, chunk, page = self.geometry.token_plane_bytes, self.geometry.chunk_bytes, self.geometry.page_bytes
        if self.layout is Layout.LAYER_FIRST:
            return self.n_slots * chunk, chunk, token_bytes, 1
        if self.layout is Layout.PAGE_FIRST:
            return token_bytes, page, self.geometry.bytes_per_token, 1
        return chunk, page, token_bytes, 1

    @property
    def row_bytes(self) -> int:
        """Bytes of the largest piece of a chunk that is contiguous: the chunk, or one token of it."""
        return self.geometry.token_plane_bytes if self._by_token else self.geometry.chunk_bytes

    @property
    def rows_a_chunk(self) -> int:
        return self.geometry.page_tokens if self._by_token else 1

    @property
    def _by_token(self) -> bool:
        return self.layout is Layout.PAGE_FIRST and self.geometry.n_planes > 1

    def offset(self, *, slot: int, plane: int, token: int = 0) -> int:
        """Return where a token of a chunk starts, in bytes from the start of the pool."""
        plane_step, slot_step, token_step, _ = self.strides
        return plane * plane_step + slot * slot_step + token * token_step

    def rows(self, slots: Slots, planes: range) -> NDArray[np.int64]:
        """Number the rows of these slots in these planes, in units of `row_bytes` from the start of the pool.

        They come in the order [plane, slot, token], which is the order of a staging buffer.
        """
        plane_step, slot_step, token_step, _ = (step // self.row_bytes for step in self.strides)
        of_plane = np.arange(planes.start, planes.stop, dtype=np.int64) * plane_step
        rows = of_plane[:, None] + slots.astype(np.int64)[None, :] * slot_step
        if self._by_token:
            rows = rows[:, :, None] + np.arange(self.geometry.page_tokens, dtype=np.int64) * token_step
        return rows.ravel()


def segments(
    layout: Layout, *, n_pages: int, n_planes: int, n_runs: int, page_tokens: int, moved_planes: int | None = None
) -> int:
    """Count the contiguous pieces of a transfer of `n_pages`, which form `n_runs` runs. Pure.

    `n_planes` are the planes of the model, `moved_planes` those that move (all, when left out). A run is consecutive on
    both sides. The device side is layer_first, so a piece never spans two planes. For
    512 pages of 78 planes in one run: 39,936 with page_first_direct, 78 with layer_first.

    >>> segments(Layout.PAGE_FIRST_DIRECT, n_pages=512, n_planes=78, n_runs=1, page_tokens=64)
    39936
    >>> segments(Layout.LAYER_FIRST, n_pages=512, n_planes=78, n_runs=1, page_tokens=64)
    78
    """
    moved = n_planes if moved_planes is None else moved_planes
    if layout is Layout.LAYER_FIRST or n_planes == 1:
        return n_runs * moved
    return n_pages * moved * (page_tokens if layout is Layout.PAGE_FIRST else 1)


def pages_a_block(moved_page_bytes: int, staging_bytes: int = STAGING_BYTES) -> int:
    """Return how many pages go through staging at a time: what fits, at least one. Pure.

    `moved_page_bytes` are the bytes of a page in the planes that move.
    """
    return max(1, staging_bytes // moved_page_bytes)


def submissions(
    layout: Layout, backend: Backend, *, n_pages: int, n_planes: int, n_runs: int, page_tokens: int, chunk_bytes: int
) -> int:
    """Count the calls that start a copy, for one transfer of `n_pages` in all `n_planes`. Pure.

    direct starts one a segment; torch two a staging block (gather, scatter; on an
    accelerator a third crosses the link); cpu the fewer of one a run and two a block; batch one for about 4,096 segments;
    strided two a part of its staging buffer (copy, kernel) and uva one, in one layer group, with the default staging.

    >>> submissions(Layout.PAGE_FIRST_DIRECT, Backend.DIRECT, n_pages=512, n_planes=78, n_runs=1, page_tokens=64,
    ...             chunk_bytes=73728)
    39936
    """
    if n_pages == 0:
        return 0
    staged = 2 * -(-n_pages // pages_a_block(n_planes * chunk_bytes))
    if backend is Backend.CPU:
        return min(n_runs, staged)
    if backend is Backend.TORCH:
        return staged
    if backend is Backend.DIRECT:
        return segments(layout, n_pages=n_pages, n_planes=n_planes, n_runs=n_runs, page_tokens=page_tokens)
    if backend is Backend.BATCH:
        rows = n_planes * (page_tokens if layout is Layout.PAGE_FIRST and n_planes > 1 else 1)
        return -(-n_pages // max(1, _SEGMENTS_A_BATCH // rows))
    parts = -(-n_pages * n_planes * chunk_bytes // _BUFFER_BYTES)
    if n_planes * chunk_bytes <= _BUFFER_BYTES:
        parts = -(-n_pages // (_BUFFER_BYTES // (n_planes * chunk_bytes)))
    return 2 * parts if backend is Backend.STRIDED else parts


def _known(text: str, noun: str, names: Iterable[str]) -> str:
    names = list(names)
    if text in names:
        return text
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"{noun} {text!r} is not known", hint=f"{hint}one of {', '.join(names)}")

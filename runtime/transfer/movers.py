"""Gather and scatter in device memory: rows of pages between two places whose steps differ, in Triton or in torch.

A side is a tensor of bytes and the steps, in rows, from a page, plane and token to the next. Staging numbers its pages
from 0; a pool looks them up in slots.
"""

from __future__ import annotations

from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import torch

from hicachectl.errors import UsageError
from hicachectl.runtime.transfer import triton_kernels
from hicachectl.runtime.transfer.kernel_launch import KernelDriver, KernelLaunch, find_kernel_driver

__all__ = ["KernelKind", "Mover", "Side", "TorchMover", "TritonMover", "make_mover", "tile_of", "word_bytes"]

KernelKind = str
"""`triton`, `torch`, or `auto`: Triton where it can be imported."""

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
_TILE_WORDS = 2048
_WIDEST_WORDS = 1024
_NARROWEST_WORDS = 256
_MOST_PROGRAMS = 2048
_WARPS = 8


class Side(NamedTuple):
    """One side of a move. `words` is the whole memory as 1-D words; `first`, `page`, `plane`, `token` are in rows.

    `slots` None: pages are numbered from 0. Else page i is `slots[first_page + i]`.
    """

    words: torch.Tensor
    first: int
    page: int
    plane: int
    token: int
    slots: torch.Tensor | None = None
    n_slots: int = 0


class Mover(Protocol):
    """Moves rows on the current stream of the device. Returns when that is enqueued."""

    kind: str
    reads_host: bool
    """Whether a side may be registered host memory."""
    note: str | None
    """What whoever runs it should know, None where there is nothing."""

    def move(
        self,
        source: Side,
        target: Side,
        *,
        row_bytes: int,
        first_page: int,
        n_pages: int,
        n_planes: int,
        n_tokens: int,
        programs: int | None = None,
        stream: int | None = None,
    ) -> None:
        """Copy `n_pages` x `n_planes` x `n_tokens` rows. `programs` bounds how many multiprocessors it takes.

        `stream` is the handle of the current stream, for who has it.
        """
        ...


def word_bytes(row_bytes: int) -> tuple[int, torch.dtype]:
    """Return the widest word that rows of this size are whole numbers of. Pure.

    >>> word_bytes(18)
    (2, torch.int16)
    """
    return next((width, dtype) for width, dtype in _WORDS if row_bytes % width == 0)


@lru_cache(maxsize=64)
def tile_of(row_words: int) -> tuple[int, int]:
    """Return the rows and columns of a tile: columns that divide a long row, whole short rows. Pure.

    >>> tile_of(9216), tile_of(256), tile_of(9), tile_of(1000)
    ((2, 1024), (8, 256), (128, 16), (2, 1024))
    """
    divisor = row_words & -row_words
    if row_words > _WIDEST_WORDS and divisor >= _NARROWEST_WORDS:
        cols = min(divisor, _WIDEST_WORDS)
    else:
        cols = min(1 << (row_words - 1).bit_length(), _WIDEST_WORDS)
    return _TILE_WORDS // cols, cols


class TritonMover:
    """One Triton kernel for every move. `launch` is the kernel, indexed by its grid, which Triton compiles at the first move.

    With `driver` later moves of the same kind are launched without Triton.
    """

    kind = "triton"
    reads_host = True
    note: str | None = None

    def __init__(self, launch: Any = triton_kernels.move_rows, driver: KernelDriver | None = None) -> None:
        self._launch, self._driver = launch, driver
        self._launches: dict[tuple[object, ...], KernelLaunch | None] = {}

    def move(
        self,
        source: Side,
        target: Side,
        *,
        row_bytes: int,
        first_page: int,
        n_pages: int,
        n_planes: int,
        n_tokens: int,
        programs: int | None = None,
        stream: int | None = None,
    ) -> None:
        row_words = row_bytes // source.words.element_size()
        rows, cols = tile_of(row_words)
        n_rows = n_pages * n_planes * n_tokens
        n_tiles = -(-n_rows // rows) * -(-row_words // cols)
        n_programs = min(n_tiles, programs or _MOST_PROGRAMS)
        from_slots = target.slots if source.slots is None else source.slots
        some_slots = source.words if from_slots is None else from_slots
        memory = (source.words, target.words, some_slots, some_slots if target.slots is None else target.slots)
        counts = [
            source.first, source.page, source.plane, source.token, target.first, target.page, target.plane, target.token,
            first_page, n_rows, n_planes, n_tokens,
        ]  # fmt: skip
        direct = self._driver is not None and stream is not None and KernelLaunch.fits(counts)
        key: tuple[object, ...] = ()
        if direct:
            pointers = [tensor.data_ptr() for tensor in memory]
            # What Triton compiles for: constants, element, pointers of 16 bytes; and a launch belongs to a thread.
            key = (
                get_ident(), source.slots is None, target.slots is None, row_bytes, source.words.dtype,
                source.words.get_device(), target.words.get_device(), *[pointer % 16 == 0 for pointer in pointers],
            )  # fmt: skip
            if (known := self._launches.get(key)) is not None:
                known(n_programs, pointers, counts, stream)  # type: ignore[arg-type]
                return
        compiled = self._launch[(n_programs,)](
            *memory,
            *counts,
            FROM_SLOTS=source.slots is not None,
            TO_SLOTS=target.slots is not None,
            ROW_WORDS=row_words,
            ROWS=rows,
            COLS=cols,
            num_warps=_WARPS,
        )
        if direct and key not in self._launches:
            assert self._driver is not None
            self._launches[key] = KernelLaunch.of(self._driver, compiled, len(memory), len(counts))


class TorchMover:
    """Strided views and index operations: every device torch knows.

    Each move takes temporary tensors from torch's allocator: a copy of its rows and of its slots, beside the staging.
    """

    kind = "torch"
    reads_host = False
    note: str | None = (
        "the torch kernel takes device memory in every step, as much as the step moves, beside the staging"
    )

    def move(
        self,
        source: Side,
        target: Side,
        *,
        row_bytes: int,
        first_page: int,
        n_pages: int,
        n_planes: int,
        n_tokens: int,
        programs: int | None = None,
        stream: int | None = None,
    ) -> None:
        row_words = row_bytes // source.words.element_size()
        shape = (n_planes, n_tokens, row_words)
        fro, to = (_strided(side, n_pages, shape) for side in (source, target))
        if source.slots is not None:
            fro = fro.index_select(0, source.slots[first_page : first_page + n_pages].long())
        if target.slots is not None:
            to.index_copy_(0, target.slots[first_page : first_page + n_pages].long(), fro)
        else:
            to.copy_(fro)


def make_mover(kind: KernelKind = "auto") -> tuple[Mover, str]:
    """Return a mover and why it is this one. Raises UsageError when Triton is asked for and is not there."""
    missing = triton_kernels.MISSING
    if kind not in ("auto", "triton", "torch"):
        raise UsageError(f"gather kernel {kind!r} is not known", hint="auto, triton or torch")
    if kind == "triton" and missing is not None:
        raise UsageError("the gather kernel triton is not there", why=missing, hint="take torch, or install triton")
    if kind == "torch" or missing is not None:
        return TorchMover(), "asked for" if kind == "torch" else str(missing)
    return TritonMover(driver=find_kernel_driver()), "asked for" if kind == "triton" else "triton can be imported"


def _strided(side: Side, n_pages: int, shape: tuple[int, int, int]) -> torch.Tensor:
    n = n_pages if side.slots is None else side.n_slots
    steps = (side.page * shape[2], side.plane * shape[2], side.token * shape[2], 1)
    return side.words.as_strided((n, *shape), steps, side.words.storage_offset() + side.first * shape[2])

"""Page content that proves itself: what a page must hold follows from its key, its plane and the place in the plane.

A page is one row of 64-bit words, plane after plane. Word w of the page with seed s holds `mix(w) ^ mix'(s)`: `mix` is a
bijection, so all words of a page differ, and a page, plane or offset taken for another does not compare equal (two
64-bit words of different pages agree by chance only). Chunks too small for a word take their bytes of it in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken

__all__ = ["Mismatch", "PageContent"]

Bytes3d = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_WHOLE_PAGE_BYTES = 256 << 10  # pages up to this go in one numpy call, larger ones plane by plane: stays in L2 cache
_BATCH_BYTES = 256 << 10  # small or oddly shaped pages go through a temporary of about this size
_DIRECT_PAGE_BYTES = 4 << 10  # below this a numpy call a page costs more than copying a batch


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first wrong byte: `page` is the position in the slots asked for, `offset` counts bytes in the plane's chunk."""

    page: int
    slot: int
    plane: int
    offset: int
    want: int
    got: int


class PageContent:
    """Fills and checks pages of `n_planes` chunks of `chunk_bytes`. Memory: one page. Not thread-safe: one a thread.

    >>> pool = np.zeros((2, 3, 16), np.uint8)
    >>> content = PageContent(2, 16)
    >>> content.fill(pool, np.array([2, 0], np.int32), np.array([7, 8], np.uint64))
    >>> content.first_mismatch(pool, np.array([2, 0], np.int32), np.array([7, 8], np.uint64)) is None
    True
    >>> content.first_mismatch(pool, np.array([0], np.int32), np.array([7], np.uint64)).plane
    0
    """

    def __init__(self, n_planes: int, chunk_bytes: int) -> None:
        if n_planes < 1 or chunk_bytes < 1:
            raise InvariantBroken(f"content for {n_planes} planes of {chunk_bytes} bytes: both must be at least 1")
        self.n_planes = n_planes
        self.chunk_bytes = chunk_bytes
        self.page_bytes = n_planes * chunk_bytes
        self._n_words = -(-self.page_bytes // 8)
        self._base = _mix(np.arange(self._n_words, dtype=np.uint64))
        self._direct = chunk_bytes % 8 == 0 and self.page_bytes >= _DIRECT_PAGE_BYTES
        if self._direct:
            self._planes = self._base.reshape(n_planes, chunk_bytes // 8)
            step = n_planes if self.page_bytes <= _WHOLE_PAGE_BYTES else 1
            self._plane_steps = [slice(at, at + step) for at in range(0, n_planes, step)]
            self._scratch = np.empty((step, chunk_bytes // 8), np.uint64)
            self._equal = np.empty((step, chunk_bytes // 8), np.bool_)

    @property
    def base_words(self) -> Words:
        """The words of the page whose mixed seed is 0; the last may reach past the page."""
        return self._base

    @staticmethod
    def mixed(seeds: Words) -> Words:
        """Return the word that every word of a page is XORed with, by its seed. Pure."""
        return _mix(~seeds)

    def fill(self, pages: Bytes3d, slots: npt.NDArray[np.int32], seeds: Words) -> None:
        """Write the content of page i into slot slots[i] of `pages` [planes, slots, chunk]; changes those slots only.

        `seeds` are 64 bits a page, such as the first 8 bytes of its key; equal seeds mean equal content.
        """
        self._check(pages, slots, seeds)
        mixed = _mix(~seeds)
        if self._direct and pages.strides[2] == 1:
            words = _as_words(pages)
            for slot, seed in zip(slots.tolist(), mixed, strict=True):
                for planes in self._plane_steps:
                    np.bitwise_xor(self._planes[planes], seed, out=words[planes, slot])
            return
        for batch in self._batches(len(slots)):
            pages[:, slots[batch], :] = self._expected(mixed[batch]).transpose(1, 0, 2)

    def first_mismatch(self, pages: Bytes3d, slots: npt.NDArray[np.int32], seeds: Words) -> Mismatch | None:
        """Return the first byte that is not what `fill` writes, in order of (page, plane, offset), or None. Reads only."""
        self._check(pages, slots, seeds)
        mixed = _mix(~seeds)
        if self._direct and pages.strides[2] == 1:
            words = _as_words(pages)
            scratch, equal = self._scratch, self._equal
            for page, (slot, seed) in enumerate(zip(slots.tolist(), mixed, strict=True)):
                for planes in self._plane_steps:
                    np.bitwise_xor(self._planes[planes], words[planes, slot], out=scratch)
                    if not np.equal(scratch, seed, out=equal).all():
                        return self._locate(pages, slot, page, mixed[page : page + 1])
            return None
        for batch in self._batches(len(slots)):
            got = pages[:, slots[batch], :].transpose(1, 0, 2)
            wrong = (got != self._expected(mixed[batch])).any(axis=(1, 2))
            if wrong.any():
                page = batch.start + int(wrong.argmax())
                return self._locate(pages, int(slots[page]), page, mixed[page : page + 1])
        return None

    def page(self, seed: int) -> npt.NDArray[np.uint8]:
        """Return the content of one page, planes in order, as 1-D bytes (a copy). Pure."""
        return self._expected(_mix(~np.array([seed], np.uint64))).reshape(-1)

    def _expected(self, mixed: Words) -> Bytes3d:
        rows = np.bitwise_xor.outer(mixed, self._base).view(np.uint8)[:, : self.page_bytes]
        return rows.reshape(len(mixed), self.n_planes, self.chunk_bytes)

    def _batches(self, n_pages: int) -> list[slice]:
        step = max(1, _BATCH_BYTES // self.page_bytes)
        return [slice(at, min(at + step, n_pages)) for at in range(0, n_pages, step)]

    def _locate(self, pages: Bytes3d, slot: int, page: int, mixed: Words) -> Mismatch:
        got, want = pages[:, slot, :], self._expected(mixed)[0]
        plane, offset = (int(axis[0]) for axis in np.nonzero(got != want))
        return Mismatch(page, slot, plane, offset, int(want[plane, offset]), int(got[plane, offset]))

    def _check(self, pages: Bytes3d, slots: npt.NDArray[np.int32], seeds: Words) -> None:
        if (
            pages.dtype != np.uint8
            or pages.ndim != 3
            or (pages.shape[0], pages.shape[2]) != (self.n_planes, self.chunk_bytes)
        ):
            raise InvariantBroken(
                f"pages are {pages.dtype} {pages.shape}, not uint8 ({self.n_planes}, slots, {self.chunk_bytes})"
            )
        if len(slots) != len(seeds):
            raise InvariantBroken(f"{len(slots)} slots but {len(seeds)} seeds")
        if len(slots) and (slots.min() < 0 or slots.max() >= pages.shape[1]):
            raise InvariantBroken(f"slots {slots.min()}..{slots.max()} outside a pool of {pages.shape[1]}")


def _as_words(pages: Bytes3d) -> npt.NDArray[np.uint64]:
    return pages.view(np.uint64)


def _mix(values: Words) -> Words:
    """Mix 64-bit words, one to one. Pure. The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, public domain)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

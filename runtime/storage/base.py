"""The L3 interface: whole pages under their page key, nothing else.

A backend never raises for what a disk or a network does while the cache is serving: it returns how many leading pages
went well and counts the reason. Only construction raises StorageError. Keys are page keys (32 bytes, chained, so the
key names the bytes); pages are 1-D uint8 arrays of `page_bytes`, views into host memory where a page lies together there.
Keys and pages are sequences that may make their items when asked (`KeyRun`, `HostPages`): take each once, when it is due.

    who owns the host slots behind `pages`:  the caller, leased, from the call until it returns
    what is in them after read() == n:       [0, n) proven right     [n, len) undefined, must not be used
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.keys import KEY_BYTES, KeyRun

__all__ = ["LazyPages", "PageBytes", "StorageBackend", "StorageStats", "Stored", "check_pages", "read_into"]

PageBytes = npt.NDArray[np.uint8]
"""The bytes of one page: 1-D uint8, contiguous, `page_bytes` long."""


@dataclass(frozen=True, slots=True)
class StorageStats:
    """What a backend holds and has done since it was opened.

    `hits` and `misses` count pages asked for by read(); `exists_hits` and `exists_misses` those asked by
    exists_prefix(). `failures` maps a reason (`StorageFault.value`, or a backend's own word) to a count. Seconds are
    wall time inside the backend, summed over threads. `capacity_bytes` None means the backend does not know its bound.
    """

    n_objects: int
    used_bytes: int
    capacity_bytes: int | None
    hits: int
    misses: int
    exists_hits: int
    exists_misses: int
    corrupt_removed: int
    writes: int
    writes_skipped: int
    evictions: int
    read_bytes: int
    read_s: float
    written_bytes: int
    write_s: float
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a write() did: the leading `n_ok` pages are stored, of which `n_new` were not there before."""

    n_ok: int
    n_new: int


class StorageBackend(Protocol):
    """What every L3 backend offers; safe to call from several threads at once."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page object."""
        ...

    def exists_prefix(self, keys: Sequence[bytes]) -> int:
        """Return how many leading keys are stored, complete; stops at the first missing one.

        Moves nothing. The answer may be a few seconds old (a backend states its bound): a page it promised can
        still turn out a miss at read().
        """
        ...

    def read(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> int:
        """Fill `pages` and return how many leading ones are proven right.

        Stops at the first page that is missing, corrupt or unreadable; earlier pages stay good, later buffers are
        undefined. Refreshes the recency of what was read.
        """
        ...

    def write(
        self, keys: Sequence[bytes], pages: Sequence[PageBytes], *, before_page: Callable[[], bool] | None = None
    ) -> Stored:
        """Store `pages` and return how many leading ones are stored now, and how many of them were written for it.

        Stops at the first page that cannot be stored; earlier ones stay. `before_page` is called before each page
        with no lock held and may block to let more urgent work go first; when it returns False the call stops there.
        """
        ...

    def touch(self, keys: Sequence[bytes]) -> None:
        """Make the stored ones of `keys` (a path, head to tail) the most recent, head last to be evicted.

        A chain without its head is worthless, so recency runs tail to head. Cheap: no I/O.
        """
        ...

    def stats(self) -> StorageStats:
        """Return the counters as they stand."""
        ...

    def close(self) -> None:
        """Give back what the backend holds; stored pages stay. A second call does nothing."""
        ...


@runtime_checkable
class LazyPages(Protocol):
    """Pages that are made when taken; see `memory.host_pages.HostPages`."""

    page_bytes: int

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice) -> LazyPages: ...
    def buffers(self) -> Sequence[PageBytes]:
        """Return one buffer a page to read into."""
        ...

    def arrived(self, buffers: Sequence[PageBytes]) -> None:
        """Put what was read into the first buffers where it belongs."""
        ...


def read_into(storage: StorageBackend, keys: Sequence[bytes], pages: Sequence[PageBytes] | LazyPages) -> int:
    """Read `keys` into `pages`, which may be lazy ones; returns how many leading pages are proven right and in place."""
    if not isinstance(pages, LazyPages):
        return storage.read(keys, pages)
    buffers = pages.buffers()
    n_ok = storage.read(keys, buffers)
    pages.arrived(buffers[:n_ok])
    return n_ok


def check_pages(keys: Sequence[bytes], pages: Sequence[PageBytes] | LazyPages, page_bytes: int) -> None:
    """Refuse a call whose keys and buffers do not fit together. Pure.

    Raises InvariantBroken: the caller is our own code, so this is a bug, and going on could store a wrong byte.
    """
    if len(keys) != len(pages):
        raise InvariantBroken(f"{len(keys)} page keys for {len(pages)} page buffers", where="storage")
    if not isinstance(keys, KeyRun):  # whose keys are whole by construction
        for i, key in enumerate(keys):
            if len(key) != KEY_BYTES:
                raise InvariantBroken(f"page key {i} has {len(key)} bytes, not {KEY_BYTES}", where="storage")
    if isinstance(pages, LazyPages):
        if pages.page_bytes != page_bytes:
            raise InvariantBroken(f"pages of {pages.page_bytes} bytes, wanted {page_bytes}", where="storage")
        return
    for i, page in enumerate(pages):
        if page.dtype != np.uint8 or page.ndim != 1 or page.nbytes != page_bytes or not page.flags.c_contiguous:
            raise InvariantBroken(
                f"page buffer {i} is {page.dtype} {page.shape}, contiguous={page.flags.c_contiguous}; "
                f"wanted 1-D contiguous uint8 of {page_bytes} bytes",
                where="storage",
            )

"""What a probe of the store asks for and finds, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hicachectl.runtime.probes.page_cache import FileSystem
from hicachectl.runtime.storage.file import disk_bytes

__all__ = ["Call", "StoreCase", "StoreOp", "StoreProbe", "StoreRow", "space_terms"]

_FOLDER_BYTES = 4096
_MOST_SHARDS = 4096


class StoreOp(str, Enum):
    """What is done to pages."""

    WRITE = "write"
    WRITE_DURABLE = "write durable"
    EXISTS_KNOWN = "exists known"
    EXISTS_LOOKED = "exists looked"
    READ_WARM = "read warm"
    READ_COLD = "read cold"

    @property
    def moves_bytes(self) -> bool:
        """Whether pages move, not only names. Pure."""
        return self not in (StoreOp.EXISTS_KNOWN, StoreOp.EXISTS_LOOKED)


@dataclass(frozen=True, slots=True)
class StoreCase:
    """How pages are asked for: `batch_pages` a call, by `n_threads` at a time."""

    batch_pages: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the backend: its pages, and the seconds until it returned."""

    n_pages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreRow:
    """One operation of one case: wall seconds of each round, and the calls of each, in the order they ended.

    `resident_share` is what of the files was in the page cache right before, 0 to 1, None where that was not looked at.
    `refused` says why there are no (more) rounds.
    """

    case: StoreCase
    op: StoreOp
    n_pages: int
    n_bytes: int
    wall_s: tuple[float, ...] = ()
    calls: tuple[tuple[Call, ...], ...] = ()
    resident_share: float | None = None
    refused: str | None = None

    @property
    def page_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds a page by round: a call's seconds over its pages. Pure."""
        return tuple(tuple(one.seconds / one.n_pages for one in calls) for calls in self.calls)

    @property
    def pages_per_s(self) -> tuple[float, ...]:
        """Pages a second of each round. Pure."""
        return tuple(self.n_pages / wall for wall in self.wall_s)

    @property
    def bytes_per_s(self) -> tuple[float, ...]:
        """Bytes a second of each round; empty where no bytes move. Pure."""
        return tuple(self.n_bytes / wall for wall in self.wall_s) if self.op.moves_bytes else ()


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """What the probe found. `verified_pages` were compared byte for byte, `scan_s` are start-up scans over `n_pages` objects.

    `left` are paths that were not removed at the end, with the reason; empty is the rule.
    """

    folder: str
    file_system: FileSystem
    page_bytes: int
    object_bytes: int
    n_pages: int
    rounds: int
    verified_pages: int
    scan_s: tuple[float, ...]
    rows: tuple[StoreRow, ...]
    left: tuple[str, ...]


def space_terms(page_bytes: int, n_pages: int, block_bytes: int = 4096) -> tuple[tuple[str, int], ...]:
    """Return what `n_pages` objects take of a disk, term by term, in bytes. Pure.

    >>> sum(n for _, n in space_terms(65536, 1000))
    73732096
    """
    folders = min(n_pages, _MOST_SHARDS) + 2
    return (
        (f"{n_pages} pages of {page_bytes} B", n_pages * page_bytes),
        ("headers and rounding to blocks", n_pages * (disk_bytes(page_bytes, block_bytes) - page_bytes)),
        (f"{folders} folders", folders * _FOLDER_BYTES),
    )

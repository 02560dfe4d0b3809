"""Copies under way: what the tree must keep in place until they are over. Values; the cache moves them on.

A ticket names its pages as a range of a path, `[start, end)` above or at `node`. A node that splits keeps its identity as
the lower part, so walking up from `node` finds the range again whatever was split meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hicachectl.runtime.tree import Lease, Node, Slots

__all__ = ["BackupTicket", "Copy", "CutRead", "LoadTicket", "ReadOp", "StoreTicket", "Timed", "WriteOp"]


class Timed(Protocol):
    """What is known of anything that moved pages in a thread: seconds in the copy, and before it in the queue."""

    @property
    def wall_s(self) -> float: ...
    @property
    def queued_s(self) -> float: ...


class Copy(Timed, Protocol):
    """What the cache needs of a transfer: see `transfer.engine.Transfer`."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def n_bytes(self) -> int: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...


class ReadOp(Timed, Protocol):
    """What the cache needs of a storage read: see `storage.prefetch.PrefetchOp`."""

    @property
    def done(self) -> bool: ...
    @property
    def n_ok(self) -> int: ...
    @property
    def error(self) -> Exception | None: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def cancel(self) -> None: ...


class WriteOp(Timed, Protocol):
    """What the cache needs of a storage write: see `storage.backup.BackupOp`."""

    @property
    def done(self) -> bool: ...
    @property
    def n_ok(self) -> int: ...
    @property
    def n_new(self) -> int: ...
    @property
    def error(self) -> Exception | None: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...


@dataclass(slots=True, eq=False)
class BackupTicket:
    """Device -> host. The nodes of the range carry it in `node.backup`; their host slots are the tree's already."""

    node: Node
    start: int
    end: int
    copy: Copy
    keys: bytes | None = None
    """Keys of the range (32 bytes a page) when the request brought them; else the tree makes them again."""


@dataclass(slots=True, eq=False)
class LoadTicket:
    """Host -> device, for pages of the host tier (`read` is None) or just read from storage.

    Until it is over, `device_slots` (and for storage `host_slots`) are private to it. It holds a lease of its own, so a
    request that goes away does not pull the pages from under the copy.
    """

    owner: int
    """Serial of the request that started it."""
    lease: Lease
    tokens: bytes
    keys: bytes | None
    start: int
    end: int
    device_slots: Slots
    host_slots: Slots
    copy: Copy | None
    read: ReadOp | None
    after: LoadTicket | None = None
    """The load whose pages lie just above; this one is published after it."""
    give_up_at_s: float | None = None
    """When (perf_counter) the wait for the storage read ends and what has arrived counts; None = never."""
    cut: bool = False
    """The storage read was given up at its deadline; `end` is where what had arrived ends."""
    over: bool = False
    arrived: int = 0
    """Absolute page the range is proven and published up to; `start` when it failed."""
    first: int = field(init=False)
    """Where the range began; `start` moves on."""

    def __post_init__(self) -> None:
        self.first = self.start


@dataclass(slots=True, eq=False)
class CutRead:
    """A storage read given up at its deadline. It may still fill `host_slots`, which are its own until it is over."""

    read: ReadOp
    n_asked: int
    host_slots: Slots


@dataclass(slots=True, eq=False)
class StoreTicket:
    """Host -> storage. The nodes of the range carry it in `node.store`."""

    node: Node
    start: int
    end: int
    keys: bytes
    write: WriteOp | None
    """None while it stands in line for the storage queue."""

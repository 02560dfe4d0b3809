"""An engine and storage threads that do nothing until told: every order of events can be played, and played again.

They stand where `TransferEngine`, `Prefetcher` and `StorageBackup` stand and own the same things: from the call until
`done`, the destination belongs to the copy. It is spoiled at the call, so that a page shown too early is a wrong page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.storage.backup import TouchOp
from hicachectl.runtime.storage.base import PageBytes, StorageBackend, check_pages, read_into
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.cpu import CpuBackend
from hicachectl.runtime.tree import Slots

__all__ = ["SPOILED", "Control", "HeldCopy", "HeldEngine", "HeldRead", "HeldReads", "HeldWrite", "HeldWrites", "spoil"]

SPOILED = 0xDB
_BACKEND = CpuBackend(staging_bytes=1 << 16)


class Control:
    """What a test decides.

    `stuck` lets no wait succeed; with `hurried` everything under way ends while someone waits, without it only what is
    waited for. `fates` says of the next ends whether they fail (False when empty).
    """

    def __init__(self) -> None:
        self.stuck = False
        self.hurried = False
        self.fates: deque[bool] = deque()
        self.pending: list[HeldCopy | HeldRead | HeldWrite] = []

    def fails(self) -> bool:
        return self.fates.popleft() if self.fates else False

    def finish_all(self) -> None:
        while self.pending:
            self.pending[0].finish()


class _Held:
    """One thing under way: ends when a test says so, or when someone waits for it and nothing is stuck.

    Each queue is served by one thread, first come first served, so what was queued before it ends before it.
    """

    def __init__(self, control: Control, queue: str, act: Callable[[bool], int]) -> None:
        self._control = control
        self._queue = queue
        self._act = act
        self.done = False
        self.wall_s = 1e-5  # from the start: a copy looked at too early must fail for its bytes, not for its clock
        control.pending.append(self)  # type: ignore[arg-type]

    def finish(self) -> None:
        for other in [o for o in self._control.pending if o._queue == self._queue]:
            if other is self:
                break
            other.finish()
        self._control.pending.remove(self)  # type: ignore[arg-type]
        self._end(self._act(self._control.fails()))
        self.done = True

    def _end(self, n: int) -> None:
        raise AssertionError("a subclass says how it ends")

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self.done and not self._control.stuck:
            if self._control.hurried:
                self._control.finish_all()
            else:
                self.finish()
        return self.done


class HeldCopy(_Held):
    """Stands for `Transfer`."""

    def __init__(self, control: Control, queue: str, act: Callable[[bool], int]) -> None:
        super().__init__(control, queue, act)
        self.error: Exception | None = None
        self.n_bytes = 0

    def _end(self, n: int) -> None:
        self.n_bytes = n
        if n == 0:
            self.error = OSError("the copy failed")


class HeldRead(_Held):
    """Stands for `PrefetchOp`."""

    n_ok = 0
    error: Exception | None = None

    def _end(self, n: int) -> None:
        self.n_ok = n

    def cancel(self) -> None:
        """Keep what has arrived: nothing, as a held read brings all its pages at its end, which is still to come."""
        if not self.done:
            self._act = lambda _: 0


class HeldWrite(_Held):
    """Stands for `BackupOp`."""

    n_ok = n_new = 0
    error: Exception | None = None

    def _end(self, n: int) -> None:
        self.n_ok = n


class HeldEngine:
    """Stands for `TransferEngine`. A copy moves its bytes when it ends, and a failed one leaves the destination spoiled."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool, control: Control) -> None:
        self.device_pool, self.host_pool, self._control = device_pool, host_pool, control
        self.loads = self.backups = 0

    def load(self, host_slots: Slots, device_slots: Slots) -> HeldCopy:
        self.loads += 1
        self.device_pool.planes_numpy()[:, device_slots] = SPOILED
        return self._copy(Direction.LOAD, device_slots, host_slots)

    def backup(self, device_slots: Slots, host_slots: Slots) -> HeldCopy:
        self.backups += 1
        self.host_pool.layer_view()[:, host_slots] = SPOILED
        return self._copy(Direction.BACKUP, device_slots, host_slots)

    def _copy(self, direction: Direction, device_slots: Slots, host_slots: Slots) -> HeldCopy:
        assert len(device_slots) == len(host_slots) > 0
        device_slots, host_slots = device_slots.copy(), host_slots.copy()
        geometry = self.device_pool.geometry

        def act(fails: bool) -> int:
            if fails:
                return 0
            planes = range(geometry.n_planes)
            _BACKEND.copy(direction, self.device_pool, self.host_pool, device_slots, host_slots, planes)
            return len(device_slots) * geometry.page_bytes

        return HeldCopy(self._control, direction.value, act)


class HeldReads:
    """Stands for `Prefetcher`. A read that fails brings half of its pages."""

    def __init__(self, storage: StorageBackend, control: Control) -> None:
        self._storage, self._control = storage, control

    def submit(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> HeldRead:
        check_pages(keys, pages, self._storage.page_bytes)
        assert isinstance(pages, HostPages)
        spoiled = pages.buffers()
        for page in spoiled:
            page[:] = SPOILED
        pages.arrived(spoiled)

        def act(fails: bool) -> int:
            n = read_into(self._storage, keys, pages)
            return n // 2 if fails else n

        return HeldRead(self._control, "read", act)

    def close(self) -> None:
        pass


class HeldWrites:
    """Stands for `StorageBackup`. A write that fails stores half of its pages."""

    def __init__(self, storage: StorageBackend, max_queue_pages: int, control: Control) -> None:
        self._storage, self._control, self._room = storage, control, max_queue_pages

    def submit(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> HeldWrite | None:
        check_pages(keys, pages, self._storage.page_bytes)
        if len(keys) > self._room:
            return None
        self._room -= len(keys)

        def act(fails: bool) -> int:
            self._room += len(keys)
            n = len(keys) // 2 if fails else len(keys)
            stored = self._storage.write(keys[:n], pages[:n])
            write.n_new = stored.n_new
            return stored.n_ok

        write = HeldWrite(self._control, "write", act)
        return write

    @property
    def room_pages(self) -> int:
        return self._room

    def touch(self, keys: Sequence[bytes]) -> TouchOp:
        op = TouchOp(keys)
        try:
            self._storage.touch(keys)
        except Exception as error:  # noqa: BLE001 - as the thread does
            op.error = error
        op.finish()
        return op

    def close(self) -> None:
        pass


def spoil(pool: DevicePool, slots: Slots) -> None:
    """Overwrite device slots that were just handed out: what is not computed must not be right by chance."""
    pool.planes_numpy()[:, np.asarray(slots)] = SPOILED

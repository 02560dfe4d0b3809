"""Laws of writes to L3: nobody waits for them, loads go first, what does not fit is dropped and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from fake_storage import HeldStorage
from storage_samples import Open, buffers, keys_of, page_of, pages_of

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.storage.backup import StorageBackup
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.operation import OpEnd
from hicachectl.runtime.storage.prefetch import Prefetcher

N_FREE = 1000  # permits: nothing is held


@pytest.fixture
def storage() -> HeldStorage:
    return HeldStorage()


@pytest.fixture
def backup(storage: HeldStorage) -> Iterator[StorageBackup]:
    backup = StorageBackup(storage, max_queue_pages=6)
    yield backup
    storage.permits.release(N_FREE)
    backup.close()


def test_what_was_backed_up_comes_back_byte_for_byte(open_storage: Open) -> None:
    storage = open_storage()
    backup, prefetcher, pages = StorageBackup(storage, 100), Prefetcher(storage), buffers(20)
    op = backup.submit(keys_of(range(20)), pages_of(range(20)))
    assert op is not None
    assert op.wait(30)
    assert (op.n_ok, op.end, op.error) == (20, OpEnd.COMPLETE, None)
    assert prefetcher.submit(keys_of(range(20)), pages).wait(30)
    assert all(np.array_equal(page, page_of(i)) for i, page in enumerate(pages))
    stats = backup.stats()
    assert (stats.n_ops, stats.n_pages_ok, stats.written_bytes, stats.n_queued_pages) == (1, 20, 20 * 256, 0)
    backup.close()
    prefetcher.close()


def test_submit_returns_at_once_and_another_thread_writes(storage: HeldStorage, backup: StorageBackup) -> None:
    op = backup.submit(keys_of([0]), pages_of([0]))
    assert op is not None
    assert not op.done, "it is held until we permit it"
    storage.permits.release()
    assert op.wait(30)
    assert storage.threads == {"hicache-backup"}


def test_a_full_queue_drops_and_counts_and_room_comes_back(storage: HeldStorage, backup: StorageBackup) -> None:
    first = backup.submit(keys_of(range(4)), pages_of(range(4)))
    assert first is not None
    assert backup.submit(keys_of(range(3)), pages_of(range(3))) is None
    second = backup.submit(keys_of(range(2)), pages_of(range(2)))
    assert second is not None
    assert backup.room_pages == 0
    assert backup.submit(keys_of([0]), pages_of([0])) is None
    stats = backup.stats()
    assert (stats.n_ops_dropped, stats.n_pages_dropped, stats.n_queued_pages) == (2, 4, 6)
    storage.permits.release(N_FREE)
    assert second.wait(30)
    assert backup.room_pages == 6
    assert backup.submit(keys_of(range(6)), pages_of(range(6))) is not None


def test_a_failing_storage_fails_the_write_and_not_the_thread(storage: HeldStorage, backup: StorageBackup) -> None:
    storage.raises = OSError(5, "I/O error")
    storage.permits.release(N_FREE)
    failed = backup.submit(keys_of([0]), pages_of([0]))
    assert failed is not None
    assert failed.wait(30)
    assert (failed.end, failed.n_ok, failed.error) == (OpEnd.FAILED, 0, storage.raises)
    storage.raises = None
    again = backup.submit(keys_of([0]), pages_of([0]))
    assert again is not None
    assert again.wait(30)
    assert again.n_ok == 1


def test_close_ends_the_running_write_after_its_page_and_the_queued_unwritten(
    storage: HeldStorage, backup: StorageBackup
) -> None:
    running = backup.submit(keys_of(range(4)), pages_of(range(4)))
    queued = backup.submit(keys_of([4]), pages_of([4]))
    assert running is not None
    assert queued is not None
    storage.entered.acquire(timeout=30)  # inside the first page
    closer = threading.Thread(target=backup.close)
    closer.start()
    while not backup._closed:
        pass
    storage.permits.release()
    closer.join(30)
    assert (running.done, running.n_ok, running.end) == (True, 1, OpEnd.CLOSED)
    assert (queued.done, queued.n_ok, queued.end) == (True, 0, OpEnd.CLOSED)
    with pytest.raises(InvariantBroken, match="after close"):
        backup.submit(keys_of([0]), pages_of([0]))


def test_a_write_stands_between_two_pages_while_a_load_runs(storage: HeldStorage) -> None:
    stands = threading.Event()

    class Watched(LoadGate):
        def wait_until_idle(self, timeout_s: float) -> bool:
            if self.n_loads:
                stands.set()
            return super().wait_until_idle(timeout_s)

    gate = Watched()
    backup = StorageBackup(storage, 100, gate=gate, longest_yield_s=60.0)
    began_s = time.perf_counter()
    op = backup.submit(keys_of(range(3)), pages_of(range(3)))
    assert op is not None
    storage.entered.acquire(timeout=30)  # inside page 0
    gate.load_begins("load")
    storage.permits.release(N_FREE)
    assert stands.wait(30)
    assert not op.wait(0.05)  # it has all permits and does not finish
    assert storage.calls == [("write", 1)]
    gate.load_ends("load")
    assert op.wait(30)
    assert op.n_ok == 3
    assert op.yielded_s >= 0.05
    assert 0 < op.wall_s <= time.perf_counter() - began_s - op.yielded_s, "standing behind loads is not writing"
    backup.close()


def test_steady_loading_slows_writes_and_does_not_stop_them(storage: HeldStorage) -> None:
    gate = LoadGate()
    gate.load_begins("load")  # never ends
    storage.permits.release(N_FREE)
    backup = StorageBackup(storage, 100, gate=gate, longest_yield_s=0.001)
    op = backup.submit(keys_of(range(3)), pages_of(range(3)))
    assert op is not None
    assert op.wait(30)
    assert op.n_ok == 3
    assert backup.stats().yielded_s >= 0.003
    backup.close()


def test_a_short_write_says_how_many_are_stored(open_storage: Open) -> None:
    storage = open_storage(n_pages=4)
    backup = StorageBackup(storage, 100)
    op = backup.submit(keys_of(range(6)), pages_of(range(6)))
    assert op is not None
    assert op.wait(30)
    assert (op.n_ok, op.end) == (4, OpEnd.SHORT)
    backup.close()

"""Laws of loads from L3: the caller never waits unless it asks to, and what arrived counts."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import numpy as np
import pytest
from fake_storage import HeldStorage
from storage_samples import Open, buffers, key_of, keys_of, page_of, pages_of

from hicachectl.errors import InvariantBroken, StorageError
from hicachectl.runtime.storage.gate import LoadGate
from hicachectl.runtime.storage.operation import OpEnd
from hicachectl.runtime.storage.prefetch import Prefetcher, PrefetchPolicy, deadline_s

N_FREE = 1000  # permits: nothing is held


@pytest.fixture
def storage() -> HeldStorage:
    held = HeldStorage()
    held.objects = {key_of(i): page_of(i).tobytes() for i in range(10)}
    return held


@pytest.fixture
def prefetcher(storage: HeldStorage) -> Iterator[Prefetcher]:
    prefetcher = Prefetcher(storage, batch_pages=4)
    yield prefetcher
    storage.permits.release(N_FREE)
    prefetcher.close()


def loaded(prefetcher: Prefetcher, n: int) -> int:
    op = prefetcher.submit(keys_of(range(n)), buffers(n))
    assert op.wait(30)
    return op.n_ok


def test_a_load_brings_every_page_byte_for_byte(open_storage: Open) -> None:
    storage = open_storage()
    storage.write(keys_of(range(40)), pages_of(range(40)))
    prefetcher, pages = Prefetcher(storage), buffers(40)
    op = prefetcher.submit(keys_of(range(40)), pages)
    assert op.wait(30)
    assert (op.n_ok, op.end, op.error) == (40, OpEnd.COMPLETE, None)
    assert all(np.array_equal(page, page_of(i)) for i, page in enumerate(pages))
    stats = prefetcher.stats()
    assert (stats.n_ops, stats.n_pages_ok, stats.read_bytes) == (1, 40, 40 * 256)
    assert stats.ends["complete"] == 1
    assert stats.wall_s == op.wall_s > 0
    prefetcher.close()


def test_submit_returns_at_once_and_another_thread_reads(storage: HeldStorage, prefetcher: Prefetcher) -> None:
    op = prefetcher.submit(keys_of(range(2)), buffers(2))
    assert not op.done, "it is held until we permit it"
    storage.permits.release()
    assert op.wait(30)
    assert storage.threads == {"hicache-prefetch"}


def test_reads_come_in_batches_and_n_ok_grows_with_them(storage: HeldStorage, prefetcher: Prefetcher) -> None:
    op = prefetcher.submit(keys_of(range(10)), buffers(10))
    storage.entered.acquire(timeout=30)
    assert op.n_ok == 0
    storage.permits.release()
    storage.entered.acquire(timeout=30)
    assert op.n_ok == 4
    storage.permits.release(2)
    assert op.wait(30)
    assert storage.calls == [("read", 4), ("read", 4), ("read", 2)]


def test_a_cancelled_load_ends_after_its_batch_and_keeps_what_arrived(
    storage: HeldStorage, prefetcher: Prefetcher
) -> None:
    op = prefetcher.submit(keys_of(range(10)), buffers(10))
    storage.entered.acquire(timeout=30)
    op.cancel()
    assert not op.done  # the buffers are still being filled
    storage.permits.release()
    assert op.wait(30)
    assert (op.n_ok, op.end) == (4, OpEnd.CANCELLED)
    assert storage.calls == [("read", 4)]


def test_a_missing_page_ends_the_load_short(storage: HeldStorage, prefetcher: Prefetcher) -> None:
    del storage.objects[key_of(5)]
    storage.permits.release(N_FREE)
    op = prefetcher.submit(keys_of(range(10)), buffers(10))
    assert op.wait(30)
    assert (op.n_ok, op.end) == (5, OpEnd.SHORT)
    assert len(storage.calls) == 2


def test_the_whole_path_is_touched_once_so_that_its_head_is_newest(
    storage: HeldStorage, prefetcher: Prefetcher
) -> None:
    storage.permits.release(N_FREE)
    assert prefetcher.submit(keys_of(range(10)), buffers(10)).wait(30)
    assert storage.touched == [keys_of(range(10))]


def test_after_a_load_in_batches_tails_go_before_heads(open_storage: Open) -> None:
    storage = open_storage(n_pages=8)
    storage.write(keys_of(range(8)), pages_of(range(8)))
    prefetcher = Prefetcher(storage, batch_pages=2)
    assert loaded(prefetcher, 8) == 8
    storage.write(keys_of([100, 101]), pages_of([100, 101]))
    assert storage.exists_prefix(keys_of(range(8))) == 6
    prefetcher.close()


def test_a_failing_storage_fails_the_load_and_not_the_thread(storage: HeldStorage, prefetcher: Prefetcher) -> None:
    storage.raises = OSError(5, "I/O error")
    storage.permits.release(N_FREE)
    failed = prefetcher.submit(keys_of(range(3)), buffers(3))
    assert failed.wait(30)
    assert (failed.end, failed.n_ok, failed.error) == (OpEnd.FAILED, 0, storage.raises)
    storage.raises = None
    assert loaded(prefetcher, 3) == 3
    assert prefetcher.stats().ends["failed"] == 1


def test_close_ends_running_and_queued_loads(storage: HeldStorage, prefetcher: Prefetcher) -> None:
    running = prefetcher.submit(keys_of(range(10)), buffers(10))
    queued = prefetcher.submit(keys_of(range(10)), buffers(10))
    storage.entered.acquire(timeout=30)
    closer = threading.Thread(target=prefetcher.close)
    closer.start()
    while not prefetcher._closed:
        pass
    storage.permits.release()
    closer.join(30)
    assert (running.done, running.n_ok, running.end) == (True, 4, OpEnd.CLOSED)
    assert (queued.done, queued.n_ok, queued.end) == (True, 0, OpEnd.CLOSED)
    with pytest.raises(InvariantBroken, match="after close"):
        prefetcher.submit(keys_of([0]), buffers(1))


def test_the_gate_is_up_from_submit_to_done(storage: HeldStorage) -> None:
    gate = LoadGate()
    prefetcher = Prefetcher(storage, gate=gate)
    first = prefetcher.submit(keys_of([0]), buffers(1))
    second = prefetcher.submit(keys_of([1]), buffers(1))
    assert gate.n_loads == 2
    storage.permits.release(2)
    assert first.wait(30)
    assert second.wait(30)
    assert gate.n_loads == 0
    prefetcher.close()


def interrupt_at(
    code: CodeType, line_has: str
) -> Callable[[FrameType, str, object], Callable[[FrameType, str, object], object] | None]:
    """Return a trace function that raises KeyboardInterrupt before the line of `code` that contains `line_has`."""
    lines, start = inspect.getsourcelines(code)
    wanted = start + next(i for i, line in enumerate(lines) if line_has in line)

    def inside(frame: FrameType, event: str, _: object) -> object:
        if event == "line" and frame.f_lineno == wanted:
            sys.settrace(None)
            raise KeyboardInterrupt
        return inside

    return lambda frame, event, _: inside if frame.f_code is code else None


@pytest.mark.parametrize("line_has", ["self._queue.put(op)", "self._gate.load_begins(op)", "return op"])
def test_an_interrupt_inside_submit_leaves_no_gate_up_and_close_returns(storage: HeldStorage, line_has: str) -> None:
    gate = LoadGate()
    prefetcher = Prefetcher(storage, gate=gate)
    storage.permits.release(N_FREE)
    before = sys.gettrace()
    sys.settrace(interrupt_at(Prefetcher.submit.__code__, line_has))
    try:
        with pytest.raises(KeyboardInterrupt):
            prefetcher.submit(keys_of([0]), buffers(1))
    finally:
        sys.settrace(before)
    after = prefetcher.submit(keys_of([0]), buffers(1))
    assert after.wait(30)
    assert gate.n_loads == 0
    prefetcher.close(30)


def test_an_interrupt_inside_any_notify_does_not_put_the_thread_to_sleep(storage: HeldStorage) -> None:
    prefetcher = Prefetcher(storage)
    storage.permits.release(N_FREE)
    before = sys.gettrace()
    sys.settrace(interrupt_at(threading.Condition.notify.__code__, "remove(waiter)"))
    try:
        op = prefetcher.submit(keys_of([0]), buffers(1))
    finally:
        sys.settrace(before)
    assert op.wait(30)
    prefetcher.close(30)


def test_close_says_so_when_storage_never_comes_back(storage: HeldStorage) -> None:
    prefetcher = Prefetcher(storage)
    op = prefetcher.submit(keys_of([0]), buffers(1))
    assert storage.entered.acquire(timeout=30)
    with pytest.raises(StorageError, match="not come back"):
        prefetcher.close(0.01)
    assert not op.done, "its buffers are still being filled"
    storage.permits.release()
    prefetcher.close(30)


def test_ctrl_c_in_close_comes_through_behind_the_read_that_is_under_way(storage: HeldStorage) -> None:
    prefetcher = Prefetcher(storage)
    op = prefetcher.submit(keys_of([0]), buffers(1))
    assert storage.entered.acquire(timeout=30), "a read that has not begun is dropped by close"

    def twice() -> None:
        while not prefetcher._closed:
            time.sleep(0.001)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        storage.permits.release()

    user = threading.Thread(target=twice)
    user.start()
    with pytest.raises(KeyboardInterrupt):
        prefetcher.close()
    assert op.done
    user.join(30)


def test_batches_are_bounded_in_bytes_and_hold_one_page_at_least(storage: HeldStorage) -> None:
    storage.permits.release(N_FREE)
    for batch_bytes, first in ((512, 2), (1, 1)):
        storage.calls.clear()
        prefetcher = Prefetcher(storage, batch_bytes=batch_bytes)
        assert loaded(prefetcher, 6) == 6
        assert storage.calls[0] == ("read", first)
        prefetcher.close()


def test_an_empty_load_is_complete(prefetcher: Prefetcher) -> None:
    op = prefetcher.submit([], [])
    assert op.wait(30)
    assert op.end is OpEnd.COMPLETE


def test_deadlines() -> None:
    numbers = {"base_s": 1.0, "per_ki_token_s": 0.25, "max_s": 10.0}
    assert deadline_s(PrefetchPolicy.BEST_EFFORT, 1 << 20, **numbers) == 0.0
    assert deadline_s(PrefetchPolicy.WAIT_COMPLETE, 1 << 20, **numbers) is None
    assert deadline_s(PrefetchPolicy.TIMEOUT, 8192, **numbers) == 3.0
    assert deadline_s(PrefetchPolicy.TIMEOUT, 0, **numbers) == 1.0
    assert deadline_s(PrefetchPolicy.TIMEOUT, 1 << 20, **numbers) == 10.0  # 257 s without the bound

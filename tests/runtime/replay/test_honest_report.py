"""What a report counts: pages with pages, every wait, and what was left undone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from hicachectl.runtime.account import Account
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.replay import driver
from hicachectl.runtime.replay.driver import Replay, ReplayConfig
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.report import make_report
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.storage.base import PageBytes, Stored
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.transfer.backends import CopyBackend, Direction, Submitted, make_backend
from hicachectl.runtime.tree import Slots

RECOMPUTE = RecomputeCost(0.01, 3e-5, 4e-10)
GEOMETRY = preset("tiny-4k", 512)


def config(storage: Path | None = None, **cache: object) -> ReplayConfig:
    fields = {"restore": "always", "strict": True, "seen_keys": 1000, **cache}
    return ReplayConfig(
        GEOMETRY, CacheConfig(**fields), Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, 200, CostModel(RECOMPUTE),  # type: ignore[arg-type]
        storage_path=storage, storage_bytes=1 << 28,
    )  # fmt: skip


class BadLoads:
    """Every load fails."""

    def __init__(self, inner: CopyBackend) -> None:
        self._inner, self.kind = inner, inner.kind

    def prepare(self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, n_planes: int) -> None:
        self._inner.prepare(direction, device_pool, host_pool, n_planes)

    def copy(
        self, direction: Direction, device_pool: DevicePool, host_pool: HostPool, device_slots: Slots, host_slots: Slots,
        planes: range,
    ) -> Submitted:  # fmt: skip
        if direction is Direction.LOAD:
            raise OSError("boom")
        return self._inner.copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


def test_requests_whose_restore_failed_waited_too_and_failures_are_counted_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "make_backend", lambda kind, layout, _: BadLoads(make_backend(kind, layout)))
    with Replay(synthetic("multi-turn", n_requests=60), config()) as replay:
        report = make_report(replay, replay.run())
        counters = replay.engine.counters(Direction.LOAD)  # type: ignore[union-attr]
    assert report.pages_restored == 0
    assert report.restore_wait.n == counters.transfers > 0
    assert sum(report.restore_wait_histogram.counts) == report.restore_wait.n
    assert report.paths["host_to_device"].failed_pages == counters.failed_pages > counters.failures
    assert report.gain.moved_s == replay.recorder.moved_s() > 0


def test_what_was_not_finished_is_counted_in_pages_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    write = FileStorage.write

    def held(self: FileStorage, keys: list[bytes], pages: list[PageBytes], **more: object) -> Stored:
        assert go.wait(60)
        return write(self, keys, pages, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(FileStorage, "write", held)
    with Replay(synthetic("one-shot", n_requests=2), config(tmp_path, restore_timeout_s=0.1)) as replay:
        report = make_report(replay, replay.run())
        go.set()
    assert report.unfinished_pages == {"host_to_storage": replay.cache.counters.published_pages}
    assert report.paths["host_to_storage"].pages == 0


def test_pages_that_found_no_room_are_dropped_and_not_failed(tmp_path: Path) -> None:
    with Replay(
        synthetic("multi-turn", n_requests=40), config(tmp_path, strict=False, storage_queue_pages=1)
    ) as replay:
        report = make_report(replay, replay.run())
        dropped = replay.cache.counters.store_dropped_pages
    path = report.paths["host_to_storage"]
    assert (path.dropped_pages, path.failed_pages) == (dropped, 0)
    assert dropped > 0


def _account(used: int, device: int, *, tail: int = 0, restore_s: float = 0.0, room_s: float = 0.0) -> Account:
    tokens = 8 * 512 + tail
    missed = {MissReason.IN_FLIGHT: tokens - used * 512}
    return Account(
        tokens, 512, 8, device, 8 - device, 0, used, used - device, 0, restore_s, missed, restore_s=restore_s, room_wait_s=room_s,
    )  # fmt: skip


def test_a_full_hit_saves_the_tokens_and_not_the_call() -> None:
    recorder = Recorder(GEOMETRY, 2)
    traced = TraceRequest(0, 0.0, 8 * 512, 0, np.arange(8), 0, None, None, None)
    keys = bytes(range(32)) * 8
    for used in (8, 7):
        recorder.add(traced, _account(used, 4), keys, RECOMPUTE, 0.0)
    saved = recorder.column("saved_s")
    assert saved[0] == pytest.approx(RECOMPUTE.skipped_s(4 * 512, 8 * 512)), "as decide.restore weighs it"
    assert saved[0] - saved[1] == pytest.approx(RECOMPUTE.skipped_s(7 * 512, 8 * 512)), "no step of a_s at the end"
    assert recorder.column("ttft_s")[0] == pytest.approx(RECOMPUTE.a_s), "a call is made for the last token"


def test_both_waits_are_in_the_time_to_first_token_and_in_what_was_moved() -> None:
    recorder = Recorder(GEOMETRY, 1)
    traced = TraceRequest(0, 0.0, 8 * 512, 0, np.arange(8), 0, None, None, None)
    recorder.add(traced, _account(8, 4, restore_s=0.25, room_s=0.5), bytes(range(32)) * 8, RECOMPUTE, 1.0)
    assert recorder.column("ttft_s")[0] == pytest.approx(RECOMPUTE.a_s + 0.75)
    assert recorder.moved_s() == 0.75

"""KV events from a publisher of the engines' wire on loopback: gaps, what is fetched again, restarts, broken batches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from live_writers import PAGE, batch

from hicachectl.errors import ExitCode, Unsupported, UsageError
from hicachectl.tuning.sizing.live_source import LiveSource, open_live

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'hicachectl[live]'")


class Publisher:
    """PUB and ROUTER as an engine's publisher has them; `drop` leaves a number out, as a slow subscriber would."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.kept: list[tuple[int, bytes]] = []
        self._number, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def send(self, payload: bytes, *, drop: bool = False, keep: bool = True, topic: bytes = b"kv@engine") -> None:
        number, self._number = self._number, self._number + 1
        if keep:
            self.kept.append((number, payload))
        if not drop:
            self._pub.send_multipart([topic, number.to_bytes(8, "big"), payload])

    def restart(self) -> None:
        self._number = 0

    def send_frames(self, *frames: bytes) -> None:
        self._pub.send_multipart(list(frames))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._pub.close(linger=0)
        self._context.term()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            who, empty, wanted = self._router.recv_multipart()
            for number, payload in self.kept:
                if number >= int.from_bytes(wanted, "big"):
                    self._router.send_multipart([who, empty, number.to_bytes(8, "big"), payload])
            self._router.send_multipart([who, empty, (-1).to_bytes(8, "big", signed=True), b""])
        self._router.close(linger=0)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


def subscribed(publisher: Publisher, *, replay: str | None = None) -> LiveSource:
    """Subscribe, and wait until the first batch arrives: what was sent before a subscription is lost by design."""
    source = open_live(publisher.endpoint, PAGE, replay=replay)
    end = time.monotonic() + 20
    while source.seen()["batches"] == 0 and time.monotonic() < end:
        publisher.restart()
        publisher.kept.clear()
        publisher.send(batch([1000], ts=0.0))
        source.poll(0.05)
    while source.poll(0.1):
        pass
    return source


def wait_for(source: LiveSource, n_batches: int) -> list[Any]:
    found, end = [], time.monotonic() + 20
    while source.seen()["batches"] < n_batches and time.monotonic() < end:
        found += source.poll(0.05)
    return [request.blocks.tolist() for request in [*found, *source.flush()]]


def test_stored_blocks_come_with_any_topic_and_a_whole_sequence_has_no_gap(publisher: Publisher) -> None:
    source = subscribed(publisher)
    n = source.seen()["batches"]
    publisher.send(batch([1, 2], ts=100.0))
    publisher.send(batch([1, 2, 3, 4], 2, ts=200.0), topic=b"")
    found = wait_for(source, n + 2)
    assert [len(blocks) for blocks in found[-2:]] == [2, 4]
    assert found[-1][:2] == found[-2]
    seen = source.seen()
    assert (seen["missed_batches"], seen["connected"], source.kind, source.block_tokens) == (0, 1, "kv-events", PAGE)
    source.close()


def test_missed_batches_are_counted_and_told(publisher: Publisher) -> None:
    source = subscribed(publisher)
    n = source.seen()["batches"]
    publisher.send(batch([1, 2], ts=100.0), drop=True)
    publisher.send(batch([3, 4], ts=200.0), drop=True)
    publisher.send(batch([5, 6], ts=300.0))
    assert [len(blocks) for blocks in wait_for(source, n + 1)][-1] == 2
    assert (source.seen()["missed_batches"], source.seen()["fetched_again"]) == (2, 0)
    assert any("gaps" in note for note in source.notes.sentences())
    source.close()


def test_missed_batches_are_fetched_from_the_replay_endpoint_as_far_as_it_has_them(publisher: Publisher) -> None:
    source = subscribed(publisher, replay=publisher.replay)
    n = source.seen()["batches"]
    publisher.send(batch([7], ts=90.0), drop=True, keep=False)
    publisher.send(batch([1, 2], ts=100.0), drop=True)
    publisher.send(batch([1, 2, 3, 4], 2, ts=200.0))
    found = wait_for(source, n + 2)
    assert [len(blocks) for blocks in found[-2:]] == [2, 4]
    assert (source.seen()["missed_batches"], source.seen()["fetched_again"]) == (1, 1)
    source.close()


def test_a_restarted_publisher_is_no_gap_and_is_told(publisher: Publisher) -> None:
    source = subscribed(publisher)
    for n in range(3):
        publisher.send(batch([n], ts=float(n)))
    wait_for(source, source.seen()["batches"] + 3)
    before = source.seen()["publisher_restarts"]
    publisher.restart()
    publisher.send(batch([9], ts=50.0))
    wait_for(source, source.seen()["batches"] + 1)
    assert source.seen()["publisher_restarts"] == before + 1
    assert source.seen()["missed_batches"] == 0
    source.close()


def test_broken_batches_are_tolerated_by_share_and_the_first_is_named(publisher: Publisher) -> None:
    source = subscribed(publisher)
    publisher.send(b"\xc1")
    wait_for(source, source.seen()["batches"] + 1)
    assert source.seen()["broken"] == 1
    publisher.send_frames(b"one frame")
    with pytest.raises(UsageError, match="not msgpack"):
        wait_for(source, source.seen()["batches"] + 1)
    source.close()


def test_a_batch_whose_time_is_no_number_is_a_broken_one_and_those_after_it_count(publisher: Publisher) -> None:
    source = subscribed(publisher)
    n = source.seen()["batches"]
    publisher.send(batch([1, 2], ts=100.0))
    publisher.send(batch([3, 4], ts=float("nan")))
    publisher.send(batch([5, 6], ts=200.0))
    publisher.send(batch([7, 8], ts=300.0))
    assert [len(blocks) for blocks in wait_for(source, n + 4)][-3:] == [2, 2, 2]
    assert source.seen()["broken"] == 1
    assert any("time nan is not finite" in note for note in source.notes.sentences())
    source.close()


def test_nobody_at_the_other_end_is_seen() -> None:
    context = zmq.Context()
    probe = context.socket(zmq.PUB)
    port = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(linger=0)
    context.term()
    source = open_live(f"tcp://127.0.0.1:{port}", PAGE)
    assert source.poll(0.1) == []
    assert source.seen()["connected"] == 0
    source.close()


def test_without_pyzmq_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(Unsupported) as caught:
        open_live("tcp://127.0.0.1:5557", PAGE)
    assert caught.value.exit_code is ExitCode.UNSUPPORTED
    assert "hicachectl[live]" in str(caught.value.hint)


@pytest.mark.parametrize("port", ["0", "65536", "99999", "000"])
def test_a_port_that_no_host_has_is_refused_not_waited_for(port: str) -> None:
    with pytest.raises(UsageError, match=f"port {port} is not from 1 to 65535") as caught:
        open_live(f"tcp://127.0.0.1:{port}", PAGE)
    assert caught.value.where == "--live"
    with pytest.raises(UsageError, match=f"port {port} ") as caught:
        open_live("tcp://127.0.0.1:5557", PAGE, replay=f"tcp://[::1]:{port}")
    assert caught.value.where == "--replay-endpoint"

"""KV events from an engine's ZeroMQ publisher, vLLM's or SGLang's (the same wire).

A message has three frames: topic, sequence number (8 bytes, big-endian), and a msgpack batch. What a slow or late
subscriber misses shows as a gap in the numbers. The publisher keeps its last batches: asked on its replay socket with
(empty, first number wanted), it answers with (empty, number, batch) for each and ends with the number -1. One endpoint is
one rank's cache; rank r publishes at port + r.

Source: docs/facts.md#kv-event-wire; vllm-project/vllm `vllm/distributed/kv_events.py`, class ZmqEventPublisher (also in sglang
`srt/disaggregation/kv_events.py`).
"""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.replay.kv_events import stored_in
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.tuning.sizing.live_parsers import EventParser, Tolerated

__all__ = ["EventSubscription", "is_endpoint"]

_ENDPOINT = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]*]+):([0-9]{1,5})|ipc://\S+")
_MOST_WAITING = 1_000_000
"""Messages kept while the main thread is at work elsewhere; past it ZeroMQ drops, which shows as a gap."""
_LAST_PORT = 65535
_REPLAY_S = 5.0
_END = (1 << 64) - 1
_PIECES = 1000


def is_endpoint(source: str) -> bool:
    """Whether a source names a publisher and no file. Pure."""
    return source.startswith(("tcp://", "ipc://"))


class EventSubscription:
    """Subscribed to one publisher, all topics. `replay` names its replay endpoint, None where it has none.

    Raises UsageError for an endpoint that is none, Unsupported (exit 5) where pyzmq or msgpack is not installed.
    """

    transport = "zmq"
    partial = False
    ended = None

    def __init__(self, endpoint: str, notes: Notes, *, replay: str | None = None) -> None:
        _require_endpoint(endpoint, "--live")
        if replay is not None:
            _require_endpoint(replay, "--replay-endpoint")
        try:
            import zmq
        except ImportError as error:
            raise Unsupported(
                "a publisher of KV events, but pyzmq is not installed", where=endpoint,
                hint="pip install 'hicachectl[live]', or follow a file",
            ) from error  # fmt: skip
        self.name, self.notes = endpoint, notes
        self._zmq: Any = zmq
        self._parser = EventParser(endpoint, notes)
        self._tolerated = Tolerated(notes, "batches")
        self._next: int | None = None
        self.n_bytes = self.n_missed = self.n_fetched = self.n_restarts = 0
        self.connected = False
        self._context: Any = zmq.Context()
        self._socket: Any = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, _MOST_WAITING)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._replay: Any = None
        try:
            self._socket.connect(endpoint)
            if replay is not None:
                self._replay = self._context.socket(zmq.DEALER)
                self._replay.connect(replay)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot connect: {error.strerror}", where=endpoint, hint="tcp://HOST:PORT") from error

    @property
    def kind(self) -> str:
        """What it reads."""
        return self._parser.kind

    @property
    def block_tokens(self) -> int | None:
        """Tokens a block; None before one was stored."""
        return self._parser.block_tokens

    def poll(self, timeout_s: float) -> list[TraceRequest]:
        """Return the requests that are over by now; waits up to `timeout_s` for the first batch.

        Raises UsageError where more than one batch in a hundred is broken.
        """
        found: list[TraceRequest] = []
        if self._monitor.poll(0):
            self._monitor.recv_multipart()
            self.connected = True
        if not self._socket.poll(max(0, int(1000 * timeout_s))):
            return found
        for _ in range(_PIECES):
            if not self._socket.poll(0):
                break
            found += self._take(self._socket.recv_multipart())
        return found

    def flush(self) -> list[TraceRequest]:
        """Return the requests whose last blocks were stored already."""
        return self._parser.flush()

    def position(self) -> dict[str, int] | None:
        """Return None: what was published is gone."""
        return None

    def seen(self) -> dict[str, int]:
        """Count what came, was broken, was missed, and was fetched again."""
        return {
            "bytes": self.n_bytes, "batches": self._tolerated.n_units, "broken": self._tolerated.n_bad,
            "missed_batches": self.n_missed, "fetched_again": self.n_fetched, "publisher_restarts": self.n_restarts,
            "connected": int(self.connected),
        }  # fmt: skip

    def close(self) -> None:
        """Disconnect."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _take(self, frames: list[bytes]) -> list[TraceRequest]:
        self.connected = True
        if len(frames) != 3 or len(frames[1]) != 8:
            shape = ", ".join(str(len(frame)) for frame in frames)
            return self._tolerated.take(lambda: self._refuse(f"a message of frames of {shape} bytes"))
        number = int.from_bytes(frames[1], "big")
        found: list[TraceRequest] = []
        if self._next is not None and number > self._next:
            found += self._fetch(self._next, number)
        elif self._next is not None and number < self._next:
            self.n_restarts += 1
            self.notes.count("times the publisher's numbers began anew: it was restarted", self.name)
        self._next = number + 1
        return found + self._batch(frames[2])

    def _batch(self, payload: bytes) -> list[TraceRequest]:
        self.n_bytes += len(payload)
        return self._tolerated.take(lambda: self._stored(payload))

    def _stored(self, payload: bytes) -> list[TraceRequest]:
        import msgpack  # type: ignore[import-untyped, unused-ignore]

        try:
            batch = msgpack.unpackb(payload, raw=False, strict_map_key=False)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            return self._refuse(f"not msgpack: {error}")
        found = []
        for ts, stored in stored_in(batch, self.name, self.n_bytes):
            found += self._parser.paths.take(ts, stored)
        return [self._parser.named(request) for request in found]

    def _refuse(self, what: str) -> list[TraceRequest]:
        raise UsageError(
            what,
            where=f"{self.name}, batch {self._tolerated.n_units}",
            hint="three frames: topic, number, msgpack batch",
        )

    def _fetch(self, first: int, end: int) -> list[TraceRequest]:
        """Ask for the batches `[first, end)` that were missed; count those that did not come."""
        found: list[TraceRequest] = []
        n_missing = end - first
        if self._replay is not None:
            until = monotonic() + _REPLAY_S
            self._replay.send_multipart([b"", first.to_bytes(8, "big")])
            while (left := until - monotonic()) > 0 and self._replay.poll(int(1000 * left)):
                frames = self._replay.recv_multipart()
                number = int.from_bytes(frames[-2], "big") if len(frames) >= 2 else _END
                if number == _END:
                    break
                if first <= number < end:
                    found += self._batch(frames[-1])
                    n_missing -= 1
                    self.n_fetched += 1
        if n_missing:
            self.n_missed += n_missing
            self.notes.count(f"gaps in the publisher's numbers, the last of {n_missing} batches", self.name)
        return found


def _require_endpoint(text: str, where: str) -> None:
    found, hint = _ENDPOINT.fullmatch(text), "such as tcp://127.0.0.1:5557"
    if found is None:
        raise UsageError(f"{text!r} is no endpoint", where=where, hint=hint)
    port = found[2]
    if port is not None and not 1 <= int(port) <= _LAST_PORT:
        raise UsageError(f"{text!r}: port {port} is not from 1 to {_LAST_PORT}", where=where, hint=hint)

"""The window of live requests: its counts are those of its file, its bounds, what a kill leaves, and when it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from live_writers import HEADER, PAGE, chats, trace_line

from hicachectl.errors import ExitCode, HostError, UsageError
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.confidence import growth_of
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.extents import runs_of
from hicachectl.tuning.sizing.live_collect import CHECKPOINT_S, Collector, WindowLimit, nothing_came, parse_window
from hicachectl.tuning.sizing.live_source import LiveSource, open_live
from hicachectl.tuning.sizing.live_window import LiveWindow
from hicachectl.tuning.sizing.window import Definition, window_of
from hicachectl.tuning.sizing.window_file import WindowFile


def request(blocks: Sequence[int], n_tokens: int | None = None, time_s: float = 0.0) -> TraceRequest:
    keys = np.array(blocks, np.int64)
    return TraceRequest(0, time_s, PAGE * len(keys) if n_tokens is None else n_tokens, 0, keys)


def test_what_is_told_meanwhile_is_what_the_file_says_afterwards(tmp_path: Path) -> None:
    window, file = LiveWindow(PAGE, PAGE), WindowFile.begin(tmp_path / "w.jsonl", PAGE, partial=True)
    for n, blocks in enumerate(chats(200)):
        keys = [*((block << 40) + 3 for block in blocks), 5000 + n]  # sparse ids, and a last page that is never whole
        one = request(keys, PAGE * len(keys) - 1, float(n))
        assert window.add(one)
        file.append([one])
    saved = window_of(open_trace(file.path), PAGE).full_blocks()
    curve = curve_of(saved)
    assert (window.n_requests, window.total_pages, window.distinct_pages) == (200, curve.total, curve.n_distinct)
    assert window.ceiling == curve.rate()
    assert window.growth(1.0) == growth_of(runs_of(saved), saved, Definition.D1, 1.0)
    file.close()


def test_blocks_of_several_pages_are_counted_in_pages() -> None:
    window = LiveWindow(2 * PAGE, PAGE)
    window.add(TraceRequest(0, 0.0, 3 * PAGE + 5, 0, np.array([1, 2], np.int64)))
    window.add(TraceRequest(1, 0.0, 4 * PAGE, 0, np.array([1, 2], np.int64)))
    assert (window.total_pages, window.distinct_pages, window.hit_pages) == (7, 4, 3)


def test_a_window_ends_at_its_bounds_and_says_which() -> None:
    window = LiveWindow(PAGE, PAGE, most_blocks=5)
    assert window.add(request([1, 2, 3]))
    assert window.full is None
    assert not window.add(request([1, 2, 3, 4, 5, 6]))
    assert "5 different blocks" in str(window.full)
    assert window.n_requests == 1
    window = LiveWindow(PAGE, PAGE, most_references=4)
    assert window.add(request([1, 2])) and window.add(request([1, 2]))
    assert "4 block references" in str(window.full)
    window = LiveWindow(PAGE, PAGE, most_requests=1)
    assert window.add(request([1, 2]))
    assert "1 requests" in str(window.full)


def test_ids_that_name_no_prefixes_are_refused_when_they_come() -> None:
    window = LiveWindow(PAGE, PAGE)
    window.add(request([1, 2]))
    with pytest.raises(UsageError, match="follows two different blocks"):
        window.add(request([3, 2]))


def test_a_file_goes_on_after_its_last_whole_line_or_where_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    file = WindowFile.begin(path, PAGE, partial=True)
    file.append([request([1])])
    one = file.n_bytes
    file.append([request([1, 2]), request([3])])
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.truncate(path, file.n_bytes - 4)
    again = WindowFile.go_on(path)
    assert again.n_bytes < file.n_bytes - 4
    again.append([request([4])])
    again.close()
    assert [r.blocks.tolist() for r in open_trace(path)] == [[1], [1, 2], [4]]
    WindowFile.go_on(path, one).close()
    assert [r.blocks.tolist() for r in open_trace(path)] == [[1]]
    with pytest.raises(HostError):
        WindowFile.begin(path, PAGE, partial=True)


@pytest.mark.parametrize(
    ("text", "seconds", "requests"), [("90s", 90.0, None), ("10m", 600.0, None), ("1.5h", 5400.0, None), ("5000", None, 5000), (None, None, None)]
)  # fmt: skip
def test_a_window_is_a_time_or_a_number(text: str | None, seconds: float | None, requests: int | None) -> None:
    limit = parse_window(text)
    assert (limit.seconds, limit.requests) == (seconds, requests)


@pytest.mark.parametrize("text", ["0", "0s", "-3", "10 minutes", "5d", "", "1.5", "9" * 5000])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no window"):
        parse_window(text)


class Hands:
    """A clock that each wait of the source moves on."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, 0.0
        self.source: LiveSource = open_live(str(path), PAGE)
        self.saved: list[tuple[int, int]] = []
        poll = self.source.poll

        def moved(timeout_s: float) -> list[TraceRequest]:
            self.now += timeout_s
            return poll(0.0)

        self.source.poll = moved  # type: ignore[method-assign]

    def collect(
        self, folder: Path, limit: WindowLimit, *, write: Any = (), asked: Any = lambda: False
    ) -> tuple[str, Collector]:
        collector = Collector(self.source, folder / "window.jsonl", PAGE, clock=lambda: self.now)
        script = iter(write)

        def tell(done: Collector, quiet_s: float) -> None:
            with self.path.open("a") as file:
                file.write(next(script, ""))

        def checkpoint(done: Collector) -> None:
            self.saved.append((done.n_requests, 0 if done.file is None else done.file.n_bytes))

        why = collector.collect(limit, asked=asked, checkpoint=checkpoint, tell=tell)
        self.source.close()
        return why, collector


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    path = tmp_path / "trace.jsonl"
    path.write_text(HEADER)
    return Hands(path)


def test_a_number_of_requests_ends_the_window_and_what_came_with_them_waits(hands: Hands, tmp_path: Path) -> None:
    lines = "".join(trace_line([n]) for n in range(10))
    why, done = hands.collect(tmp_path, WindowLimit(requests=7), write=[lines])
    assert why == "7 requests"
    assert (done.n_requests, [r.blocks.tolist() for r in done.waiting]) == (7, [[7], [8], [9]])
    assert open_trace(done.path).info().n_requests == 7


def test_time_silence_a_budget_and_a_request_to_stop_end_it(hands: Hands, tmp_path: Path) -> None:
    why, done = hands.collect(tmp_path, WindowLimit(seconds=60.0), write=[trace_line([1])])
    assert (why, done.n_requests) == ("60 s", 1)
    assert 60.0 <= done.elapsed_s < 61.0


def test_a_writer_that_stops_ends_it_after_a_while(hands: Hands, tmp_path: Path) -> None:
    why, done = hands.collect(tmp_path, WindowLimit(quiet_s=30.0), write=[trace_line([1])] * 100)
    assert why == "nothing came for 30 s"
    assert done.n_requests == 100
    assert done.elapsed_s > 45.0


def test_the_budget_and_ctrl_c_end_it(hands: Hands, tmp_path: Path) -> None:
    why, _ = hands.collect(tmp_path, WindowLimit(requests=9, budget_s=5.0))
    assert why == "time budget"
    again = Hands(hands.path)
    assert again.collect(tmp_path, WindowLimit(), asked=lambda: again.now > 3.0)[0] == "Ctrl-C"


def test_checkpoints_name_durable_bytes_and_the_last_one_all_of_them(hands: Hands, tmp_path: Path) -> None:
    _, done = hands.collect(
        tmp_path, WindowLimit(seconds=3.5 * CHECKPOINT_S), write=[trace_line([n]) for n in range(500)]
    )
    assert hands.saved[0] == (0, 0)
    assert len(hands.saved) == 5
    assert hands.saved[-1] == (done.n_requests, done.path.stat().st_size)


def test_bad_input_leaves_the_window_so_far(hands: Hands, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a JSON object"):
        hands.collect(tmp_path, WindowLimit(), write=[trace_line([1]), "x\n", "x\n"])
    assert hands.saved[-1][0] == 1
    assert open_trace(tmp_path / "window.jsonl").info().n_requests == 1


def test_blocks_that_pages_do_not_divide_are_refused_at_the_first_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(HEADER)
    hands = Hands(path)
    collector = Collector(hands.source, tmp_path / "window.jsonl", 48, clock=lambda: hands.now)
    with path.open("a") as file:
        file.write(trace_line([1]))
    with pytest.raises(UsageError, match="does not divide"):
        collector.collect(
            WindowLimit(), asked=lambda: False, checkpoint=lambda done: None, tell=lambda done, quiet: None
        )
    hands.source.close()


def test_a_window_without_a_request_says_what_was_seen_instead(hands: Hands) -> None:
    error = nothing_came(hands.source, "60 s")
    assert (error.exit_code, error.code) == (ExitCode.NO_RESULT, "HC-LIVE-EMPTY")
    assert "0 bytes" in str(error.why)
    hands.source.close()


def test_a_publisher_that_never_answered_is_to_be_looked_for_and_not_waited_for() -> None:
    silent: Any = SimpleNamespace(
        seen=lambda: {"bytes": 0, "connected": 0}, notes=Notes(), kind="kv-events", name="tcp://h:1"
    )
    error = nothing_came(silent, "60 s")
    assert "no publisher answered there" in str(error.why)
    assert "host and port" in str(error.hint)

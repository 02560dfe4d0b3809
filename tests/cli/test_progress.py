"""Progress on stderr."""

from __future__ import annotations

import io
import time

import pytest
from cli_runner import Terminal

from hicachectl.flags import GlobalFlags
from hicachectl.output import open_output
from hicachectl.progress import Progress, eta_range_s
from hicachectl.render.screen import Screen


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(kind: str, total: int | None = 100, width: int = 100) -> tuple[Progress, Clock, io.StringIO]:
    clock, stream = Clock(), io.StringIO()
    screen = Screen(stream, width=width)
    progress = Progress(
        screen, kind, "replay", total=total, unit="requests", clock=clock, wall=lambda: clock.now + 1_796_000_000
    )
    return progress, clock, stream


def test_plain_progress_writes_a_stamped_line_at_each_state_change_and_each_30_s() -> None:
    progress, clock, stream = make("plain")
    with progress:
        for second in range(1, 66):
            clock.now = float(second)
            progress.update(second)
            if second == 10:
                progress.enter("restore")
                progress.enter("restore")
    stamps = [line.split()[0] for line in stream.getvalue().splitlines()]
    seconds = [int(stamp[14:16]) * 60 + int(stamp[17:19]) for stamp in stamps]
    assert [s - seconds[0] for s in seconds] == [0, 10, 40, 65]


def test_there_is_no_eta_before_two_samples_and_then_it_is_a_range() -> None:
    assert eta_range_s([(0.0, 0)], 100) is None
    assert eta_range_s([(0.0, 0), (1.0, 10)], 100) is None
    low, high = eta_range_s([(0.0, 0), (1.0, 10), (3.0, 20)], 100) or (0, 0)
    assert 0 < low < high
    assert eta_range_s([(0.0, 0), (1.0, 0), (2.0, 0)], 100) is None


def test_the_eta_range_holds_the_truth_for_a_steady_rate() -> None:
    low, high = eta_range_s([(float(t), 5 * t) for t in range(10)], 100) or (0, 0)
    assert low == high == pytest.approx((100 - 45) / 5)


def test_none_is_silent() -> None:
    progress, clock, stream = make("none")
    with progress:
        clock.now = 100.0
        progress.update(50)
        progress.enter("x")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_bar_stays_on_one_line_and_leaves_nothing_behind(width: int) -> None:
    progress, clock, stream = make("bar", width=width)
    with progress:
        for step in range(1, 51):
            clock.now = step * 0.2
            progress.update(step)
    text = stream.getvalue()
    assert "\n" not in text
    assert all(len(part) < width for part in text.split("\r"))
    assert text.endswith("\r")


def test_a_stopped_piece_of_work_says_so() -> None:
    progress, _, stream = make("plain")

    def fails() -> None:
        with progress:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert "stopped after" in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("tty", "env", "asked", "kind"),
    [
        (True, {"TERM": "xterm"}, "auto", "bar"),
        (True, {"TERM": "xterm", "CI": "true"}, "auto", "plain"),
        (True, {"TERM": "dumb"}, "auto", "plain"),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, "auto", "plain"),
        (False, {}, "bar", "bar"),
        (True, {"TERM": "xterm"}, "none", "none"),
    ],
)
def test_bars_are_for_terminals_outside_ci(tty: bool, env: dict[str, str], asked: str, kind: str) -> None:
    stream = (Terminal if tty else io.StringIO)()
    assert open_output(GlobalFlags(progress=asked), env, stream, io.StringIO(), stream).progress == kind


def test_the_default_clocks_are_monotonic_and_wall_time() -> None:
    before = time.time()
    progress = Progress(Screen(io.StringIO(), width=80), "plain", "x")
    assert progress._wall() >= before

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicachectl.context import Context
from hicachectl.flags import GlobalFlags
from hicachectl.render.run_board import Board
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.workload import open_trace

N = 40


class Clock:
    """Time that goes on by `step_s` at every look."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s, self.looks = 0.0, step_s, 0

    def __call__(self) -> float:
        self.now += self.step_s
        self.looks += 1
        return self.now


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    lines = ['{"trace": 1, "block_tokens": 512, "scope": "global"}']
    for i in range(N):
        blocks = [0, *(10 * (i % 8) + j for j in range(1, 4))]
        lines.append(f'{{"time_s": {i}, "input_tokens": 2000, "output_tokens": 1, "blocks": {blocks}}}')
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines) + "\n")
    config = ReplayConfig(
        preset("tiny-4k", 512), CacheConfig(restore="always", strict=True), Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, 12,
        CostModel(RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)), storage_path=tmp_path / "l3", storage_bytes=1 << 20, trace_name="small",
    )  # fmt: skip
    (tmp_path / "l3").mkdir()
    with Replay(open_trace(path), config) as made:
        yield made


def context(progress: str, columns: int = 80) -> tuple[Context, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    flags = GlobalFlags(progress=progress)
    return Context(flags, {"COLUMNS": str(columns)}, io.StringIO(), out, err), out, err


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_board_fits_the_width_and_names_every_tier(replay: Replay, columns: int) -> None:
    cli, _, _ = context("none", columns)
    with Board(cli, replay, clock=Clock(0.5)) as board:
        assert replay.run(board.update) is Stop.COMPLETE
        lines = board.lines()
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    for word in ("RUN small", "L1 device", "L2 host", "L3 storage", "RESTORE", "MISSED", "NET GAIN"):
        assert word in text
    assert "N/A" not in text


def test_before_the_first_request_the_board_draws_without_figures(replay: Replay) -> None:
    cli, _, _ = context("none")
    with Board(cli, replay, clock=Clock(0.5)) as board:
        assert "0 of 40 requests" in board.lines()[0]


def test_a_bar_is_drawn_on_stderr_only_and_taken_off_at_the_end(replay: Replay) -> None:
    cli, out, err = context("bar")
    with Board(cli, replay, clock=Clock(0.1)) as board:
        replay.run(board.update)
        board.close()
    assert out.getvalue() == ""
    assert "L2 host" in err.getvalue()
    assert err.getvalue().rstrip("\r\n").endswith("\x1b[2K")


def test_between_two_drawings_an_update_only_looks_at_the_clock(replay: Replay) -> None:
    clock = Clock(0.001)
    cli, _, err = context("bar")
    with Board(cli, replay, clock=clock) as board:
        replay.run(board.update)
        assert err.getvalue().count("RUN small") == 2  # at the start and at the first request
    assert clock.looks == N + 1


def test_without_a_terminal_lines_are_time_stamped_and_rare(replay: Replay) -> None:
    cli, out, err = context("plain")
    with Board(cli, replay, clock=Clock(1.0), wall=lambda: 0.0) as board:
        replay.run(board.update)
    lines = err.getvalue().splitlines()
    assert out.getvalue() == ""
    assert all(line.startswith("1970-01-01T00:00:00Z replay small  ") for line in lines)
    assert 3 <= len(lines) <= 6  # start, each 30 s, end
    assert "40/40 requests 100 %" in lines[-1]
    assert "of tokens: device" in lines[-1]


def test_with_progress_none_nothing_is_said(replay: Replay) -> None:
    cli, out, err = context("none")
    with Board(cli, replay, clock=Clock(1.0)) as board:
        replay.run(board.update)
    assert (out.getvalue(), err.getvalue()) == ("", "")


def test_recent_figures_forget_what_is_older_than_a_minute(replay: Replay) -> None:
    cli, _, _ = context("none")
    with Board(cli, replay, clock=Clock(10.0)) as board:
        replay.run(board.update)
        assert board._samples[-1].at_s - board._samples[0].at_s <= 70.0
        assert board._samples[0].requests >= N - 8
        assert "last 1 min 00 s" in "\n".join(board.lines())


def test_the_board_says_what_the_storage_folder_held_before(replay: Replay) -> None:
    cli, _, _ = context("none")
    with Board(cli, replay, clock=Clock(0.5)) as board:
        assert "at the start" not in "\n".join(board.lines())
        replay.held_at_start = 1_200
        assert "L3 held 1 200 pages at the start" in board.lines()

"""Golden screens of a hit-rate curve. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from small_traces import conversations, write_trace

from hicachectl.render.screen import Screen
from hicachectl.render.trace_curve import draw_curve
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.trace_data import curve_data
from hicachectl.tuning.sizing.measure import Order, measure
from hicachectl.tuning.sizing.window import Definition

FOLDER = Path(__file__).parent
ROWS = [*conversations(40, 6, 1), *conversations(25, 6, 2)]


def draw(name: str, width: int, folder: Path, *, tty: bool = True) -> str:
    trace = open_trace(write_trace(folder / "trace.jsonl", ROWS))
    if name == "trace-curve":
        measured, page_bytes = measure(trace, Definition.D3), 64 << 10
    else:
        measured, page_bytes = measure(trace, policy=Order.FIFO, capacities=[50, 100, 240], warm_half=True), None
    data, _ = curve_data(measured, "mooncake", "chats.jsonl", page_bytes)
    stream = io.StringIO()
    draw_curve(Screen(stream, width=width, ascii=True, tty=tty), data)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["trace-curve", "trace-curve-fifo"])
def test_the_screen_is_as_recorded(name: str, width: int, tmp_path: Path) -> None:
    text, path = draw(name, width, tmp_path), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_bars_are_drawn_on_a_terminal_alone(tmp_path: Path) -> None:
    assert "##" in draw("trace-curve", 100, tmp_path)
    assert "#" not in draw("trace-curve", 100, tmp_path, tty=False)

"""Golden screens of a sizing, from the document of a real one. UPDATE_SCREENS=1 rewrites the texts; read them."""

from __future__ import annotations

import copy
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hicachectl.render.screen import Screen
from hicachectl.render.size_report import size_page
from hicachectl.render.tune_size import draw_size

FOLDER = Path(__file__).parent
DOCUMENT = json.loads((FOLDER / "tune-size.json").read_text())


def failed() -> Any:
    """The same with a last step that found no memory, and another policy."""
    data = copy.deepcopy(DOCUMENT)
    last = data["steps"][-1]
    last |= {
        "state": "failed",
        "trial": None,
        "measured_hits": None,
        "measured_hit_rate": None,
        "difference_pages": None,
    }
    last["reason"] = "no address range of 410353664 bytes for a pool"
    data["steps"][0] |= {"state": "differs", "resumed": True}
    data["choice"]["pages"] = last["pages"]
    data |= {"ended": "a step failed", "waterfall": data["waterfall"][:1]}
    data["policies"] = [{"policy": "lru, write_back", "hit_rate": 0.3712, "backed_up_pages": 1200}]
    return data


DRAWN = {"tune-size": lambda: DOCUMENT, "tune-size-failed": failed}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    draw_size(Screen(stream, width=width, ascii=True), DRAWN[name](), explain=name == "tune-size")
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text


def test_the_page_escapes_what_a_trace_is_called() -> None:
    page = size_page({**DOCUMENT, "trace": "<b>&"}, "")
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page

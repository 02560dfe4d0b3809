"""Golden screens of tune from hand-made plans and reports. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tune_values import BARE, EMPTY, ITEMS, NOTHING, PLAN, ROOT_COMPLEX

from hicachectl.render.screen import Screen
from hicachectl.render.topo_screen import Seen
from hicachectl.render.tune_plan import PlanShown, draw_plan

FOLDER = Path(__file__).parent
WIDTHS = (80, 100, 120)
LIVE = Seen(None, "2026-11-29T14:02:11Z")
SNAPSHOT = Seen("8n8x-4up16", "2026-11-29T14:02:11Z", 3 * 86400.0)
MOVED = (
    "boot id 5d1e0a11-22c4-4e9e-8f2e-6a1d8d5f0c01 -> 77aa0b1c-0000-4e9e-8f2e-6a1d8d5f0c02",
    "kernel 6.8.0 -> 6.9.1",
)

DRAWN: dict[str, Callable[[Screen], None]] = {
    "tune-plan": lambda s: draw_plan(s, PlanShown(PLAN, LIVE, saved="plan.json")),
    "tune-plan-snapshot": lambda s: draw_plan(s, PlanShown(ROOT_COMPLEX, SNAPSHOT)),
    "tune-plan-nothing": lambda s: draw_plan(s, PlanShown(NOTHING, LIVE, saved="plan.json")),
    "tune-plan-only": lambda s: draw_plan(s, PlanShown(BARE, LIVE, as_root=True)),
    "tune-plan-empty": lambda s: draw_plan(s, PlanShown(EMPTY, LIVE)),
    "tune-show-stale": lambda s: draw_plan(s, PlanShown(BARE, moved=MOVED, saved="plan.json")),
}


def draw(name: str, width: int, *, wide: bool = False) -> str:
    stream = io.StringIO()
    DRAWN[name](Screen(stream, width=width, ascii=True, wide=wide))
    return stream.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DRAWN)
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    text, path = draw(name, width), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_address_and_no_number_of_a_plan_is_cut_at_any_width(width: int) -> None:
    words = draw("tune-plan", width, wide=True).split()
    for one in ITEMS:
        if one.subject is not None:
            assert one.subject in words
        if one in PLAN.changes:
            assert {one.show(one.old), one.show(one.new)} <= set(words)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_fits_the_width(width: int) -> None:
    assert max(map(len, draw("tune-plan", width).splitlines())) <= width


@pytest.mark.parametrize("name", ["tune-plan", "tune-plan-snapshot"])
def test_the_accelerators_bit_and_the_root_complex_stand_apart(name: str) -> None:
    lines = draw(name, 100).splitlines()
    endpoint = [line for line in lines if "pcie.ido-request" in line and line.strip()[:1] in "~=!i"]
    policy = [line for line in lines if "HC-RC-ORDER-UNKNOWN" in line or "rc.order-policy" in line]
    assert endpoint
    assert policy
    assert not set(endpoint) & set(policy)

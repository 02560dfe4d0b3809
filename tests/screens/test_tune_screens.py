"""Golden screens of tune from hand-made plans and reports. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tune_values import (
    ALL_OK,
    APPLIED,
    BACK,
    BARE,
    CHECKED,
    CUT,
    EMPTY,
    ITEMS,
    NOTHING,
    PARTIAL,
    PLAN,
    ROOT_COMPLEX,
    RUNS,
    STUCK,
    UNDONE,
)

from hicachectl.render.screen import Screen
from hicachectl.render.topo_screen import Seen
from hicachectl.render.tune_apply import draw_applied
from hicachectl.render.tune_plan import PlanShown, draw_plan
from hicachectl.render.tune_runs import draw_history, draw_rollback, draw_status
from hicachectl.render.tune_shell import draw_shell
from hicachectl.render.tune_unit import draw_unit
from hicachectl.render.tune_verify import draw_verify
from hicachectl.tuning.host.mounts import Mount
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.shell_lines import shell_steps
from hicachectl.tuning.target import Rule
from hicachectl.tuning.unit import boot_files

FOLDER = Path(__file__).parent
WIDTHS = (80, 100, 120)
LIVE = Seen(None, "2026-11-29T14:02:11Z")
SNAPSHOT = Seen("8n8x-4up16", "2026-11-29T14:02:11Z", 3 * 86400.0)
SHM_MOUNT = {"/dev/shm": Mount("/dev/shm", "tmpfs", ("rw", "size=8g"), "/", ("rw", "nosuid", "nodev"))}
ANY_OF = replace(CHECKED.items[0], rule=Rule.ONE_OF, wanted=("advise", "within_size"), seen="never")
MOVED = (
    "boot id 5d1e0a11-22c4-4e9e-8f2e-6a1d8d5f0c01 -> 77aa0b1c-0000-4e9e-8f2e-6a1d8d5f0c02",
    "kernel 6.8.0 -> 6.9.1",
)

BOOT, STATE = PLAN.fingerprint.boot_id, "/var/lib/hicachectl"

DRAWN: dict[str, Callable[[Screen], None]] = {
    "tune-plan": lambda s: draw_plan(s, PlanShown(PLAN, LIVE, saved="plan.json")),
    "tune-plan-snapshot": lambda s: draw_plan(s, PlanShown(ROOT_COMPLEX, SNAPSHOT)),
    "tune-plan-nothing": lambda s: draw_plan(s, PlanShown(NOTHING, LIVE, saved="plan.json")),
    "tune-plan-only": lambda s: draw_plan(s, PlanShown(BARE, LIVE, as_root=True)),
    "tune-plan-empty": lambda s: draw_plan(s, PlanShown(EMPTY, LIVE)),
    "tune-shell": lambda s: draw_shell(s, PLAN, shell_steps(PLAN), ()),
    "tune-shell-stale": lambda s: draw_shell(s, PLAN, shell_steps(PLAN), MOVED),
    "tune-unit": lambda s: draw_unit(
        s,
        boot_files(
            PLAN,
            plan_file="/etc/hicachectl/plan.json",
            program=["/usr/bin/hicachectl"],
            engines=["sglang.service"],
            mounts=SHM_MOUNT,
        ),
        engines=["sglang.service"],
    ),
    "tune-unit-files": lambda s: draw_unit(
        s,
        boot_files(
            PLAN,
            plan_file="/tmp/plan.json",
            program=["/usr/bin/hicachectl"],
            engines=["a.service", "b.service"],
            require=True,
        ),
        ["the plan /tmp/plan.json lies in a folder that a boot empties: put it below /etc/hicachectl or /opt"],
        [Path("boot/hicachectl-tune.service"), Path("boot/fstab")],
        engines=["a.service", "b.service"],
        require=True,
    ),
    "tune-apply": lambda s: draw_applied(s, APPLIED),
    "tune-apply-undone": lambda s: draw_applied(s, UNDONE),
    "tune-apply-partial": lambda s: draw_applied(s, PARTIAL),
    "tune-verify": lambda s: draw_verify(s, CHECKED, 3, (("numa.balancing", "pools are not bound"),)),
    "tune-verify-moved": lambda s: draw_verify(
        s, replace(CHECKED, items=(ANY_OF,)), 3, moved=("host c12-07 -> c12-08",)
    ),
    "tune-verify-ok": lambda s: draw_verify(s, ALL_OK, 0),
    "tune-status": lambda s: draw_status(s, "c12-07", BOOT, STATE, RUNS),
    "tune-status-cut": lambda s: draw_status(s, "c12-07", BOOT, STATE, CUT),
    "tune-status-busy": lambda s: draw_status(s, "c12-07", BOOT, STATE, CUT, "held by pid 77 (root) since 11:20:40Z"),
    "tune-status-none": lambda s: draw_status(s, "c12-07", BOOT, STATE, RUNS[:2]),
    "tune-history": lambda s: draw_history(s, STATE, CUT),
    "tune-rollback": lambda s: draw_rollback(s, BACK, items=True),
    "tune-rollback-left": lambda s: draw_rollback(s, STUCK, items=True),
    "tune-rollback-dry": lambda s: draw_rollback(s, BACK, items=True, dry_run=True),
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
            assert any(one.subject in word for word in words), one.subject
        if one in PLAN.changes:
            assert {one.show(one.old), one.show(one.new)} <= set(words)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", sorted(set(DRAWN) - {"tune-shell", "tune-shell-stale", "tune-unit", "tune-unit-files"})
)
def test_a_screen_fits_the_width(name: str, width: int) -> None:
    lines = [line for line in draw(name, width).splitlines() if "/" not in line]  # a path is never broken
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", ["tune-plan", "tune-plan-snapshot"])
def test_the_accelerators_bit_and_the_root_complex_stand_apart(name: str) -> None:
    lines = draw(name, 100).splitlines()
    endpoint = [line for line in lines if "pcie.ido-request" in line and line.strip()[:1] in "~=!i"]
    policy = [line for line in lines if "HC-RC-ORDER-UNKNOWN" in line or "rc.order-policy" in line]
    assert endpoint
    assert policy
    assert not set(endpoint) & set(policy)


def test_what_needs_nothing_is_told_and_not_warned_of() -> None:
    stream = io.StringIO()
    alone = replace(
        next(i for i in ITEMS if i.kind is ItemKind.SKIP and i.uplink),
        reason="only 1 shares its uplink", remedy="none is needed: nothing competes with it on the way", code=None,
    )  # fmt: skip
    draw_plan(Screen(stream, width=100, ascii=True), PlanShown(replace(PLAN, items=(alone,)), LIVE))
    (line,) = [line for line in stream.getvalue().splitlines() if "only 1 shares" in line]
    assert line.startswith("  i pcie.ido-request")

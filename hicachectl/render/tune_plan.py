"""The screen of a plan: what changes and why, what is there already, what is skipped and what would make it possible.

A change is ~, what holds already =, a skip !, what is only told i. Items that say the same stand together; the places of
a group are its uplinks, and every address of it is on the line below. An accelerator's own ordering bit and what the root
complex does with it are two settings, and two items here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width
from hicachectl.render.topo_screen import Seen
from hicachectl.render.tune_words import (
    change_text,
    grouped,
    hang,
    head_line,
    keeps_until_boot,
    kinds_text,
    owner_text,
    places,
    short_id,
    spread,
    values_text,
)
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.plan import Plan
from hicachectl.units import counted

__all__ = ["PlanShown", "draw_plan", "draw_stale"]

_DETAIL = " " * 6
_ENDPOINT_ORDER, _ROOT_ORDER = "pcie.ido-", "rc."


@dataclass(frozen=True)
class PlanShown:
    """A plan and what the screen says around it.

    `seen` is the host it was made from, None when it was read from a file. `moved` says what no longer fits, empty when it fits;
    `saved` is the file it was saved to or read from. `as_root`: no sudo is needed in the next command. `line` made the plan;
    `guided`: the guide asks next, so no command has to be typed. `recorded`: the host is a recording, where nothing is applied.
    """

    plan: Plan
    seen: Seen | None = None
    moved: tuple[str, ...] = ()
    saved: str | None = None
    as_root: bool = False
    line: str = "hicachectl tune plan"
    guided: bool = False
    recorded: bool = False


def draw_plan(screen: Screen, shown: PlanShown) -> None:
    """Draw the whole plan."""
    plan = shown.plan
    _header(screen, shown)
    draw_stale(screen, shown)
    _changes(screen, plan.changes)
    _same(screen, _of(plan, ItemKind.SAME))
    _told(screen, "!", "skip: ", _of(plan, ItemKind.SKIP))
    _told(screen, "i", "", _of(plan, ItemKind.REPORT))
    _two_settings(screen, plan)
    _footer(screen, shown)


def draw_stale(screen: Screen, shown: PlanShown) -> None:
    """Draw the banner of a plan that no longer fits; nothing when it fits."""
    if not shown.moved:
        return
    screen.print("STALE  this plan does not fit this host now; apply would refuse it (exit 8)", "error")
    for line in shown.moved:
        screen.paragraph("       ", line, "error")


def _of(plan: Plan, kind: ItemKind) -> list[Item]:
    return [item for item in plan.items if item.kind is kind]


def _header(screen: Screen, shown: PlanShown) -> None:
    plan, about = shown.plan, shown.plan.about
    parts = [
        f"PLAN {plan.id}",
        f"profile {plan.choices.profile} rev {plan.choices.revision}",
        f"host {about.host or '?'}",
        f"boot {short_id(plan.fingerprint.boot_id)}",
        kinds_text(plan.counts()),
    ]
    seen = [f"made {about.made_at}"] if shown.seen is None or shown.seen.name is None else [str(shown.seen)]
    spread(screen, [*parts, *seen], "bold")
    if plan.choices.only:
        screen.paragraph("  ", f"only {' '.join(plan.choices.only)}: items of other settings are not in this plan")
    allowed = [
        flag
        for flag, given in (
            ("--bound", plan.choices.bound),
            ("--allow-isolation-loss", plan.choices.allow_isolation_loss),
            ("--online", plan.choices.online),
            ("--persist-files", plan.choices.persist_files),
            ("--in-guest", plan.choices.in_guest),
        )
        if given
    ]
    if allowed:
        screen.paragraph("  ", f"allowed by the line: {' '.join(allowed)}")


def _changes(screen: Screen, items: Sequence[Item]) -> None:
    """Draw each setting's changes: a line a place, then once why, who would undo it, and what to know."""
    heads = {id(group[0]): _head(group) for group in _by_place(items)}
    width = max((cell_width(name) for name, _ in heads.values()), default=0)
    change_width = max((cell_width(text) for _, text in heads.values()), default=0)
    for of_knob in grouped(items, lambda item: item.knob):
        for group in _by_place(of_knob):
            name, text = heads[id(group[0])]
            first = group[0]
            head_line(screen, "~", ((name, width), (text, change_width)), f"undo: {first.undo}; {first.privilege}")
            _addresses(screen, group)
        _reasons(screen, of_knob)


def _by_place(items: Sequence[Item]) -> list[list[Item]]:
    """Changes that read the same on one line: of one setting, below one uplink, from and to the same value."""
    return grouped(
        items,
        lambda item: (item.knob, item.uplink or item.id, item.show(item.old), item.show(item.new), item.undo, item.privilege),
    )  # fmt: skip


def _head(group: Sequence[Item]) -> tuple[str, str]:
    first = group[0]
    where = first.uplink or (first.subject if len(group) == 1 else None)
    return f"{first.knob} {where}" if where else first.knob, change_text(first)


def _addresses(screen: Screen, group: Sequence[Item]) -> None:
    named = [item.subject for item in group if item.subject is not None and item.uplink is not None]
    if named:
        screen.paragraph(_DETAIL, " ".join(named))


def _reasons(screen: Screen, items: Sequence[Item]) -> None:
    first = items[0]
    for why, origin in dict.fromkeys((item.why, item.origin) for item in items):
        screen.paragraph(_DETAIL + "why: ", f"{why} [{origin}]", "dim")
    for owner in dict.fromkeys(owner for item in items for owner in item.owners):
        screen.paragraph(_DETAIL + "at boot: ", f"{owner_text(owner)}; this change is lost then", "warn")
    for note in dict.fromkeys(note for item in items for note in item.notes):
        screen.paragraph(_DETAIL + "note: ", note)
    if screen.wide:
        load = (
            f"only a load shows its effect: {first.probe}" if first.probe else "nothing shows its effect but its value"
        )
        proof = f"proof: {first.proof}" if first.proof else load
        screen.paragraph(_DETAIL, f"{first.title}; source {first.source}; {proof}")
        for item in items:
            assert item.target is not None
            register = item.target.register
            bits = f" at {register.offset:#x}, {register.width} bits, mask {register.mask:#x}" if register else ""
            screen.paragraph(_DETAIL, f"{item.target.path}{bits}")


def _same(screen: Screen, items: Sequence[Item]) -> None:
    """Draw what holds already, a group a setting, as many on a line as fit."""
    line = " "
    for group in grouped(items, lambda item: item.knob):
        where = places(group)
        many = f" ({len(group)} functions)" if len(group) > len(where) > 0 else ""
        text = " ".join(["=", group[0].knob, *where]) + many + f" {values_text(group)}"
        if line.strip() and cell_width(line) + 3 + cell_width(text) > screen.width:
            screen.print(line)
            line = " "
        if not line.strip() and cell_width(text) + 2 > screen.width:
            screen.paragraph("  ", text)
            continue
        line = f"{line} {text}" if not line.strip() else f"{line}   {text}"
    if line.strip():
        screen.print(line)
    if screen.wide:
        for item in items:
            screen.paragraph(_DETAIL, f"{item.id} {item.show(item.old)} ({item.origin})")


def _told(screen: Screen, sign: str, word: str, items: Sequence[Item]) -> None:
    """Draw what is not written: once a reason, with every place it holds for and what would help; a note once."""
    told: set[str] = set()
    for group in grouped(items, lambda item: (item.knob, item.reason, item.code, item.remedy)):
        first, style = group[0], "warn" if sign == "!" else None
        subjects = [item.subject for item in group if item.subject is not None]
        where = [*places(group)] if any(item.uplink for item in group) else subjects
        said = all(item.old is None or _says(item.reason or "", item.show(item.old)) for item in group)
        held = "" if said else f"now {values_text(group)}: "
        code = f" ({first.code})" if first.code else ""
        label = f"  {sign} {first.knob}  "
        if first.remedy is not None and first.remedy.startswith("none is needed"):
            label, style = label.replace("!", "i", 1), None  # nothing is wrong with it
        hang(
            screen, label, f"{' '.join(where)}{'  ' if where else ''}{word}{held}{first.reason or 'no reason given'}{code}", style
        )  # fmt: skip
        if any(item.uplink for item in group):
            screen.paragraph(_DETAIL, " ".join(subjects))
        if first.remedy and first.remedy != "nothing to do":
            screen.paragraph(_DETAIL + "-> ", first.remedy)
        for note in dict.fromkeys(note for item in group for note in item.notes):
            if note not in told:
                screen.paragraph(_DETAIL + "note: ", note)
            told.add(note)


def _says(reason: str, value: str) -> bool:
    """Whether a reason names the value itself, not a longer word or number that holds it."""
    return re.search(rf"(?<![\w=.]){re.escape(value)}(?![\w=])", reason) is not None


def _two_settings(screen: Screen, plan: Plan) -> None:
    """Say that the root complex decides too, where a plan has the accelerators' bit and no item of the root complex."""
    knobs = {item.knob for item in plan.items}
    if any(k.startswith(_ENDPOINT_ORDER) for k in knobs) and not any(k.startswith(_ROOT_ORDER) for k in knobs):
        hang(
            screen,
            "  note: root complex: ",
            "whether it reorders by ID what accelerators mark is another setting; no recipe here has its address (HC-RC-ORDER-UNKNOWN)",
        )
        screen.paragraph(_DETAIL + "-> ", "hicachectl tune recipe checklist hygon: what to ask the vendor")


def _footer(screen: Screen, shown: PlanShown) -> None:
    plan = shown.plan
    checked = len(plan.changes) + len(_of(plan, ItemKind.SAME))
    probes = dict.fromkeys(item.probe for item in plan.changes if item.probe)
    if plan.changes:
        proved = f"; with --prove: measured by {', '.join(map(str, probes))}, kept only on a gain" if probes else ""
        screen.paragraph("  ", f"after apply: verify {counted(checked, 'item')}{proved}")
        if any(map(keeps_until_boot, plan.changes)) and not shown.moved and not _is_recording(shown):
            kept = _file(shown) or "PLAN"
            screen.paragraph(
                "  ", f"lost at the next boot; to keep it: hicachectl tune unit {kept}, anew after each kernel update"
            )
    saved = "" if shown.saved is None else f"Saved {shown.saved} (0600). " if shown.seen is not None else ""
    sudo = "" if shown.as_root else "sudo "
    again = f"Check again: hicachectl tune verify {_file(shown)}" if shown.saved else ""
    nothing = "Nothing to change. " if checked else "Nothing is planned: no setting could be compared. "
    nothing = "" if plan.changes else nothing
    if shown.moved:
        text = "Next: hicachectl tune plan --output-file PLAN"
    elif _is_recording(shown):
        text = f"{saved}{nothing}A recorded host: this plan can be read, not applied here."
    elif not plan.changes:
        text = f"{saved}{nothing}{again}"
    elif shown.guided:
        text = ""
    elif shown.saved is None:
        text = f"Next: {shown.line} --output-file plan.json"
    else:
        text = f"{saved}Next: {sudo}hicachectl tune apply {_file(shown)}"
    if text:
        hang(screen, "", text, indent=2)


def _is_recording(shown: PlanShown) -> bool:
    return shown.recorded or (shown.seen is not None and shown.seen.name is not None)


def _file(shown: PlanShown) -> str:
    return "" if shown.saved is None else shlex.quote(shown.saved)

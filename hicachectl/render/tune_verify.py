"""The screen of verify: what is not as it was set, with both values and where it was read; what is, in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width
from hicachectl.render.tune_words import hang, wanted_text
from hicachectl.tuning.outcome import Checked, Verdict, VerifyReport
from hicachectl.tuning.target import Rule, show_value

__all__ = ["HINTS", "draw_verify"]

HINTS = {
    Verdict.DIFFERS: "hicachectl tune plan shows what it would take; whoever else writes it must stop first",
    Verdict.UNKNOWN: "read it with the privilege it needs: sudo hicachectl tune verify",
    Verdict.EXPIRED: "hicachectl tune plan, then apply; to keep it over boots: hicachectl tune unit",
}
"""What to do about each verdict that is not ok."""

_RULES = {Rule.EQUAL: "equal", Rule.AT_LEAST: "at least", Rule.ONE_OF: "any of these"}
_SIGNS = {Verdict.DIFFERS: "x", Verdict.UNKNOWN: "?", Verdict.EXPIRED: "-"}
_STYLES = {Verdict.DIFFERS: "error", Verdict.UNKNOWN: "warn", Verdict.EXPIRED: "warn"}


def draw_verify(
    screen: Screen,
    report: VerifyReport,
    exit_code: int,
    skipped: Sequence[tuple[str, str]] = (),
    hints: Mapping[Verdict, str] = HINTS,
    moved: Sequence[str] = (),
) -> None:
    """Draw the verdicts with reasons, likely writers and what to do, and the items that the plan itself skipped, which are not counted.

    `moved` says what makes this another host than the plan's; `hints` are what to do about each verdict.
    """
    counts = [
        f"{report.count(v)} {v.value}"
        for v in Verdict
        if v in (Verdict.OK, Verdict.DIFFERS, Verdict.UNKNOWN) or report.count(v)
    ]
    screen.print(f"VERIFY against {report.against}  {', '.join(counts)}  exit {exit_code}", "bold")
    if moved:
        screen.print("STALE  the plan was made for another host, or for this one before it changed", "error")
        for line in moved:
            screen.paragraph("       ", line, "error")
    for item in report.items:
        if item.verdict is not Verdict.OK:
            _not_ok(screen, item)
    good = [item for item in report.items if item.verdict is Verdict.OK]
    if screen.wide:
        for item in good:
            _line(screen, "=", item, None)
    else:
        _compact(screen, good)
    for name, reason in skipped:
        hang(screen, f"  ! {name}  ", f"not checked, the plan skips it: {reason}")
    for verdict, hint in hints.items():
        if report.count(verdict):
            hang(screen, f"  {_SIGNS[verdict]} -> ", hint)
    if not report.items:
        screen.print("  nothing of it is in place, so there is nothing to verify")


def _not_ok(screen: Screen, item: Checked) -> None:
    _line(screen, _SIGNS[item.verdict], item, _STYLES[item.verdict])
    if item.reason:
        screen.paragraph("      ", item.reason)
    if item.writer:
        screen.paragraph("      likely writer: ", item.writer)


def _line(screen: Screen, sign: str, item: Checked, style: str | None) -> None:
    wanted, seen = wanted_text(item.target, item.wanted), show_value(item.target, item.seen)
    words = f"want {wanted}, see {seen}, rule {_RULES[item.rule]}, {item.source}"
    hang(screen, f"  {sign} {item.id}  ", words, style)


def _compact(screen: Screen, items: list[Checked]) -> None:
    line = ""
    for item in items:
        text = f"= {item.id} {show_value(item.target, item.seen)}"
        if line and cell_width(line) + 3 + cell_width(text) > screen.width:
            screen.print(line)
            line = ""
        line = f"{line}   {text}" if line else f"  {text}"
    if line:
        screen.print(line)

"""Apply as it happens, a line a change, and its summary."""

from __future__ import annotations

from hicachectl.render.screen import Screen
from hicachectl.render.tune_words import hang, spread
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, ItemResult, RunOutcome

__all__ = ["draw_applied", "draw_outcome", "draw_summary"]

_WORDS = {
    ItemResult.OK: "ok",
    ItemResult.ALREADY: "already",
    ItemResult.UNSUPPORTED: "unsupported",
    ItemResult.NO_GAIN: "no gain",
    ItemResult.FAILED: "FAILED",
    ItemResult.RESTORED: "put back",
    ItemResult.LEFT: "LEFT",
    ItemResult.NOT_TRIED: "not tried",
}
_STYLES = {ItemResult.OK: "ok", ItemResult.UNSUPPORTED: "warn", ItemResult.FAILED: "error", ItemResult.LEFT: "error"}
_WIDTH = max(map(len, _WORDS.values()))


def draw_outcome(screen: Screen, outcome: ItemOutcome, number: int, total: int, run_id: str | None) -> None:
    """Draw how one change ended: `ok 2/7 thp.defrag madvise -> defer+madvise  read back defer+madvise  journal j-0001#4`."""
    item, result = outcome.item, outcome.result
    label = f"{_WORDS[result]:<{_WIDTH}} {number:>{len(str(total))}}/{total} "
    parts = [f"{item.id} {item.show(item.old)} -> {item.show(item.new)}"]
    if outcome.seen is not None:
        parts.append(f"{'read back' if outcome.record is not None else 'holds'} {item.show(outcome.seen)}")
    if outcome.record is not None:
        parts.append(f"journal {run_id or ''}#{outcome.record}")
    screen.paragraph(label, ", ".join(parts), _STYLES.get(result))
    if outcome.reason:
        screen.paragraph(" " * len(label), outcome.reason)
    if outcome.proof and outcome.proof != outcome.reason:
        screen.paragraph(" " * len(label) + "seen: ", outcome.proof)


def draw_applied(screen: Screen, report: ApplyReport) -> None:
    """Draw every change and the summary: what a file of the screen holds."""
    for number, outcome in enumerate(report.items, 1):
        draw_outcome(screen, outcome, number, len(report.items), report.run_id)
    draw_summary(screen, report)


def draw_summary(screen: Screen, report: ApplyReport) -> None:
    """Draw how the run ended, what was seen of its effects, and what to do next."""
    counts = ", ".join(f"{len(ids)} {_WORDS[result].lower()}" for result in ItemResult if (ids := report.named(result)))
    head = f"APPLY {report.run_id}" if report.run_id else "APPLY"
    spread(screen, [head, f"plan {report.plan_id}", report.outcome.value, counts or "no change"], "bold")
    for outcome in report.items:
        if outcome.proof and outcome.result is ItemResult.OK:
            hang(screen, f"  {outcome.item.id}  ", f"seen: {outcome.proof}")
    if report.stopped_by:
        screen.paragraph("  ", f"{report.stopped_by} asked to stop")
    for note in report.notes:
        screen.paragraph("  note: ", note)
    if report.outcome is RunOutcome.PARTIAL:
        screen.print("  This host is between two states:", "error")
        for outcome in report.items:
            if outcome.result is ItemResult.LEFT:
                wanted, seen = outcome.item.show(outcome.item.old), outcome.item.show(outcome.seen)
                screen.paragraph("    ", f"{outcome.item.id} should hold {wanted} and reads {seen}", "error")
    elif report.outcome is RunOutcome.UNDONE:
        screen.print("  Every value is the old one again, and was read to be.")
    elif report.outcome is RunOutcome.APPLIED:
        restart = dict.fromkeys(
            note for o in report.items if o.result is ItemResult.OK for note in o.item.notes
        )  # fmt: skip
        for note in restart:
            screen.paragraph("  note: ", note)
        screen.print(f"Next: hicachectl tune verify   undo: sudo hicachectl tune rollback {report.run_id}")

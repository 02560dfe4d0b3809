"""Apply as it happens, a line a change, and its summary."""

from __future__ import annotations

from collections import Counter

from hicachectl.render.screen import Screen
from hicachectl.render.tune_words import hang, keeps_until_boot, spread
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, ItemResult, RunOutcome
from hicachectl.tuning.rehearsal import WOULD_CHANGE

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
_WOULD = "would change"
_WIDTH = max(map(len, _WORDS.values()))


def draw_outcome(
    screen: Screen, outcome: ItemOutcome, number: int, total: int, run_id: str | None, *, dry_run: bool = False
) -> None:
    """Draw how one change ended: `ok 2/7 thp.defrag madvise -> defer+madvise  read back defer+madvise  journal j-0001#4`."""
    item, result = outcome.item, outcome.result
    label = f"{_word(outcome, dry_run):<{len(_WOULD) if dry_run else _WIDTH}} {number:>{len(str(total))}}/{total} "
    parts = [f"{item.id} {item.show(item.old)} -> {item.show(item.new)}"]
    if outcome.seen is not None:
        parts.append(f"{'read back' if outcome.record is not None else 'holds'} {item.show(outcome.seen)}")
    if outcome.record is not None:
        parts.append(f"journal {run_id or ''}#{outcome.record}")
    screen.paragraph(label, ", ".join(parts), _STYLES.get(result))
    if outcome.reason and outcome.reason != WOULD_CHANGE:
        screen.paragraph(" " * len(label), outcome.reason)
    if outcome.proof and outcome.proof != outcome.reason:
        screen.paragraph(" " * len(label) + "seen: ", outcome.proof)


def draw_applied(screen: Screen, report: ApplyReport, *, dry_run: bool = False) -> None:
    """Draw every change and the summary: what a file of the screen holds, and a dry run."""
    for number, outcome in enumerate(report.items, 1):
        draw_outcome(screen, outcome, number, len(report.items), report.run_id, dry_run=dry_run)
    draw_summary(screen, report, dry_run=dry_run)


def draw_summary(screen: Screen, report: ApplyReport, *, dry_run: bool = False) -> None:
    """Draw how the run ended, what was seen of its effects, and what to do next."""
    words = Counter(_word(outcome, dry_run).lower() for outcome in sorted(report.items, key=_rank))
    counts = ", ".join(f"{n} {word}" for word, n in words.items())
    head = f"APPLY {report.run_id}" if report.run_id else "APPLY"
    ended = "dry run, nothing was written" if dry_run else report.outcome.value
    spread(screen, [head, f"plan {report.plan_id}", ended, counts or "no change"], "bold")
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
        if any(o.result is ItemResult.OK and keeps_until_boot(o.item) for o in report.items):
            screen.paragraph("  ", "lost at the next boot; to keep them: hicachectl tune unit PLAN")
        screen.print(f"Next: hicachectl tune verify   undo: sudo hicachectl tune rollback {report.run_id}")
    elif report.outcome is RunOutcome.NOTHING and not dry_run and report.named(ItemResult.NOT_TRIED):
        screen.print("  Nothing was measured, so nothing was written (exit 9 unless something holds already).", "warn")


def _word(outcome: ItemOutcome, dry_run: bool) -> str:
    return _WOULD if dry_run and outcome.reason == WOULD_CHANGE else _WORDS[outcome.result]


def _rank(outcome: ItemOutcome) -> int:
    return list(ItemResult).index(outcome.result)

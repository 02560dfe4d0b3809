"""The FINDINGS block under a screen, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hicachectl.envelope import Diagnostic, Severity
from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width

__all__ = ["print_findings"]


def print_findings(screen: Screen, diagnostics: Sequence[Diagnostic]) -> None:
    """Print the findings with a count of each severity; nothing when there are none."""
    if not diagnostics:
        return
    counts = Counter(d.severity for d in diagnostics)
    summary = ", ".join(f"{counts[s]} {s.value}" for s in Severity if counts[s])
    screen.print(f"FINDINGS  {summary}" + (" (worst first)" if len(diagnostics) > 1 else ""), "bold")
    ordered = sorted(diagnostics, key=lambda d: d.severity.rank)
    digits = len(str(len(ordered)))
    for number, finding in enumerate(ordered, 1):
        head = f" [{number:>{digits}}] {finding.severity.value:<5} {finding.code} "
        subject = f"{finding.subject}: " if finding.subject else ""
        style = {Severity.ERROR: "error", Severity.WARN: "warn"}.get(finding.severity)
        screen.paragraph(head, subject + finding.message, style)
        if finding.hint:
            screen.paragraph(" " * cell_width(f" [{'':>{digits}}] {'':<5}") + "-> ", finding.hint)

"""The FINDINGS block under a screen, worst first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hicachectl.envelope import Diagnostic, Severity
from hicachectl.render.screen import Screen
from hicachectl.render.text import cell_width

__all__ = ["print_findings"]

_NAME = re.compile(r"\b(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]|[UXND]\d+|node \d+)\b")
"""Names of things in a message: addresses, display names, nodes."""


def print_findings(screen: Screen, diagnostics: Sequence[Diagnostic]) -> None:
    """Print the findings with a count of each severity; nothing when there are none."""
    if not diagnostics:
        return
    counts = Counter(d.severity for d in diagnostics)
    summary = ", ".join(f"{counts[s]} {s.value}" for s in Severity if counts[s])
    screen.print(f"FINDINGS  {summary}" + (" (worst first)" if len(diagnostics) > 1 else ""), "bold")
    ordered = sorted(diagnostics, key=lambda d: d.severity.rank)
    digits = len(str(len(ordered)))
    alike = {} if screen.wide else _alike(ordered)
    told = {number for others in alike.values() for number in others}
    for number, finding in enumerate(ordered, 1):
        if number in told:
            continue
        head = f" [{number:>{digits}}] {finding.severity.value:<5} {finding.code} "
        subject = f"{finding.subject}: " if finding.subject else ""
        style = {Severity.ERROR: "error", Severity.WARN: "warn"}.get(finding.severity)
        others = [f"[{other}] {ordered[other - 1].subject}" for other in alike.get(number, ())]
        likewise = f"; likewise {', '.join(others)} (-o wide: each)" if others else ""
        screen.paragraph(head, subject + finding.message + likewise, style)
        if finding.hint:
            screen.paragraph(" " * cell_width(f" [{'':>{digits}}] {'':<5}") + "-> ", finding.hint)


def _alike(findings: Sequence[Diagnostic]) -> dict[int, list[int]]:
    """The numbers of findings that say the same of other things, names aside, by the number of the first that says it."""
    first: dict[tuple[object, ...], int] = {}
    found: dict[int, list[int]] = {}
    for number, one in enumerate(findings, 1):
        key = (one.code, one.severity, _NAME.sub("@", one.message), _NAME.sub("@", one.hint or ""))
        if one.subject and first.setdefault(key, number) != number:
            found.setdefault(first[key], []).append(number)
    return found

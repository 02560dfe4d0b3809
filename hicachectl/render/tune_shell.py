"""A plan as a shell script to read, with its undo in reverse order as comments."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.render.screen import Screen
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.shell_lines import ShellStep

__all__ = ["draw_shell"]


def draw_shell(screen: Screen, plan: Plan, steps: Sequence[ShellStep], moved: Sequence[str]) -> None:
    """Draw the script. Lines are never broken: they are for pasting. Of a plan that no longer fits there is none."""
    about = plan.about
    lines = [
        "#!/bin/sh",
        _comment(f"plan {plan.id}, host {about.host or '?'}, made {about.made_at}, {len(steps)} changes"),
        "# These lines check nothing, record nothing and read nothing back; hicachectl tune apply does.",
    ]
    if moved:
        lines += [_comment(f"STALE, the host has moved since: {line}") for line in moved]
        lines.append("# No command is printed: make the plan again: hicachectl tune plan --output-file PLAN")
        screen.print("\n".join(lines))
        return
    lines.append("set -eu")
    for number, step in enumerate(steps, 1):
        lines.append("")
        lines.append(_comment(f"{number}/{len(steps)} {step.id}: {step.changes}"))
        lines += [_comment(f"  {note}") for note in step.notes]
        lines.append(step.command or _comment(f"no command: {step.reason}"))
    lines += ["", "# Undo, last change first:"]
    lines += [f"#   {step.undo}" if step.undo else _comment(f"  {step.id}: {step.reason}") for step in reversed(steps)]
    for line in lines:
        screen.print(line)


def _comment(text: str) -> str:
    return "# " + (text if text.isprintable() else " ".join(text.split()))

"""A plan as shell lines: what an operator would type for each change, and what takes it back. For change tickets. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.access import shell_line
from hicachectl.tuning.item import Item
from hicachectl.tuning.plan import Plan

__all__ = ["ShellStep", "shell_steps"]


@dataclass(frozen=True, slots=True)
class ShellStep:
    """One change. `reason` says why `command` or `undo` is None; `changes` is old -> new for people, `notes` what to know before."""

    id: str
    changes: str
    command: str | None
    undo: str | None
    reason: str | None = None
    notes: tuple[str, ...] = ()


def shell_steps(plan: Plan) -> tuple[ShellStep, ...]:
    """Return the changes of a plan in order, each with its command and the one that writes the old value. Pure.

    `setpci` is given only the bits of the change (value:mask), so what else is in a config register stays. The commands of
    other registers write all of it: they hold the bits of others as they were read for the plan. The undo lines are to be
    typed in reverse order.
    """
    return tuple(map(_step, plan.changes))


def _step(item: Item) -> ShellStep:
    changes = f"{item.show(item.old)} -> {item.show(item.new)}"
    target, new = item.target, item.new
    if target is None or item.old is None or new is None:
        return ShellStep(item.id, changes, None, None, item.old_reason or "it has no place on the host")
    try:
        return ShellStep(item.id, changes, shell_line(target, new), shell_line(target, item.old), notes=item.notes)
    except KeyError:
        return ShellStep(item.id, changes, None, None, f"no command writes by the method {target.method.value}")

"""The documents of tune as plain data, and why each null in them is null. Pure.

Registers are numbers; `mask` beside them says which bits count. What does not apply to an item is left out, except in a
plan, which is read back strictly and so has every key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicachectl.envelope import Fact, plain, unexplained_nulls
from hicachectl.tuning.outcome import ApplyReport, Checked, ItemOutcome, RollbackReport, RunState, Verdict, VerifyReport
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.plan_json import plan_to_json
from hicachectl.tuning.shell_lines import ShellStep
from hicachectl.tuning.target import Target

__all__ = ["apply_data", "explained", "plan_data", "rollback_data", "runs_data", "show_data", "verify_data"]

_WHY_NULL = {
    "subject": "the setting is the host's",
    "uplink": "not below an uplink",
    "target": "it is told, not written",
    "register": "a word, not a register",
    "old": "not read",
    "new": "nothing is written",
    "code": "no code is about it",
    "remedy": "nothing has to be done",
    "probe": "no load decides about it",
    "min_gain": "no load decides about it",
    "max_loss": "no load decides about it",
    "recipe": "not by a recipe",
    "recipe_sha256": "not by a recipe",
    "value": "its file does not say",
    "seen": "not read",
    "record": "nothing was written, so nothing was recorded",
    "proof": "no effect of it can be observed here",
    "failure": "nothing failed",
    "stopped_by": "nobody asked to stop",
    "open_item": "no write was cut short",
    "ended_at": "it has no end in the journal",
    "boot_id": "it could not be read",
    "host": "it could not be read",
    "kernel": "it could not be read",
    "pci_set": "the PCI functions could not be listed",
    "command": "no command does it",
    "undo": "no command does it",
}


def explained(data: Any) -> dict[str, Fact]:
    """Return the facts that say why each null of `data` is null. Pure."""
    found = plain(data)
    return {p: Fact(reason=_WHY_NULL.get(p.rpartition("/")[2], "does not apply")) for p in unexplained_nulls(found)}


def plan_data(plan: Plan) -> dict[str, Any]:
    """The document `tune-plan/1`, which `tune apply` reads back."""
    return plan_to_json(plan)


def show_data(plan: Plan, moved: Sequence[str], steps: Sequence[ShellStep]) -> dict[str, Any]:
    """The document `tune-show/1`."""
    return {"plan": plan_to_json(plan), "fits": not moved, "moved": list(moved), "steps": plain(tuple(steps))}


def apply_data(report: ApplyReport, *, dry_run: bool = False) -> dict[str, Any]:
    """The document `tune-apply/1`."""
    return {
        "run_id": report.run_id or None,
        **({} if report.run_id else {"run_id_reason": "nothing was written"}),
        "plan_id": report.plan_id,
        "outcome": report.outcome.value,
        "dry_run": dry_run,
        "failure": report.failure,
        "stopped_by": report.stopped_by,
        "notes": list(report.notes),
        "items": [_outcome(outcome) for outcome in report.items],
    }


def verify_data(
    report: VerifyReport, skipped: Sequence[tuple[str, str]] = (), moved: Sequence[str] = ()
) -> dict[str, Any]:
    """The document `tune-verify/1`. `skipped` are items that the plan itself left out, each with its reason; `moved` says what makes this another host than its."""
    return {
        "against": report.against,
        "counts": {verdict.value: report.count(verdict) for verdict in Verdict},
        "items": [_checked(item) for item in report.items],
        "skipped": [{"id": name, "reason": reason} for name, reason in skipped],
        "moved": list(moved),
    }


def rollback_data(report: RollbackReport, *, dry_run: bool = False) -> dict[str, Any]:
    """The document `tune-rollback/1`."""
    items = [
        {
            "id": undo.id, **_place(undo.target), "ours": undo.ours, "recorded": undo.recorded, "present": undo.present,
            "result": undo.result.value, "reason": undo.reason,
        }
        for undo in report.items
    ]  # fmt: skip
    return {"run_id": report.run_id, "outcome": report.outcome.value, "dry_run": dry_run, "items": items}


def runs_data(folder: str, states: Sequence[RunState], *, current: str | None = None) -> dict[str, Any]:
    """The documents `tune-status/1` and `tune-history/1`: every run, oldest first; `current` is the one in place on this boot."""
    return {
        "state_dir": folder,
        "current": current,
        "current_reason": None if current else _why_none(states),
        "runs": [plain(state) for state in states],
    }


def _why_none(states: Sequence[RunState]) -> str:
    """Why no run is in place: none was made, or how the last one ended."""
    if not states:
        return "no run is recorded in this folder"
    last = states[-1]
    if last.expired:
        return f"the last run, {last.run_id}, was made in another boot"
    return f"the last run, {last.run_id}, has nothing in place: {last.outcome.value}"


def _outcome(outcome: ItemOutcome) -> dict[str, Any]:
    item = outcome.item
    more = {"subject": item.subject, "uplink": item.uplink, "proof": outcome.proof, "record": outcome.record}
    return {
        "id": item.id, "knob": item.knob, **{key: value for key, value in more.items() if value is not None},
        **({} if item.target is None else _place(item.target)), "old": item.old, "new": item.new, "seen": outcome.seen,
        "result": outcome.result.value, "reason": outcome.reason,
    }  # fmt: skip


def _checked(item: Checked) -> dict[str, Any]:
    more = {"wrote_at": item.wrote_at, "writer": item.writer}
    return {
        "id": item.id, **_place(item.target), "rule": item.rule.value, "wanted": list(item.wanted), "seen": item.seen,
        "verdict": item.verdict.value, "source": item.source, "reason": item.reason,
        **{key: value for key, value in more.items() if value is not None},
    }  # fmt: skip


def _place(target: Target) -> dict[str, Any]:
    register = target.register
    bits = (
        {}
        if register is None
        else {"offset": register.offset, "width_bits": register.width, "mask": register.mask}
    )  # fmt: skip
    return {"method": target.method.value, "path": target.path, **bits}

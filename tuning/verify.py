"""Holds what is against what was wanted: a run's writes, or a plan's items. Nothing unread is ok."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicachectl.tuning.access import read_target
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import ItemKind, Owner
from hicachectl.tuning.journal import Entry
from hicachectl.tuning.outcome import Checked, Verdict, VerifyReport
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.target import Rule, Target, Value, agrees, show_value

__all__ = ["verify_entries", "verify_plan"]

Owners = Mapping[str, tuple[Owner, ...]]


def verify_entries(
    run_id: str, entries: Sequence[Entry], *, root: HostRoot, owners: Owners, same_boot: bool
) -> VerifyReport:
    """Read every value a run left in place and compare it with what it wrote. Reads the host, changes nothing.

    Items the run found unsupported or took back are not checked: they are not in place. One that was cut in the middle,
    failed, or could not be put back differs, whatever it reads: nobody wanted the host that way. `same_boot` False
    makes what does not outlive a boot "expired" instead of ok, whatever it reads: it is not this run's doing.
    """
    checked = []
    for entry in entries:
        if entry.settled:
            continue
        fact = read_target(root, entry.target)
        reason: str | None
        if not same_boot and not entry.persistent:
            verdict, reason = (
                Verdict.EXPIRED,
                f"{run_id} wrote it in another boot; it now reads {show_value(entry.target, fact.value)}",
            )
        elif fact.value is None:
            verdict, reason = Verdict.UNKNOWN, fact.reason
        elif entry.unsettled:
            verdict = Verdict.DIFFERS
            reason = f"{run_id} left it unfinished ({entry.undone or entry.result or 'cut'}): it was {show_value(entry.target, entry.old)}"
        elif agrees(entry.target, Rule.EQUAL, (entry.new,), fact.value):
            verdict, reason = Verdict.OK, None
        else:
            verdict = Verdict.DIFFERS
            reason = f"{run_id} wrote {show_value(entry.target, entry.new)} at {entry.wrote_at} and read it back; changed since"
        checked.append(
            Checked(
                id=entry.item,
                target=entry.target,
                rule=Rule.EQUAL,
                wanted=(entry.new,),
                seen=fact.value,
                verdict=verdict,
                source=fact.source,
                reason=reason,
                wrote_at=entry.wrote_at,
                writer=_writer(entry.target, fact.value, owners) if verdict is Verdict.DIFFERS else None,
            )
        )
    return VerifyReport(f"run {run_id}", tuple(checked))


def verify_plan(plan: Plan, *, root: HostRoot, owners: Owners) -> VerifyReport:
    """Read every value a plan wants and compare. Reads the host, changes nothing.

    A skipped item is unknown with the plan's reason when it cannot be read now either; report-only items want nothing.
    """
    checked = []
    for item in plan.items:
        if item.kind is ItemKind.REPORT or item.target is None or not item.wanted:
            continue
        fact = read_target(root, item.target)
        reason = None
        if fact.value is None:
            verdict, reason = Verdict.UNKNOWN, fact.reason if item.reason is None else f"{fact.reason} ({item.reason})"
        elif agrees(item.target, item.rule, item.wanted, fact.value):
            verdict = Verdict.OK
        else:
            verdict = Verdict.DIFFERS
            reason = item.reason or f"the plan wants {item.show(item.wanted[0])}"
        checked.append(
            Checked(
                id=item.id,
                target=item.target,
                rule=item.rule,
                wanted=item.wanted,
                seen=fact.value,
                verdict=verdict,
                source=fact.source,
                reason=reason,
                writer=_writer(item.target, fact.value, owners) if verdict is Verdict.DIFFERS else None,
            )
        )
    return VerifyReport(f"plan {plan.id}", tuple(checked))


def _writer(target: Target, seen: Value | None, owners: Owners) -> str | None:
    """Name who sets the same place, first one that says the value that is there now."""
    found = owners.get(target.path, ())
    likely = [owner for owner in found if owner.value is not None and str(owner.value) == str(seen)] or list(found)
    return f"{likely[0].name} ({likely[0].where})" if likely else None

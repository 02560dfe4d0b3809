"""What the commands of `topo` share: the document of a machine, and the header that says what was looked at."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hicachectl.envelope import Diagnostic, Origin, Result, Severity
from hicachectl.errors import ExitCode

if TYPE_CHECKING:
    from hicachectl.render.topo_screen import Seen
    from hicachectl.tuning.finding import Finding
    from hicachectl.tuning.host.model import Machine
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.placement import Placement

__all__ = ["placements_of", "seen", "topo_result"]


def seen(root: HostRoot, origin: Origin, *, now: datetime | None = None) -> Seen:
    """Say for the header what was looked at, and how old a recording is as far as it says."""
    from hicachectl.render.topo_screen import Seen

    if root.name is None:
        return Seen(None, origin.collected_at)
    at = _recorded_at(root)
    if at is None:
        return Seen(root.name, None)
    age_s = ((now or datetime.now(timezone.utc)) - at).total_seconds()
    return Seen(root.name, at.strftime("%Y-%m-%dT%H:%M:%SZ"), age_s)


def topo_result(machine: Machine, findings: tuple[Finding, ...], *, fail_on: Severity | None = None) -> Result:
    """Return the document of a machine with its findings; `fail_on` as the flag says."""
    from hicachectl.tuning.host.flatten import flatten

    diagnostics = tuple(
        Diagnostic(f.code, Severity(f.severity), f.message, subject=f.subject, hint=f.hint, source=f.source)
        for f in findings
    )
    data = flatten(machine, findings, placements_of(machine))
    unread = fail_on is not None and any(f.code in ("HC-NOTHING-READ", "HC-PART-READ") for f in findings)
    cause = ExitCode.UNSUPPORTED if unread else ExitCode.OK
    return Result("hicachectl.topo/1", data, diagnostics=diagnostics, exit_code=cause, fail_on=fail_on)


def placements_of(machine: Machine) -> tuple[Placement, ...]:
    """Return the five policies for host pools; none on a host without accelerators."""
    from hicachectl.tuning.host.model import SlotKind
    from hicachectl.tuning.placement import placements

    return placements(machine) if any(d.kind == SlotKind.ACCELERATOR for d in machine.devices) else ()


def _recorded_at(root: HostRoot) -> datetime | None:
    """When a recording was made: what its manifest says, else the date of its files."""
    if root.collected_at is not None:
        try:
            return datetime.strptime(root.collected_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return None
    seconds = root.newest_s()
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)

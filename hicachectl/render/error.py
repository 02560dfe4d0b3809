"""An error for a person: what failed and where, why, what next; then the code that `explain` knows."""

from __future__ import annotations

from hicachectl.errors import (
    ApplyFailed,
    CapacityError,
    ExitCode,
    HicacheError,
    HostError,
    PlanStale,
    StorageError,
    UsageError,
    VerifyMismatch,
)
from hicachectl.units import format_bytes, format_count

__all__ = ["error_lines"]

_WHY: tuple[tuple[type[HicacheError], str | None, str], ...] = (
    (UsageError, None, "correct it and run again"),
    (HostError, "the host refused it", "see the page of the code below"),
    (PlanStale, "the host is not as it was when the plan was made", "make a new plan: hicachectl tune plan"),
    (ApplyFailed, None, "read the lists above before anything else"),
    (VerifyMismatch, None, "look at the writer of the value, then decide"),
    (CapacityError, None, "make one of the terms smaller"),
    (StorageError, None, "check the storage path, then run again"),
)


def error_lines(error: HicacheError, *, trace: str | None = None) -> list[tuple[str, str | None]]:
    """Lay an error out as (line, style): what, why, next, code. Pure.

    What failed and what next are always there. The reason is left out where there is none to tell beyond the first line;
    a class's own words stand in where they add something. Terms of a sum and the
    lists of a half-done change come between the first line and the reason.
    """
    why, hint = _defaults(error)
    where = f"{error.where}: " if error.where else ""
    lines: list[tuple[str, str | None]] = [(f"error: {where}{error.what}", "error")]
    if isinstance(error, CapacityError) and error.terms:
        width = max(len(name) for name, _ in error.terms)
        for name, amount in error.terms:
            number = format_count(amount) if isinstance(amount, int) else f"{amount:.3f}"
            in_units = f"  {format_bytes(amount):>11}" if error.unit == "bytes" and not name.endswith(", pages") else ""
            lines.append((f"         {name:<{width}}  {number:>15}{in_units}", None))
    if isinstance(error, ApplyFailed):
        for label, items in (("applied", error.applied), ("rolled back", error.rolled_back), ("left", error.left)):
            lines.append((f"         {label:<11}  {', '.join(items) or 'nothing'}", None))
    if error.why or why:
        lines.append((f"   why: {error.why or why}", None))
    lines.append((f"  next: {error.hint or hint}", None))
    if trace is not None:
        lines.append((f" trace: {trace}", None))
    lines.append((f"  code: {error.code}   (hicachectl explain {error.code})", "dim"))
    return lines


def _defaults(error: HicacheError) -> tuple[str | None, str]:
    for kind, why, hint in _WHY:
        if isinstance(error, kind):
            return why, hint
    if error.exit_code is ExitCode.BUG:
        return (
            "this is a fault of hicachectl, not of your input",
            "report it with the trace file, or rerun with --debug",
        )
    return None, f"hicachectl explain {error.code}"

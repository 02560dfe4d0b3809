"""Reads a saved plan: the document that `hicachectl tune plan --output-file` wrote."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from hicachectl.errors import PermissionDenied, PlanStale, UsageError
from hicachectl.tuning.plan import Plan, plan_id
from hicachectl.tuning.plan_json import plan_from_json

__all__ = ["PLAN_SCHEMA", "read_plan"]

PLAN_SCHEMA = "hicachectl.tune-plan/1"
_MAX_BYTES = 32 << 20
_AGAIN = "hicachectl tune plan --output-file PLAN"


def _caller() -> int:
    """The user behind sudo, else the one who runs this."""
    text = os.environ.get("SUDO_UID", "")
    return int(text) if text.isdigit() else os.geteuid()


def read_plan(path: Path) -> Plan:
    """Read a plan file, strictly. Reads the file, changes nothing. Raises PlanStale (HC-PLAN-EDITED) when its id is not its digest.

    Raises UsageError for a file that is missing, too large, cut, or not a plan (where = path, with the place inside), and
    PermissionDenied when it may not be read.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if os.geteuid() == 0 and (found.st_uid not in (0, _caller()) or found.st_mode & 0o022):
                raise UsageError(
                    f"owned by uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}: others could have written it",
                    where=where,
                    why="root applies what it says",
                    hint=f"chmod 0600 {where}, after a look at it",
                )
            raw = file.read(_MAX_BYTES + 1)
    except PermissionError as error:
        raise PermissionDenied(
            "the plan may not be read", where=where, why="plans are 0600: their maker and root read them", hint="sudo"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the plan: {error.strerror}", where=where, hint=_AGAIN) from error
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"longer than {_MAX_BYTES >> 20} MiB: not a plan", where=where, hint=_AGAIN)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", where=where, why="cut short, or another file", hint=_AGAIN) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != PLAN_SCHEMA:
        raise UsageError(
            f"its schema is {schema!r}, not {PLAN_SCHEMA!r}", where=where, why="it is not a saved plan", hint=_AGAIN
        )
    plan = plan_from_json(document.get("data"), where=where)
    if plan_id(plan) != plan.id:
        raise PlanStale(
            f"it calls itself {plan.id}, and what it says makes {plan_id(plan)}: it was edited",
            where=where,
            why="the id is the digest of everything a plan says",
            hint=_AGAIN,
            code="HC-PLAN-EDITED",
        )
    return plan

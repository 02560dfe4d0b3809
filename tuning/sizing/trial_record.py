"""A trial as its record holds it, and read back. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hicachectl.tuning.sizing.from_record import from_record
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["record_of", "trial_of"]


def record_of(trial: Trial) -> dict[str, Any]:
    """Return a trial as its record holds it, in the values that JSON has. Pure."""
    recorded: dict[str, Any] = json.loads(json.dumps(asdict(trial)))
    return recorded


def trial_of(recorded: dict[str, Any]) -> Trial:
    """Read a trial back. Pure. Raises ValueError naming the field that is not one of a trial."""
    return from_record(Trial, recorded)

"""A trial read back from its record. Pure."""

from __future__ import annotations

from typing import Any

from hicachectl.tuning.sizing.from_record import from_record
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["trial_of"]


def trial_of(recorded: dict[str, Any]) -> Trial:
    """Read a trial back. Pure. Raises ValueError naming the field that is not one of a trial."""
    return from_record(Trial, recorded)

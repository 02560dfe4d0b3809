"""How a probe is asked to end early: it looks between its steps, puts away what it made, and says that it stopped."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ProbeStopped", "Stop", "never"]

Stop = Callable[[], bool]
"""True from the moment that the probe should end. Called often, from several threads."""


class ProbeStopped(Exception):
    """The probe was asked to stop; what it took and wrote is given back when this arrives."""


def never() -> bool:
    """Go on to the end. Pure."""
    return False

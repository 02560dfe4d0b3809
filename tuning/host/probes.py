"""Facts that no file holds, as a snapshot keeps them: which they may be, and their JSON. Pure.

A recording's files go before anything else: a probe for what a file says would be a second, unchecked word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hicachectl.tuning.host.facts import Confidence, Fact

__all__ = ["LIVE_ONLY", "plain_probes", "read_probes"]

LIVE_ONLY: dict[str, tuple[type, str | None]] = {
    "numa/mempolicy_calls": (bool, None),
    "host/architecture": (str, "/proc/sys/kernel/arch"),
}
"""Place in the model -> type of its value, and the file that holds it where the kernel is new enough to have one."""


def plain_probes(probes: Mapping[str, Fact[Any]]) -> dict[str, Any]:
    """Return probes as plain data. Pure."""
    return {
        place: {"value": fact.value, "source": fact.source, "confidence": fact.confidence.value, "reason": fact.reason}
        for place, fact in probes.items()
    }


def read_probes(told: Mapping[str, Mapping[str, Any]], files: Collection[str]) -> dict[str, Fact[Any]]:
    """Return the facts of `plain_probes`' data; `files` are the recorded ones. Pure.

    Raises ValueError for a place that a file holds, or a value of another type than that place has.
    """
    return {place: _probe(place, found, files) for place, found in told.items()}


def _probe(place: str, found: Mapping[str, Any], files: Collection[str]) -> Fact[Any]:
    kind, file = LIVE_ONLY.get(place, (type(None), None))
    if place not in LIVE_ONLY or file in files:
        raise ValueError(f"its probes tell of {place}, which a file holds")
    value, reason = found["value"], found["reason"]
    if value is not None and type(value) is not kind:
        raise ValueError(f"its probe {place} is no {kind.__name__}: {repr(value)[:40]}")
    return Fact(value, str(found["source"]), Confidence(found["confidence"]), None if reason is None else str(reason))

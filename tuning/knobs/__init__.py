"""Knobs: one a file, each says what it must read and what is to become of it. Pure; `plan.py` asks them in this order.

A knob reads nothing itself: `targets` names the places, one look at the host reads them all (`session.probe`), `items`
turns the look and the choices into items. So a plan is a function of values, and apply reads and writes the same targets.
"""

from __future__ import annotations

from typing import Protocol

from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Target

__all__ = ["READING_ORDER", "Knob"]

READING_ORDER: tuple[str, ...] = (
    "setting", "thp_sizes", "thp", "khugepaged", "tmpfs", "numa_balancing", "zone_reclaim", "weighted_interleave", "limits", "table", "recipe",
)  # fmt: skip


class Knob(Protocol):
    """One setting, or one recipe, on any number of places of a host."""

    @property
    def name(self) -> str:
        """The knob's name, AREA.WHAT."""

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name every place that must be read before `items` can judge. Pure."""

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Say what is to become of each place: change, same, skip with reason and remedy, or report-only. Pure."""

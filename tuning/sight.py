"""Everything a plan is made from, as values: the machine, what each target holds now, and who else sets it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Owner
from hicachectl.tuning.target import Target, Value

__all__ = ["Door", "Sight"]


@dataclass(frozen=True, slots=True)
class Door:
    """What stands before a write: the words a file offers (`always [madvise] never` offers three), and whether its mount is read-only."""

    offers: Fact[tuple[str, ...]]
    read_only: Fact[bool]


@dataclass(frozen=True)
class Sight:
    """One look at a host. `values` holds what every target of every knob read as, `doors` what each offers; `owners` are by path of the target."""

    machine: Machine
    values: Mapping[Target, Fact[Value]]
    owners: Mapping[str, tuple[Owner, ...]] = field(default_factory=dict)
    doors: Mapping[Target, Door] = field(default_factory=dict)

    def value(self, target: Target) -> Fact[Value]:
        """Return what a target held; unknown with a reason when nobody read it. Pure."""
        return self.values.get(target) or unknown(target.path, "not read")

    def door(self, target: Target) -> Door:
        """Return what stands before a write; both facts unknown when nobody looked. Pure."""
        found = self.doors.get(target)
        return found or Door(unknown(target.path, "not read"), unknown(target.path, "not read"))

"""By what a plan knows its host again: boot, kernel, the set of PCI functions, the recipes it was made with. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hicachectl.tuning.host.model import Machine

__all__ = ["Fingerprint", "fingerprint_of", "moved"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`pci_set` is a digest of address, ids and revision of every function; `recipes` maps an id to the sha256 of its file.

    None means that it could not be read when the plan was made; such a plan fits no host (`moved` says so).
    """

    boot_id: str | None
    kernel: str | None
    pci_set: str | None
    recipes: Mapping[str, str] = field(default_factory=dict)


def fingerprint_of(machine: Machine, recipes: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of a machine and the hashes of the recipes in use. Pure."""
    listed = machine.listed.get("devices")
    lines = sorted(
        f"{d.address} {d.vendor.value}:{d.device.value} {d.class_code.value} {d.revision.value}"
        for d in machine.devices
    )
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return Fingerprint(
        boot_id=machine.host.boot_id.value,
        kernel=machine.host.kernel.value,
        pci_set=digest if listed is not None and listed.is_known else None,
        recipes=dict(recipes),
    )


def moved(plan: Fingerprint, now: Fingerprint, *, another_boot: bool = False) -> tuple[str, ...]:
    """List what differs, each as "boot id 5d1e -> 77aa"; empty when the plan still fits. Pure.

    `another_boot` lets the boot id differ, for a plan that is applied at every boot. What was unknown in either counts
    as moved, for nothing unread is equal.
    """
    pairs = [("kernel", plan.kernel, now.kernel), ("PCI functions", plan.pci_set, now.pci_set)]
    if not another_boot:
        pairs.insert(0, ("boot id", plan.boot_id, now.boot_id))
    found = [f"{name} {a or 'unknown'} -> {b or 'unknown'}" for name, a, b in pairs if a != b or a is None]
    for name, digest in sorted(plan.recipes.items()):
        here = now.recipes.get(name)
        if here != digest:
            found.append(f"recipe {name} {digest[:12]} -> {here[:12] if here else 'not there'}")
    return tuple(found)

"""Where a recipe applies on a host: its places, each perhaps with a reason why not, or the reason why there is none. Pure.

found = find_places(recipe, machine)
found.places      functions, root ports, sockets, NBIOs, CPUs, or the host
found.why_not     set when there is no place at all: the CPU is another one, nothing of that class is here
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind, Uplink
from hicachectl.tuning.recipe import REGISTER_METHODS, CpuMatch, PciMatch, Recipe, Scope
from hicachectl.tuning.target import Method

__all__ = ["Place", "Places", "find_places", "fits_pattern", "kernel_numbers", "uplink_of"]

_AMD_NODE, _MOST_NODES = "0000:00:{:02x}.0", 8
_NODE_VENDORS = ("1022", "1d94")
_NOT_KNOWN, _NOT_LISTED = "is not known", "could not be listed"
"""In the reasons of this file: what decides was not read."""
_LOCKDOWN_MISSING = "no such file"
"""Reason of a kernel that has no lockdown at all."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a recipe. `subject` is an address, "socket1", "socket1.nbio2", "node3.nbio0", "cpu3", or None for the host.

    `why_not` is set where the recipe does not hold there although the place is of its kind: too few share the uplink, or
    what decides could not be read.
    """

    subject: str | None
    device: PciDevice | None = None
    uplink: str | None = None
    socket: int | None = None
    """Of an SMN register the node, of which a socket may have several."""
    cpu: int | None = None
    instance: int = 0
    why_not: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a recipe on a host. `no_write` says why nothing may be written there although all may be read.

    `undecided`: there is no place because what decides could not be read, so it may be the recipe's machine all the same.
    """

    places: tuple[Place, ...]
    why_not: str | None = None
    no_write: str | None = None
    undecided: bool = False


def find_places(recipe: Recipe, machine: Machine) -> Places:
    """Return where a recipe applies on a machine. Pure. Places keep the order of the machine's functions, sockets or CPUs."""
    why = _cpu_differs(recipe.match.cpu, machine) or _kernel_too_old(recipe.match.kernel.oldest, machine.host.kernel)
    if why is not None:
        return Places((), why, undecided=_NOT_KNOWN in why)
    places, why = _places(recipe, machine)
    if not places:
        return Places((), why, undecided=any(word in (why or "") for word in (_NOT_KNOWN, _NOT_LISTED)))
    writes = recipe.reach.method in REGISTER_METHODS and not recipe.reports_only
    return Places(places, None, _locked(recipe.match.kernel.lockdown or ("none",) * writes, machine.host.lockdown))


def uplink_of(machine: Machine, device: PciDevice) -> Uplink | None:
    """Return the uplink a function's data crosses: its own for what moves data, that of what lies below for a port. Pure."""
    for uplink in machine.uplinks:
        if device.address in uplink.accelerators:
            return uplink
    for uplink in machine.uplinks:
        if device.address in uplink.shared_by or device.address in (uplink.port, uplink.root_port):
            return uplink
    below = {d.address for d in machine.devices if device.address in d.path}
    sharing = [u for u in machine.uplinks if below.intersection(u.accelerators)]
    return max(sharing, key=lambda u: len(u.shared_by), default=None)


def fits_pattern(text: str, pattern: str) -> bool:
    """Say whether hex digits match a pattern in which ? stands for any digit. Pure.

    >>> fits_pattern("120000", "12????"), fits_pattern("030200", "12????")
    (True, False)
    """
    return _compiled(pattern).fullmatch(text.lower()) is not None


def kernel_numbers(release: str) -> tuple[int, ...] | None:
    """Return the numbers a kernel release begins with; None for none. Pure.

    >>> kernel_numbers("6.8.0-45-generic")
    (6, 8, 0)
    """
    found = re.match(r"\d{1,3}(\.\d{1,3}){1,2}", release, re.ASCII)
    return tuple(int(part) for part in found[0].split(".")) if found else None


# -- parts of a match -----------------------------------------------------------------------------------------------------


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\?", "[0-9a-f]"))


def _cpu_differs(wanted: CpuMatch, machine: Machine) -> str | None:
    host = machine.host
    if wanted.vendors:
        if host.cpu_vendor.value is None:
            return f"the CPU's vendor {_NOT_KNOWN} ({host.cpu_vendor.reason})"
        if host.cpu_vendor.value not in wanted.vendors:
            return f"the CPU is {host.cpu_vendor.value}, the recipe is for {' or '.join(wanted.vendors)}"
    for name, fact, ranges in (("family", host.cpu_family, wanted.families), ("model", host.cpu_model, wanted.models)):
        if not ranges:
            continue
        if fact.value is None:
            return f"the CPU's {name} {_NOT_KNOWN} ({fact.reason})"
        if not any(low <= fact.value <= high for low, high in ranges):
            allowed = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
            return f"the CPU's {name} is {fact.value}, the recipe is for {allowed}"
    return None


def _kernel_too_old(oldest: tuple[int, ...], kernel: Fact[str]) -> str | None:
    if not oldest:
        return None
    numbers = kernel_numbers(kernel.value) if kernel.value is not None else None
    if numbers is None:
        return f"the kernel's version {_NOT_KNOWN} ({kernel.reason or kernel.value})"
    wanted = ".".join(map(str, oldest))
    return f"the kernel is {kernel.value}, the recipe needs {wanted} or newer" if numbers < oldest else None


def _locked(allowed: tuple[str, ...], lockdown: Fact[str]) -> str | None:
    """Say why lockdown forbids writing. A kernel without the file has no lockdown; one that cannot be read is not known to."""
    if not allowed or lockdown.value in allowed:
        return None
    if lockdown.value is not None:
        return f"kernel lockdown is {lockdown.value}, which refuses such writes"
    return None if lockdown.reason == _LOCKDOWN_MISSING else f"kernel lockdown is not known ({lockdown.reason})"


# -- places ---------------------------------------------------------------------------------------------------------------


def _places(recipe: Recipe, machine: Machine) -> tuple[tuple[Place, ...], str | None]:
    scope, pci = recipe.reach.scope, recipe.match.pci
    functions = tuple(_functions(recipe, machine)) if pci is not None else ()
    if scope in (Scope.PER_FUNCTION, Scope.PER_ROOT_PORT):
        return functions, _nothing(pci, machine)
    if pci is not None and not functions:
        return (), _nothing(pci, machine)
    if scope is Scope.HOST:
        return (Place(None),), None
    if scope is Scope.PER_CPU:
        cpus = sorted({cpu for node in machine.numa.nodes for cpu in node.cpus.value or ()})
        return tuple(Place(f"cpu{cpu}", cpu=cpu) for cpu in cpus), f"no online CPU: they {_NOT_LISTED}"
    if recipe.reach.method is Method.SMN_DEBUGFS:
        return _amd_nodes(recipe, machine), f"no node of AMD or Hygon is on the PCI bus ({_AMD_NODE.format(0x18)})"
    sockets = machine.numa.socket_cpus
    if not sockets.value:
        return (), f"which CPUs are a socket's {_NOT_KNOWN} ({sockets.reason or 'none listed'})"
    if scope is Scope.PER_SOCKET:
        return tuple(Place(f"socket{i}", socket=i, cpu=min(cpus)) for i, cpus in enumerate(sockets.value) if cpus), None
    return tuple(
        Place(f"socket{i}.nbio{n}", socket=i, cpu=min(cpus), instance=instance)
        for i, cpus in enumerate(sockets.value) if cpus
        for n, instance in enumerate(recipe.reach.instances)
    ), None  # fmt: skip


def _amd_nodes(recipe: Recipe, machine: Machine) -> tuple[Place, ...]:
    """Return a place for each node of the processor, which need not be a socket: 0x18 + n on bus 0 is node n.

    That is how Linux counts them (arch/x86/kernel/amd_node.c, docs/facts.md#smn).
    """
    there = {device.address for device in machine.devices if device.vendor.value in _NODE_VENDORS}
    nodes = [n for n in range(_MOST_NODES) if _AMD_NODE.format(0x18 + n) in there]
    if recipe.reach.scope is Scope.PER_SOCKET:
        return tuple(Place(f"node{n}", socket=n) for n in nodes)
    return tuple(
        Place(f"node{n}.nbio{i}", socket=n, instance=instance)
        for n in nodes
        for i, instance in enumerate(recipe.reach.instances)
    )


def _functions(recipe: Recipe, machine: Machine) -> Iterable[Place]:
    pci = recipe.match.pci
    assert pci is not None
    leads = {port for d in machine.devices if d.kind == SlotKind.ACCELERATOR for port in d.path}
    roots = {d.path[0] for d in machine.devices if d.kind == SlotKind.ACCELERATOR and d.path}
    for device in machine.devices:
        if device.kind == SlotKind.BRIDGE and device.address not in leads:
            continue  # a port that no accelerator's data crosses
        if recipe.reach.scope is Scope.PER_ROOT_PORT and device.address not in roots:
            continue
        held, why_not = _function_holds(pci, device, is_root=device.address in roots)
        if not held:
            continue
        uplink = uplink_of(machine, device)
        remedy = None
        if why_not is None and recipe.match.shared_upstream is not None:
            n = len(uplink.shared_by) if uplink is not None else 0
            if n < recipe.match.shared_upstream:
                what = f"only {n} shares" if n == 1 else f"only {n} share"
                why_not = (
                    f"{what} its uplink, the recipe is for {recipe.match.shared_upstream} or more"
                    if uplink is not None else "its uplink is not known, so neither is who shares it"
                )  # fmt: skip
                remedy = (
                    "none is needed: nothing competes with it on the way"
                    if uplink is not None
                    else "sudo hicachectl topo"
                )
        yield Place(device.address, device, uplink.id if uplink else None, why_not=why_not, remedy=remedy)


def _function_holds(pci: PciMatch, device: PciDevice, *, is_root: bool) -> tuple[bool, str | None]:
    """Say whether a function is of the recipe's kind, and why that cannot be told in full.

    A port that could not be read is taken by its position: every second bridge below a root port is a switch's inside.
    """
    if pci.kinds and device.kind not in pci.kinds:
        return False, None
    for fact, patterns in (
        (device.class_code, pci.classes),
        (device.vendor, pci.vendors),
        (device.device, pci.devices),
    ):
        if patterns and (fact.value is None or not any(fits_pattern(fact.value, one) for one in patterns)):
            return False, None
    if not pci.port_types:
        return True, None
    kind = device.config.port_type.value or ("root-port" if is_root else None)
    if kind is not None:
        return kind in pci.port_types, None
    likely = ("upstream", "downstream")[len(device.path) % 2 == 0] if device.kind == SlotKind.BRIDGE else "endpoint"
    why_not = f"what kind of port it is could not be read ({device.config.port_type.reason})"
    return likely in pci.port_types, why_not


def _nothing(pci: PciMatch | None, machine: Machine) -> str:
    """Say that no function is of the recipe's kind, by what it asks for."""
    listed = machine.listed.get("devices")
    if listed is not None and not listed.is_known:
        return f"the PCI functions {_NOT_LISTED} ({listed.reason})"
    if pci is None:
        return "the recipe names no PCI function"
    parts = [" or ".join(pci.kinds)] if pci.kinds else []
    for name, patterns in (
        ("class", pci.classes),
        ("vendor", pci.vendors),
        ("device", pci.devices),
        ("port", pci.port_types),
    ):
        if patterns and not (name == "class" and pci.kinds):
            parts.append(f"{name} {' or '.join(patterns)}")
    return f"no PCI function here is {', '.join(parts) or 'matched'}"

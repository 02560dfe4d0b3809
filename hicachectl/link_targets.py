"""The accelerators that can be loaded: what torch sees, put beside what the host's PCI tree says of their links. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.render.topo_words import names_of
from hicachectl.runtime.probes.link_math import LinkTarget
from hicachectl.tuning.host.facts import Confidence, Fact
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind, Uplink
from hicachectl.tuning.host.uplinks import link_bytes_per_s

__all__ = ["chosen_targets", "link_targets", "memory_nodes"]


def link_targets(machine: Machine, devices: Sequence[Any]) -> tuple[LinkTarget, ...]:
    """Return the accelerators of torch (`transfer.accelerators.TorchAccelerator`) as targets, by address, as the machine lists them.

    One whose address is not known, or not among the machine's devices, has no uplink, and the reason says which it is.
    """
    names = names_of(machine)
    listed = {device.address: device for device in machine.devices}
    order = {address: at for at, address in enumerate(listed)}
    found = []
    for one in devices:
        address = one.address
        if address not in listed:
            reason = one.reason if address is None else f"{address} is not among the PCI devices of this host"
            found.append(LinkTarget(address or one.name, one.name, one.name, math_reason=reason))
            continue
        uplink = _uplink_of(machine, address)
        if uplink is None:
            end = _own_end(listed[address])
            found.append(
                LinkTarget(
                    address,
                    names.of(address),
                    one.name,
                    listed[address].node.value,
                    own_bytes_per_s=end.value,
                    math_source=end.source,
                    math_reason=end.reason,
                )
            )
            continue
        own: Fact[float] = uplink.solo_bytes_per_s[address]
        capacity = uplink.capacity_bytes_per_s
        found.append(
            LinkTarget(
                address,
                names.of(address),
                one.name,
                listed[address].node.value,
                uplink.id,
                tuple(other for other in uplink.accelerators if other != address),
                own.value,
                capacity.value,
                own.source,
                own.reason or capacity.reason,
            )
        )
    return tuple(sorted(found, key=lambda target: order.get(target.address, len(order))))


def chosen_targets(machine: Machine, targets: Sequence[LinkTarget], name: str | None) -> tuple[LinkTarget, ...]:
    """Return the targets a display name or a PCI address stands for: an accelerator, or all behind an uplink. None: all. Pure.

    Raises UsageError with the names there are.
    """
    if name is None:
        return tuple(targets)
    wanted = {name.lower()}
    for uplink in machine.uplinks:
        if name.lower() in (uplink.id.lower(), uplink.port, uplink.root_port):
            wanted |= set(uplink.accelerators)
    found = tuple(
        target for target in targets if wanted & {target.address.lower(), target.name.lower(), target.device.lower()}
    )
    if found:
        return found
    there = [*(uplink.id for uplink in machine.uplinks), *(target.name for target in targets)]
    names = names_of(machine)
    listed = {
        device.address: names.of(device.address) for device in machine.devices if device.kind == SlotKind.ACCELERATOR
    }
    unseen = wanted & {*(address.lower() for address in listed), *(short.lower() for short in listed.values())}
    why = (
        "torch does not see it in this process" if unseen else "it is neither an uplink nor an accelerator of this host"
    )
    raise UsageError(
        f"{name} cannot be loaded", where=name, why=why, hint=f"one of {', '.join(there) or 'none: torch sees no accelerator'}"
    )  # fmt: skip


def memory_nodes(machine: Machine) -> tuple[int, ...]:
    """Return the nodes whose memory this process may use, accelerators' own memory left out. Pure."""
    allowed = machine.numa.allowed_nodes.value
    return tuple(
        node.id
        for node in machine.numa.nodes
        if node.online.value is not False
        and node.kind.value not in ("memory-less", "device-memory")
        and (allowed is None or node.id in allowed)
    )


def _own_end(device: PciDevice) -> Fact[float]:
    """What an accelerator without a port above it tells of its link, as in a virtual machine: believed where it runs at its top speed."""
    link, source = device.link, f"link math of {device.address}, the accelerator's own end"
    now, top, width = link.speed_now_gt_s.value, link.speed_max_gt_s.value, link.width_now.value
    if now is None or top is None or width is None:
        return Fact(
            None, source, Confidence.DERIVED, "no port above it was found, and it tells no speed or width of its own"
        )
    if now < top:
        reason = f"no port above it was found; its own end runs at {now:g} of {top:g} GT/s, idle or for good"
        return Fact(None, source, Confidence.DERIVED, reason)
    return Fact(link_bytes_per_s(top, width), source, Confidence.DERIVED)


def _uplink_of(machine: Machine, address: str) -> Uplink | None:
    return next((uplink for uplink in machine.uplinks if address in uplink.accelerators), None)

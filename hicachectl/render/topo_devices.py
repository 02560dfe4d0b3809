"""The tables of devices on the screen of `topo`: uplinks, accelerators, NICs and disks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.render.topo_marks import Marks
from hicachectl.render.topo_words import (
    Names,
    ido,
    is_virtual_disk,
    link_text,
    node_text,
    on_off,
    ranges,
    rate,
    word,
)
from hicachectl.tuning.host.facts import Fact, is_absent
from hicachectl.tuning.host.gaps import is_gone, maybe_accelerators, why_no_accelerators, why_unidentified
from hicachectl.tuning.host.model import Machine, PciDevice, SlotKind, Uplink
from hicachectl.tuning.host.uplinks import is_unidentified
from hicachectl.tuning.judge_ordering import redirects
from hicachectl.units import counted

__all__ = ["draw_accelerators", "draw_others", "uplink_table"]

_IO = (SlotKind.RDMA_NIC, SlotKind.NIC, SlotKind.NVME)


def uplink_table(machine: Machine, names: Names, marks: Marks) -> Table:
    """Return a row an uplink: what shares it, and what it can carry."""
    columns = (
        Column("UPLINK"), Column("PORT"), Column("LINK now/max"), Column("CAP GiB/s", right=True), Column("SHARED BY"),
        Column("IDO req/cpl", keep=3), Column("NODE", right=True, keep=2), Column("NOTE", keep=1),
        Column("ROOT PORT", wide=True, keep=5), Column("OVERSUB", right=True, wide=True, keep=4),
    )  # fmt: skip
    devices = {device.address: device for device in machine.devices}
    rows = [_uplink_row(uplink, devices, names, marks) for uplink in machine.uplinks]
    return Table(columns, rows, rest="-o json")


def _uplink_row(uplink: Uplink, devices: Mapping[str, PciDevice], names: Names, marks: Marks) -> list[str | None]:
    over = uplink.oversubscription.value
    members = [devices[address] for address in uplink.accelerators if address in devices]
    configs = [
        device.config for device in members if not device.is_vf.value
    ]  # a virtual function has no bits of its own
    lost = {address for address in uplink.shared_by if address in devices and is_gone(devices[address])}
    dead = lost >= set(uplink.accelerators)
    return [
        uplink.id,
        uplink.port,
        "gone" if dead else link_text(uplink.link),
        "-" if dead else rate(uplink.capacity_bytes_per_s),
        " ".join(names.of(one) + ("(gone)" if one in lost else "") for one in uplink.shared_by),
        ido(configs, sum(is_unidentified(devices[one]) for one in uplink.shared_by if one in devices)),
        word(uplink.node),
        marks.about(uplink.id, uplink.port, uplink.root_port),
        uplink.root_port,
        "?" if over is None else f"{over:.1f}",
    ]


def draw_accelerators(
    screen: Screen, machine: Machine, persistence: Fact[dict[str, str]] | None, names: Names, marks: Marks
) -> None:
    """Draw a row an accelerator; `persistence` is by address, None where it was not asked for."""
    found = [device for device in machine.devices if device.kind == SlotKind.ACCELERATOR]
    if not found:
        why = why_no_accelerators(machine)
        screen.paragraph("ACCEL ", "none" if why is None else f"not known: {why}")
        return
    columns = [
        Column("ACCEL"), Column("ADDRESS"), Column("UPLINK"), Column("NODE", right=True), Column("CPUS", keep=3),
        Column("SOLO GiB/s", right=True, keep=2), Column("ALL BUSY", right=True, keep=2), Column("NOTE", keep=1),
        Column("DRIVER", wide=True, keep=4), Column("IOMMU", wide=True, keep=5), Column("ACS", wide=True, keep=6),
        Column("HOPS", right=True, wide=True, keep=7), Column("RO", wide=True, keep=8), Column("IDS", wide=True, keep=9),
        Column("NAME", wide=True, keep=10), Column("RULE", wide=True, keep=11),
    ]  # fmt: skip
    if persistence is not None:
        columns.append(Column("PERSIST", wide=True, keep=9))
    ports = {device.address: device for device in machine.devices}
    uplinks = {uplink.id: uplink for uplink in machine.uplinks}
    cpus = {node.id: node.cpus for node in machine.numa.nodes}
    rows = []
    for device in found:
        uplink = uplinks.get(names.uplink.get(device.address, ""))
        gone = is_gone(device)
        near = cpus.get(device.node.value, device.local_cpus) if device.node.value is not None else device.local_cpus
        row = [
            names.of(device.address),
            device.address,
            uplink.id if uplink else "?",
            node_text(device),
            "?" if near.value is None else ranges(near.value) or "none",
            "gone" if gone else rate(uplink.solo_bytes_per_s.get(device.address)) if uplink else "?",
            "gone" if gone else rate(uplink.busy_bytes_per_s) if uplink else "?",
            marks.about(device.address, names.of(device.address)),
            word(device.driver, _none_or_unknown(device.driver)),
            _iommu(device),
            _acs(device, ports),
            str(len(device.path)),
            on_off(device.config.relaxed_ordering),
            f"{word(device.vendor)}:{word(device.device)}",
            word(device.name),
            device.kind_rule,
        ]
        if persistence is not None:
            row.append((persistence.value or {}).get(device.address, "?"))
        rows.append(row)
    screen.table(Table(columns, rows, rest="-o json"))
    doubtful = maybe_accelerators(machine)
    if doubtful:
        screen.paragraph("  may be more: ", why_unidentified(doubtful))


def draw_others(screen: Screen, machine: Machine, names: Names, marks: Marks) -> None:
    """Draw a row a NIC or disk; virtual functions without a short name are only counted."""
    found = [d for d in machine.devices if d.kind in _IO or is_virtual_disk(d)]
    shown = [device for device in found if device.address in names.short]
    if not shown:
        return
    columns = (
        Column("I/O"), Column("ADDRESS"), Column("UPLINK"), Column("NODE", right=True), Column("KIND", keep=2),
        Column("LINK now/max", keep=3), Column("INTERFACES", keep=4), Column("NOTE", keep=1), Column("DRIVER", wide=True, keep=5),
        Column("IOMMU", wide=True, keep=6), Column("HOPS", right=True, wide=True, keep=7), Column("NAME", wide=True, keep=8),
    )  # fmt: skip
    rows = [
        (
            names.of(d.address), d.address, names.uplink.get(d.address), node_text(d), "disk" if is_virtual_disk(d) else d.kind, link_text(d.link),
            " ".join((*d.interfaces, *_unlisted(d))) or None, marks.about(d.address, names.of(d.address)),
            word(d.driver, _none_or_unknown(d.driver)), _iommu(d), str(len(d.path)), word(d.name),
        )
        for d in shown
    ]  # fmt: skip
    screen.table(Table(columns, rows, rest="-o json"))
    if len(found) > len(shown):
        screen.print(f"and {counted(len(found) - len(shown), 'virtual function')}: -o json")


def _unlisted(device: PciDevice) -> tuple[str, ...]:
    interfaces = device.listed.get("interfaces")
    return ("?",) if interfaces is not None and not interfaces.is_known else ()


def _iommu(device: PciDevice) -> str:
    if device.iommu_group.value is None:
        return _none_or_unknown(device.iommu_group)
    return f"{device.iommu_group.value} {word(device.iommu_domain)}"


def _none_or_unknown(fact: Fact[Any]) -> str:
    return "none" if is_absent(fact.reason or "") else "?"


def _acs(device: PciDevice, ports: Mapping[str, PciDevice]) -> str:
    """Whether a port of a switch on the way sends peer traffic up to the root complex."""
    if len(device.path) < 2:
        return "no switch"
    states = [redirects(ports[address]) if address in ports else None for address in device.path[1:]]
    return "redirect" if True in states else "?" if None in states else "direct"

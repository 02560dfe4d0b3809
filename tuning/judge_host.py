"""Findings about the host around it: IOMMU, idle states, container, and what could not be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from hicachectl.tuning.finding import HOST, Finding, Sight, some
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import PciDevice, SlotKind

__all__ = ["judge_host"]

DEEP_EXIT_US = 100
"""An idle state that takes longer to leave is deep (docs/facts.md#idle-states). Our choice between the two families."""
_STRICT, _LAZY = ("DMA", "strict"), ("DMA-FQ", "lazy")
_DENIED = "permission denied"
_SNAPSHOT_AS_ROOT = "take the snapshot as root: sudo hicachectl topo snapshot FILE.tar.zst"
_NODES, _DEVICES = "/sys/devices/system/node", "/sys/bus/pci/devices"


def judge_host(sight: Sight) -> Iterator[Finding]:
    """Yield the findings of the host area. Pure."""
    yield from _iommu(sight)
    yield from _idle(sight)
    yield from _container(sight)
    yield from _need_root(sight)
    yield from _suspended(sight)
    yield from _virtual(sight)
    yield from _gone(sight)
    yield from _nothing(sight)


def _iommu(sight: Sight) -> Iterator[Finding]:
    """Judge the domains of what moves data; the host's mode only where no group of theirs is known."""
    domains = [(d, d.iommu_domain) for d in sight.movers if d.iommu_domain.value is not None]
    mode = sight.machine.host.iommu_mode
    for code, words in (("HC-IOMMU-STRICT", _STRICT), ("HC-IOMMU-TRANSLATED", _LAZY)):
        hit = [(d, fact) for d, fact in domains if fact.value in words]
        if hit:
            subject, told, source = hit[0][0].address, some(d.address for d, _ in hit), hit[0][1].source
        elif not domains and mode.value in words:
            subject, told, source = HOST, "every device", mode.source
        else:
            continue
        strict = code == "HC-IOMMU-STRICT"
        heavy = strict and (bool(sight.accelerators) or subject == HOST)
        cost = "and flushed at each unmap" if strict else "and flushed later, in batches"
        yield Finding(
            code,
            "warn" if heavy else "note",
            subject,
            f"addresses of {told} are translated (domain {words[0]}, identity would pass them through) {cost}",
            "cat /proc/cmdline",
            source,
        )


def _idle(sight: Sight) -> Iterator[Finding]:
    host = sight.machine.host
    state, exit_us = host.deepest_idle_state, host.deepest_idle_exit_us
    if exit_us.value is not None and exit_us.value >= DEEP_EXIT_US:
        yield Finding(
            "HC-CSTATE-DEEP",
            "note",
            HOST,
            f"processors may sleep in {state.value or 'a state'} that takes {exit_us.value} us to leave, {DEEP_EXIT_US} us or "
            "more: each completion that wakes one waits as long",
            "cpupower idle-info",
            exit_us.source,
        )


def _container(sight: Sight) -> Iterator[Finding]:
    container = sight.machine.host.container
    if container.value is not None and container.value != "none":
        yield Finding(
            "HC-CONTAINER",
            "note",
            HOST,
            f"this is a container ({container.value}): files show the host, limits and devices are the container's",
            "cat /proc/self/cgroup",
            container.source,
        )


# -- what could not be read -------------------------------------------------------------------------------------------


def _need_root(sight: Sight) -> Iterator[Finding]:
    short = [d for d in sight.machine.devices if _is_short(d)]
    of_interest = [d for d in short if d.kind != SlotKind.OTHER]
    advice = _SNAPSHOT_AS_ROOT if sight.recorded else "sudo hicachectl topo"
    denied = sorted({fact.source for fact in _facts(sight.machine) if fact.reason == _DENIED})
    if of_interest:
        first = of_interest[0]
        yield Finding(
            "HC-NEED-ROOT",
            "note",
            first.address,
            f"config space of {len(short)} functions ends after 64 bytes (256 or 4096 with CAP_SYS_ADMIN): payload, "
            f"ordering, ACS and power saving of {some(d.address for d in of_interest)} are not known",
            advice,
            first.config.readable_bytes.source,
        )
    if denied:
        yield Finding(
            "HC-NEED-ROOT",
            "note",
            denied[0],
            f"permission denied for {len(denied)} file{'s' if len(denied) > 1 else ''}, so what they say is not known: {some(denied)}",
            advice,
            denied[0],
        )


def _is_short(device: PciDevice) -> bool:
    return device.config.readable_bytes.value == 64


def _facts(value: object) -> Iterator[Fact[object]]:
    """Walk every fact of a value, in the order of its fields."""
    if isinstance(value, Fact):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _facts(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _facts(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _facts(item)


def _suspended(sight: Sight) -> Iterator[Finding]:
    asleep = [
        d
        for d in sight.machine.devices
        if d.kind != SlotKind.OTHER
        and d.runtime_status.value in ("suspended", "suspending")
        and not d.config.readable_bytes.is_known
    ]
    if asleep:
        yield Finding(
            "HC-SUSPENDED",
            "note",
            asleep[0].address,
            f"{some(d.address for d in asleep)} sleep (runtime status {asleep[0].runtime_status.value}, active when in use); "
            "their registers were not read, which would wake them",
            "take it awake: hicachectl topo snapshot FILE.tar.zst --wake"
            if sight.recorded
            else "hicachectl topo --wake",
            asleep[0].runtime_status.source,
        )


def _virtual(sight: Sight) -> Iterator[Finding]:
    virtual = [d for d in sight.accelerators if d.is_vf.value]
    if virtual:
        yield Finding(
            "HC-VF",
            "note",
            virtual[0].address,
            f"{some(d.address for d in virtual)} are virtual functions: link and ordering are those of the physical function",
            f"ls -l /sys/bus/pci/devices/{virtual[0].address}/physfn",
            virtual[0].is_vf.source,
        )


def _gone(sight: Sight) -> Iterator[Finding]:
    for device in sight.machine.devices:
        reason = device.config.readable_bytes.reason or device.config.port_type.reason or ""
        if device.vendor.value == "ffff" or "all ones" in reason:
            yield Finding(
                "HC-DEVICE-GONE",
                "error",
                device.address,
                f"{device.address} is listed but its registers read all ones (ff): it left the bus",
                "dmesg | tail",
                device.config.readable_bytes.source,
            )


def _nothing(sight: Sight) -> Iterator[Finding]:
    """Say so where there is nothing to judge: no finding about nothing looks like health."""
    machine = sight.machine
    nodes = (fact for n in machine.numa.nodes for fact in (n.cpus, n.memory_total_bytes, n.distances))
    devices = (fact for d in machine.devices for fact in (d.class_code, d.vendor, d.device))
    if any(fact.is_known for fact in (*nodes, *devices)):
        return
    seen = (machine.numa.listed.get("nodes"), machine.listed.get("devices"))
    told = [_why_none(fact, path) for fact, path in zip(seen, (_NODES, _DEVICES), strict=True)]
    yield Finding(
        "HC-NOTHING-READ",
        "error",
        HOST,
        f"no NUMA node and no PCI device could be read: {told[0]}, {told[1]}; nothing is judged, and no finding means nothing",
        "hicachectl topo snapshot FILE.tar.zst" if sight.recorded else f"ls {_NODES} {_DEVICES}",
        f"{_NODES}, {_DEVICES}",
    )


def _why_none(listed: Fact[int] | None, path: str) -> str:
    """Say why a list has nothing to judge: not read, empty, or of things that could not be read. Pure."""
    if listed is None or listed.value is None:
        return f"{listed.reason if listed else 'not read'} ({path})"
    return f"{'nothing' if listed.value == 0 else f'{listed.value} listed, none readable'} ({path})"

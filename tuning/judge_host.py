"""Findings about the host around it: IOMMU, idle states, container, and what could not be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from hicachectl.tuning.finding import HOST, Finding, Sight, some
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.gaps import (
    DEVICES,
    NODES,
    is_gone,
    maybe_accelerators,
    why_no_devices,
    why_no_nodes,
    why_unidentified,
)
from hicachectl.tuning.host.iommu import DMA, DMA_FQ, dma_flushing
from hicachectl.tuning.host.model import PciDevice, SlotKind

__all__ = ["judge_host"]

DEEP_EXIT_US = 100
"""An idle state that takes longer to leave is deep (docs/facts.md#idle-states). Our choice between the two families."""
_FLUSHED = {
    "strict": " and flushed at each unmap",
    "lazy": " and flushed later, in batches",
    "translated": "; whether they are flushed at each unmap or later is not known",
}
_FLUSH_LOG = "sudo dmesg | grep -iE 'IO/?TLB flush'"
"""What the drivers of AMD and Intel say of it at boot (drivers/iommu, Linux 5.10)."""
_DENIED = "permission denied"
_SNAPSHOT_AS_ROOT = "take the snapshot as root: sudo hicachectl topo snapshot FILE.tar.zst"


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
    yield from _unidentified(sight)


def _iommu(sight: Sight) -> Iterator[Finding]:
    """Judge the domains of what moves data; the host's mode only where no group of theirs is known."""
    host = sight.machine.host
    domains = [(d, d.iommu_domain) for d in sight.movers if d.iommu_domain.value is not None]
    flushing = dma_flushing((d.iommu_domain.value for d in sight.machine.devices), host)
    modes = {DMA: flushing.mode, DMA_FQ: "lazy"}
    for code, mode in (
        ("HC-IOMMU-STRICT", "strict"),
        ("HC-IOMMU-TRANSLATED", "lazy"),
        ("HC-IOMMU-TRANSLATED", "translated"),
    ):
        hit = [(d, fact) for d, fact in domains if modes.get(str(fact.value)) == mode]
        if hit:
            subject, told, source = hit[0][0].address, some(d.address for d, _ in hit), hit[0][1].source
            kind = str(hit[0][1].value)
        elif not domains and host.iommu_mode.value == mode:
            subject, told, source = HOST, "every device", host.iommu_mode.source
            kind = DMA_FQ if mode == "lazy" != flushing.mode else DMA
        else:
            continue
        heavy = mode == "strict" and (bool(sight.accelerators) or subject == HOST)
        why = f" ({flushing.why})" if flushing.why is not None and (kind, mode) == (DMA, flushing.mode) else ""
        yield Finding(
            code,
            "warn" if heavy else "note",
            subject,
            f"addresses of {told} are translated (domain {kind}, identity would pass them through){_FLUSHED[mode]}{why}",
            _FLUSH_LOG if mode == "translated" else "cat /proc/cmdline",
            source,
            tuple(d.address for d, _ in hit),
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
            f"config space of {len(short)} function{'s' if len(short) > 1 else ''} ends after 64 bytes (256 or 4096 with "
            "CAP_SYS_ADMIN): payload, ordering, ACS and power saving are not known of "
            f"{some(d.address for d in (*of_interest, *(d for d in short if d.kind == SlotKind.OTHER)))}",
            advice,
            first.config.readable_bytes.source,
            tuple(d.address for d in short),
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
            else "sudo hicachectl topo --wake",
            asleep[0].runtime_status.source,
            tuple(d.address for d in asleep),
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
            tuple(d.address for d in virtual),
        )


def _gone(sight: Sight) -> Iterator[Finding]:
    for device in sight.machine.devices:
        if is_gone(device):
            yield Finding(
                "HC-DEVICE-GONE",
                "error",
                device.address,
                f"{device.address} is listed but its registers read all ones (ff): it left the bus",
                f"sudo dmesg | grep {device.address}",
                device.config.readable_bytes.source,
            )


def _nothing(sight: Sight) -> Iterator[Finding]:
    """Say so where there is nothing to judge: no finding about nothing looks like health."""
    machine = sight.machine
    nodes, devices = why_no_nodes(machine), why_no_devices(machine)
    listed = machine.listed.get("devices")
    if nodes is not None and (devices is not None or not machine.devices):
        devices = devices or f"{'nothing' if listed else 'not read'} ({DEVICES})"
        yield _unread(sight, "HC-NOTHING-READ", "no NUMA node and no PCI device", (nodes, devices), "nothing is judged")
    elif devices is not None:
        what = "which accelerators there are, their links and their ordering"
        yield _unread(sight, "HC-PART-READ", "no PCI device", (devices,), f"{what} are not judged")
    elif nodes is not None:
        what = "memory by node, distances and what is near what"
        yield _unread(sight, "HC-PART-READ", "no NUMA node", (nodes,), f"{what} are not judged")


def _unread(sight: Sight, code: str, what: str, whys: tuple[str, ...], so: str) -> Finding:
    folders = [path for path in (NODES, DEVICES) if any(path in why for why in whys)]
    return Finding(
        code,
        "error",
        HOST,
        f"{what} could be read: {', '.join(whys)}; {so}, and no finding means nothing",
        "hicachectl topo snapshot FILE.tar.zst" if sight.recorded else f"ls {' '.join(folders)}",
        ", ".join(folders),
    )


def _unidentified(sight: Sight) -> Iterator[Finding]:
    """Name the functions that may be accelerators: an error where none is known, for then none of them is judged."""
    found = maybe_accelerators(sight.machine)
    if not found or why_no_devices(sight.machine) is not None:
        return
    first = found[0]
    unread = next(fact for fact in (first.class_code, first.vendor, first.device) if not fact.is_known)
    known = f"{len(sight.accelerators)} accelerators are known" if sight.accelerators else "no accelerator is known"
    yield Finding(
        "HC-KIND-UNKNOWN",
        "warn" if sight.accelerators else "error",
        first.address,
        f"{some(d.address for d in found)} may be accelerators: {why_unidentified(found)}; {known}, and what may be one is not judged",
        f"lspci -nns {first.address}",
        unread.source,
        tuple(d.address for d in found),
    )

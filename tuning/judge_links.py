"""Findings about PCIe links: width, speed, who shares one, payload, power saving, errors, BAR size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hicachectl.tuning.finding import Finding, PathLink, Severity, Sight, known_values, some
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import PciDevice, SlotKind
from hicachectl.units import MIB, format_bytes, format_rate

__all__ = ["judge_links"]

SMALL_BAR_BYTES = 256 * MIB
"""Window of an accelerator without a large BAR (docs/facts.md#bar)."""
_NO_PORT = "no port above it is listed"


def judge_links(sight: Sight) -> Iterator[Finding]:
    """Yield the findings of the link area. Pure."""
    for link in sight.links:
        yield from _width(sight, link)
        yield from _speed(sight, link)
    yield from _shared(sight)
    yield from _payload(sight)
    yield from _aspm(sight)
    yield from _aer(sight)
    yield from _bars(sight)


def _width(sight: Sight, link: PathLink) -> Iterator[Finding]:
    now = _first_known([end.link.width_now for end in reversed(link.ends)])
    limits = [end.link.width_max for end in link.ends]
    both = list(known_values(limits))
    if now is None or now.value is None or not both:
        return
    subject, widest, possible = _subject(sight, link), max(both), min(both)
    complete = len(both) == 2
    effect = f": {now.value / possible:.0%} of it is there for {some(d.address for d in link.carries)}"
    if now.value < possible:
        severity: Severity = "note" if not complete else "error" if link.has_accelerator else "warn"
        unread = "" if complete else f"; the other end's own width is not known ({_why_unknown(limits)})"
        message = f"{_name(link)} runs x{now.value} of x{possible}{effect if complete else unread}"
    elif complete and now.value < (link.lower.link.width_max.value or 0):
        severity = "note"
        message = f"{_name(link)} runs x{now.value}: the slot ends there, {link.lower.address} could take x{widest}"
    else:
        return
    hint = f"sudo lspci -vvs {link.lower.address}"
    if severity == "error":
        hint = f"reseat the card, then: hicachectl bench link {_loaded(sight, link)}"
    yield Finding("HC-LINK-WIDTH", severity, subject, message, hint, now.source, _rows(sight, link))


def _speed(sight: Sight, link: PathLink) -> Iterator[Finding]:
    now = _first_known([end.link.speed_now_gt_s for end in reversed(link.ends)])
    limits = [end.link.speed_max_gt_s for end in link.ends]
    tops = [limit.value for limit in limits if limit.value is not None]
    if now is None or now.value is None or not tops or now.value >= min(tops):
        return
    half = ""
    if len(tops) < 2:
        unread = [f"the top speed of {end.address}" for end in link.ends if not end.link.speed_max_gt_s.is_known]
        half = f" ({some(unread)} is not known: {_why_unknown(limits)})" if unread else f" ({_NO_PORT})"
    message = (
        f"{_name(link)} is at {now.value:g} of {'at most ' if half else ''}{min(tops):g} GT/s{half}: idle? Devices slow down "
        "when nothing moves, so this is a fault only under load"
    )
    look = f"sudo lspci -vvs {link.lower.address}"
    hint = f"hicachectl bench link {_loaded(sight, link)}" if link.has_accelerator else look
    yield Finding("HC-LINK-SPEED", "note", link.lower.address, message, hint, now.source, _rows(sight, link))


def _shared(sight: Sight) -> Iterator[Finding]:
    for uplink in sight.shared_uplinks:
        if uplink.oversubscription.value is not None and uplink.oversubscription.value <= 1:
            continue
        capacity, busy = uplink.capacity_bytes_per_s, uplink.busy_bytes_per_s
        sharing = f"{uplink.id}: {some(uplink.shared_by, most=6)} share the link of {uplink.port}"
        if capacity.value is None:
            sharing += f"; its capacity is not known ({capacity.reason})"
        elif busy.value is None:
            sharing += f", {format_rate(capacity.value)} by link math; what each gets when all are busy is not known ({busy.reason})"
        else:
            sharing += f", {format_rate(capacity.value)} by link math, {format_rate(busy.value)} each when all are busy"
        yield Finding(
            "HC-UPLINK-SHARED", "note", uplink.port, sharing, "hicachectl topo matrix", capacity.source, uplink.shared_by
        )  # fmt: skip


def _payload(sight: Sight) -> Iterator[Finding]:
    seen: set[tuple[str, ...]] = set()
    for mover in sight.movers:
        chain = sight.on_path(mover)
        sizes = {d.address: d.config.max_payload_bytes for d in chain if d.config.max_payload_bytes.value is not None}
        different = sorted({fact.value for fact in sizes.values() if fact.value is not None})
        if len(different) < 2:
            continue
        at = tuple(sizes)
        if at[:-1] in seen:
            continue
        seen.add(at[:-1])
        steps = ", ".join(f"{address} {fact.value}" for address, fact in sizes.items())
        yield Finding(
            "HC-MPS-MISMATCH",
            "warn",
            mover.address,
            f"payload limits differ along the path, in bytes: {steps}; a packet larger than the next hop takes is an error",
            f"sudo lspci -vvs {mover.address}",
            sizes[at[-1]].source,
            at,
        )


def _aspm(sight: Sight) -> Iterator[Finding]:
    for mover in sight.movers:
        on = [d for d in sight.on_path(mover) if d.config.aspm.value not in (None, "", "off", "none", "disabled")]
        if on and (mover is _first_mover(sight, on[0])):
            severity: Severity = "warn" if any(link.has_accelerator for link in _links_at(sight, on)) else "note"
            states = ", ".join(f"{d.address} {d.config.aspm.value}" for d in on)
            yield Finding(
                "HC-ASPM-ON",
                severity,
                on[0].address,
                f"link power saving is enabled on the way to {mover.address}: {states}; the link wakes up before each burst",
                f"sudo lspci -vvs {on[0].address}",
                on[0].config.aspm.source,
                (*(d.address for d in on), mover.address),
            )


def _aer(sight: Sight) -> Iterator[Finding]:
    done: set[str] = set()
    for mover in sight.movers:
        for device in sight.on_path(mover):
            counts = {kind: fact for kind, fact in device.aer.items() if fact.value}
            if device.address in done or not counts:
                continue
            done.add(device.address)
            only_corrected = all(kind.removeprefix("aer_dev_") == "correctable" for kind in counts)
            told = ", ".join(f"{fact.value} {kind.removeprefix('aer_dev_')}" for kind, fact in counts.items())
            yield Finding(
                "HC-AER-RISING",
                "note" if only_corrected else "warn",
                device.address,
                f"{told} errors since boot, on the way to {mover.address}; one look cannot tell whether they rise",
                f"grep TOTAL /sys/bus/pci/devices/{device.address}/aer_dev_*",
                next(iter(counts.values())).source,
                (mover.address,),
            )


def _bars(sight: Sight) -> Iterator[Finding]:
    small = [
        d
        for d in sight.accelerators
        if d.bar_bytes.value is not None and d.bar_bytes.value <= SMALL_BAR_BYTES and not d.is_vf.value
    ]
    for device in small:
        yield Finding(
            "HC-BAR-SMALL",
            "note",
            device.address,
            f"the largest memory window is {format_bytes(device.bar_bytes.value or 0)}, at most "
            f"{format_bytes(SMALL_BAR_BYTES)}: NICs and other accelerators reach device memory through it alone",
            f"lspci -vs {device.address}",
            device.bar_bytes.source,
        )


# -- names ------------------------------------------------------------------------------------------------------------


def _first_known(facts: list[Fact[int]] | list[Fact[float]]) -> Fact[int] | Fact[float] | None:
    return next((fact for fact in facts if fact.value is not None), None)


def _why_unknown(facts: Sequence[Fact[int] | Fact[float]]) -> str:
    return next((fact.reason for fact in facts if fact.reason is not None), _NO_PORT)


def _name(link: PathLink) -> str:
    return (
        f"the link {link.upper.address} - {link.lower.address}" if link.upper else f"the link of {link.lower.address}"
    )


def _loaded(sight: Sight, link: PathLink) -> str:
    """What `bench link` loads to fill a link that accelerators use: their uplink, or the one accelerator."""
    behind = [device.address for device in link.carries if device.kind == SlotKind.ACCELERATOR]
    uplink = next((u for u in sight.machine.uplinks if set(behind) <= set(u.accelerators)), None)
    return uplink.id if uplink is not None and (len(behind) > 1 or len(uplink.accelerators) == 1) else behind[0]


def _subject(sight: Sight, link: PathLink) -> str:
    """The uplink's port when this is a shared uplink's link, else the lower end."""
    ends = [end.address for end in link.ends]
    return next((u.port for u in sight.machine.uplinks if u.port in ends), link.lower.address)


def _rows(sight: Sight, link: PathLink) -> tuple[str, ...]:
    return (_subject(sight, link), *(end.address for end in link.ends), *(device.address for device in link.carries))


def _first_mover(sight: Sight, device: PciDevice) -> PciDevice | None:
    return next((m for m in sight.movers if device.address in (*m.path, m.address)), None)


def _links_at(sight: Sight, devices: list[PciDevice]) -> Iterator[PathLink]:
    addresses = {device.address for device in devices}
    return (link for link in sight.links if any(end.address in addresses for end in link.ends))

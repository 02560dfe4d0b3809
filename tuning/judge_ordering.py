"""Findings about ordering: ID-based and relaxed ordering, redirected peer traffic. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hicachectl.tuning.finding import Finding, Sight, some
from hicachectl.tuning.host.model import PciDevice, SlotKind, Uplink

__all__ = ["RO_FLAGGED_PORTS", "judge_ordering", "redirects"]

RO_FLAGGED_PORTS = {
    "8086": frozenset(f"{first}{last:02x}" for first in ("6f", "2f") for last in range(0x01, 0x0F)),
    "1022": frozenset(("1a00", "1a01", "1a02")),
}
"""Root ports under which Linux clears relaxed ordering (docs/facts.md#relaxed-ordering): Haswell, Broadwell, A1100."""
_REQUESTS, _COMPLETIONS = 0x04, 0x08
"""ACS control: peer-to-peer request redirect, completion redirect (PCI_ACS_RR, PCI_ACS_CR of Linux pci_regs.h)."""
_NO_ACS = ("no ACS capability", "no PCI Express capability")
"""Reasons of a port that has nothing to redirect with, unlike one that was not read."""


def judge_ordering(sight: Sight) -> Iterator[Finding]:
    """Yield the findings of the ordering area. Pure."""
    yield from _ido(sight)
    yield from _root_complex(sight)
    yield from _relaxed(sight)
    yield from _redirect(sight)


# -- ID-based ordering ------------------------------------------------------------------------------------------------


def _ido(sight: Sight) -> Iterator[Finding]:
    """Judge each shared uplink as one, and the accelerators that share none as one group. Bits of VFs mean nothing."""
    cards = [d for d in sight.accelerators if not d.is_vf.value]
    on_somewhere = any(d.config.ido_request.value for d in cards)
    alone = list(cards)
    for uplink in sight.shared_uplinks:
        members = [d for d in cards if d.address in uplink.shared_by]
        alone = [d for d in alone if d not in members]
        on, off, tail = _by_bit(members)
        tail += _strangers([d for d in sight.unidentified if d.address in uplink.shared_by])
        if off and on:
            yield _unequal(on, off, f"{uplink.id}: ", uplink.port, "warn", tail)
        elif off:
            others = "; on behind another uplink" if on_somewhere else ""
            yield _off(off, f"{uplink.id}: ", uplink.port, True, others + tail, uplink)
    on, off, tail = _by_bit(alone)
    if off and on:
        yield _unequal(on, off, "", off[0].address, "note", tail)
    elif off:
        yield _off(off, "", off[0].address, False, tail, None)


def _by_bit(cards: Sequence[PciDevice]) -> tuple[list[PciDevice], list[PciDevice], str]:
    """Those that have the bit, those that have not, and words for those of which it was not read: they are neither."""
    on = [d for d in cards if d.config.ido_request.value]
    off = [d for d in cards if d.config.ido_request.value is False]
    unread = [d for d in cards if d.config.ido_request.value is None]
    if not unread:
        return on, off, ""
    reasons = dict.fromkeys(d.config.ido_request.reason or "" for d in unread)
    return on, off, f"; not known in {some(d.address for d in unread)} ({', '.join(reasons)})"


def _strangers(devices: Sequence[PciDevice]) -> str:
    """Words for functions that may be accelerators too: their bits do not count, and are not left out without a word."""
    if not devices:
        return ""
    missing = next(fact for fact in (devices[0].class_code, devices[0].vendor, devices[0].device) if not fact.is_known)
    return f"; what {some(d.address for d in devices)} {'is' if len(devices) == 1 else 'are'} was not read ({missing.reason})"


def _off(off: Sequence[PciDevice], name: str, subject: str, shared: bool, tail: str, uplink: Uplink | None) -> Finding:
    why = f", who write through one link ({uplink.port})" if uplink else ""
    return Finding(
        "HC-IDO-OFF",
        "warn" if shared else "note",
        subject,
        f"{name}ID-based ordering requests are off (0; 1 is on) in {some(d.address for d in off)}{why}{tail}",
        "hicachectl tune plan",
        off[0].config.ido_request.source,
        tuple(d.address for d in off),
    )


def _unequal(
    on: Sequence[PciDevice], off: Sequence[PciDevice], name: str, subject: str, severity: str, tail: str
) -> Finding:
    return Finding(
        "HC-IDO-UNEQUAL",
        "warn" if severity == "warn" else "note",
        subject,
        f"{name}ID-based ordering requests are on (1) in {some(d.address for d in on)}, off (0) in "
        f"{some(d.address for d in off)}{tail}",
        "hicachectl tune plan",
        off[0].config.ido_request.source,
        tuple(d.address for d in (*on, *off)),
    )


def _root_complex(sight: Sight) -> Iterator[Finding]:
    """One note for the host: what a root complex does with marked packets stands in no public register."""
    ports = [uplink for uplink in sight.shared_uplinks if len(uplink.accelerators) > 1]
    if not ports or sight.machine.host.virtualisation.value not in (None, "none"):
        return
    cpu = sight.machine.host.cpu_name
    yield Finding(
        "HC-RC-ORDER-UNKNOWN",
        "note",
        ports[0].root_port,
        f"whether the root complex ({cpu.value or 'CPU not known'}) lets writers behind one port pass each other is not "
        f"readable; {some(uplink.id for uplink in ports)} {'depend' if len(ports) > 1 else 'depends'} on it",
        "hicachectl explain HC-RC-ORDER-UNKNOWN",
        ports[0].capacity_bytes_per_s.source,
        tuple(uplink.id for uplink in ports),
    )


# -- relaxed ordering -------------------------------------------------------------------------------------------------


def _relaxed(sight: Sight) -> Iterator[Finding]:
    movers = [d for d in sight.movers if d.kind in (SlotKind.ACCELERATOR, SlotKind.RDMA_NIC) and not d.is_vf.value]
    for device in movers:
        relaxed, root = device.config.relaxed_ordering, _flagged_root(sight, device)
        if root is not None:
            state = {True: "on (1)", False: "off (0)", None: f"not known ({relaxed.reason})"}[relaxed.value]
            yield Finding(
                "HC-RO-FORBIDDEN",
                "warn" if relaxed.value else "note",
                device.address,
                f"root port {root.address} [{root.vendor.value}:{root.device.value}] is on the kernel's list of ports that "
                f"mishandle relaxed ordering; here it is {state}: leave it off",
                f"sudo lspci -vvs {device.address}",
                root.device.source,
            )
        elif relaxed.value is False:
            passing = [d.address for d in sight.on_path(device)[:-1] if d.config.no_ro_pr_pr_passing.value]
            useless = f"; {some(passing)} would not use it for writes" if passing else ""
            yield Finding(
                "HC-RO-OFF",
                "note",
                device.address,
                f"relaxed ordering is off (0, the register's default is 1){useless}; measure before and after a change",
                f"sudo lspci -vvs {device.address}",
                relaxed.source,
            )


def _flagged_root(sight: Sight, device: PciDevice) -> PciDevice | None:
    root = sight.by_address.get(device.path[0]) if device.path else None
    if root is None or root.vendor.value is None or root.device.value is None:
        return None
    return root if root.device.value in RO_FLAGGED_PORTS.get(root.vendor.value, ()) else None


# -- access control services ------------------------------------------------------------------------------------------


def redirects(port: PciDevice) -> bool | None:
    """Say whether a port sends what comes up through it on to the root complex; None where that was not read. Pure.

    Asked of the ports below a root port: what a root port redirects did turn round below it, where it could.
    """
    redirect = port.config.acs_redirect
    return False if (redirect.reason or "").startswith(_NO_ACS) else redirect.value


def _redirect(sight: Sight) -> Iterator[Finding]:
    """Judge the ports below one root port as one. A port with the bit redirects what comes up through it, and no more."""
    by_root: dict[str, list[PciDevice]] = {}
    for mover in sight.movers:
        if mover.path and not mover.is_vf.value:
            by_root.setdefault(mover.path[0], []).append(mover)
    for root, movers in by_root.items():
        ports = list(dict.fromkeys(port.address for mover in movers for port in sight.on_path(mover)[1:-1]))
        between = [sight.by_address[address] for address in ports]
        redirecting = [port for port in between if redirects(port)]
        if not redirecting or all(mover.kind != SlotKind.ACCELERATOR for mover in movers):
            continue
        control = ", ".join(f"{port.address} {port.config.acs_control.value or 0:#06x}" for port in redirecting)
        unread = [port for port in between if redirects(port) is None]
        tail = (
            f"; not known of {some(p.address for p in unread)} ({unread[0].config.acs_redirect.reason})"
            if unread
            else ""
        )
        yield Finding(
            "HC-ACS-REDIRECT",
            "warn" if len(movers) > 1 else "note",
            redirecting[0].address,
            f"{_redirected(redirecting, movers)} neighbours go up to root port {root} and back (ACS control {control}; "
            f"{_REQUESTS | _COMPLETIONS:#06x} clear would let them turn round in the switch){tail}",
            f"sudo lspci -vvs {redirecting[0].address}",
            redirecting[0].config.acs_redirect.source,
            (*(port.address for port in redirecting), *(mover.address for mover in movers)),
        )


def _redirected(ports: Sequence[PciDevice], movers: Sequence[PciDevice]) -> str:
    """Words for what is redirected of whom: "requests and completions of a, requests of b to their"."""
    kinds: dict[str, list[str]] = {}
    for mover in movers:
        bits = 0
        for port in ports:
            if port.address in mover.path:
                bits |= port.config.acs_control.value or 0
        kind = " and ".join(w for bit, w in ((_REQUESTS, "requests"), (_COMPLETIONS, "completions")) if bits & bit)
        if kind:
            kinds.setdefault(kind, []).append(mover.address)
    told = ", ".join(f"{kind} of {some(addresses)}" for kind, addresses in kinds.items())
    return f"{told} to {'its' if sum(map(len, kinds.values())) == 1 else 'their'}"

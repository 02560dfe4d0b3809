"""Which accelerators share which link, and what each gets when all are busy: link math over the PCI tree. Pure.

A link is named by the port at its upper end: a root port or a downstream port of a switch has exactly one. Everything that
moves data is one flow per lowest link (the functions of one card share theirs). Rates are max-min fair: raise all flows
alike until a link is full, freeze the flows that cross it, go on. The link that froze an accelerator is its narrowest
shared segment; devices on two root ports never meet in one.

A link can do what both of its ends can. Where one end's maximum was not read the link has the other's only if it runs at it
now; else it is not known, and neither is the capacity: what one end could do is in the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from hicachectl.tuning.host.facts import Confidence, Fact, unknown
from hicachectl.tuning.host.model import Link, PciDevice, SlotKind, Uplink

__all__ = ["find_uplinks", "is_unidentified", "link_bytes_per_s"]

N = TypeVar("N", int, float)

_MOVER_CLASSES = frozenset(("01", "02", "03", "0b", "12"))
"""Base classes that move data in bulk: storage, network, display, processors, accelerators."""
_MAY_BE_CLASSES = frozenset(("07", "10", "11", "ff"))
"""Base classes of which some move data in bulk: what they are is told by their ids (Kunlun is a communication controller)."""
_ORDER = (SlotKind.ACCELERATOR, SlotKind.RDMA_NIC, SlotKind.NIC, SlotKind.NVME)
_ABOVE_A_LINK = frozenset(("root-port", "downstream"))
_ABOVE_NO_LINK = frozenset(("upstream", "bridge"))


def link_bytes_per_s(gt_s: float, width: int) -> float:
    """Return what a link carries in one direction in bytes/s, after line encoding and before packet overhead. Pure.

    2.5 and 5 GT/s use 8b/10b, 8 to 32 GT/s 128b/130b (Linux `drivers/pci/pci.h`, PCIE_SPEED2MBS_ENC). From 64 GT/s on (PCIe 6)
    a FLIT of 256 bytes carries 242 besides its error correction and CRC (https://en.wikipedia.org/wiki/PCI_Express, table of
    generations: 242B/256B FLIT, 121 GB/s at x16); 6 of them are for link management, which like other packet overhead is not
    taken off.

    >>> round(link_bytes_per_s(32.0, 16) / 2**30, 1)
    58.7
    """
    encoding = 8 / 10 if gt_s < 8 else 128 / 130 if gt_s < 64 else 242 / 256
    return gt_s * 1e9 * width * encoding / 8


def find_uplinks(devices: Sequence[PciDevice]) -> tuple[Uplink, ...]:
    """Return one uplink for each group of accelerators with the same narrowest shared segment, by address. Pure.

    An accelerator alone on its way up has its own link as uplink; one without a port above it (integrated, or the tree was
    not recorded) has none.
    """
    tree = _Tree(devices)
    groups: dict[str, list[str]] = {}
    order = {device.address: index for index, device in enumerate(devices)}
    for device in devices:
        links = tree.chains.get(device.address)
        if device.kind == SlotKind.ACCELERATOR and links:
            groups.setdefault(tree.narrowest[links[-1]], []).append(device.address)
    ports = sorted(groups, key=lambda upper: order.get(tree.segments[upper].port, order[groups[upper][0]]))
    return tuple(_uplink(f"U{index}", tree, upper, groups[upper]) for index, upper in enumerate(ports))


@dataclass(frozen=True)
class _Segment:
    """One link: `upper` the port above it, `port` the one that names it (the switch's upstream port, else `upper`)."""

    upper: str
    port: str
    link: Link
    capacity: Fact[float]
    present: Fact[float]
    is_lowest: bool


class _Tree:
    """Links, who crosses them, and the max-min fair rates."""

    def __init__(self, devices: Sequence[PciDevice]) -> None:
        self.devices = {device.address: device for device in devices}
        self.children: dict[str, list[PciDevice]] = {}
        for device in devices:
            if device.parent is not None:
                self.children.setdefault(device.parent, []).append(device)
        movers = [d for d in devices if _moves_data(d) or (is_unidentified(d) and d.address not in self.children)]
        self.chains = {device.address: self._chain(device) for device in movers}
        """Links from the top down, by upper port."""
        self.segments: dict[str, _Segment] = {}
        for links in self.chains.values():
            for upper in links:
                if upper not in self.segments:
                    self.segments[upper] = self._segment(upper)
        self.flows = {links[-1]: links for links in self.chains.values() if links}
        """Links crossed, by lowest link."""
        self.by_shape = {
            links[0] for links in self.flows.values() if any(self._is_unknown_uplink(upper) for upper in links)
        }
        """Top links below which a switch's link is not known: there all links count alike."""
        self.incomplete = {
            links[0]
            for links in self.flows.values()
            if any(self.segments[upper].capacity.value is None for upper in links)
        }
        """Top links below which a link is not known: there rates mean nothing."""
        self.rates: dict[str, float] = {}
        self.narrowest: dict[str, str] = {}
        self._fill()

    def _chain(self, device: PciDevice) -> tuple[str, ...]:
        below = (*device.path, device.address)[1:]
        return tuple(
            upper
            for index, (upper, lower) in enumerate(zip(device.path, below, strict=True))
            if self._is_link(upper, lower, index)
        )

    def _is_link(self, upper: str, lower: str, index: int) -> bool:
        """Whether a link lies between two functions of a path, or the inside of a switch; by position where types are unknown."""
        above, below = self._port_type(upper), self._port_type(lower)
        if above in _ABOVE_A_LINK or above in _ABOVE_NO_LINK:
            return above in _ABOVE_A_LINK
        if below in ("upstream", "downstream"):
            return below == "upstream"
        return index % 2 == 0

    def _port_type(self, address: str) -> str | None:
        device = self.devices.get(address)
        return device.config.port_type.value if device else None

    def _segment(self, upper: str) -> _Segment:
        below = sorted(self.children.get(upper, ()), key=lambda one: one.is_vf.value is True)
        lower = next((one for one in below if one.link.width_now.value is not None), below[0] if below else None)
        above = self.devices.get(upper)
        link = _joined(
            lower.link if lower else _no_end(upper, "nothing is listed below it"),
            above.link if above else _no_end(upper, f"{upper} is not listed"),
        )
        leads_on = lower is not None and lower.address in self.children
        port = lower.address if lower is not None and leads_on else upper
        return _Segment(upper, port, link, _capacity(link, port), _present(link, port), not leads_on)

    def _fill(self) -> None:
        """Raise all flows alike until a link is full, freeze the flows that cross it, go on."""
        left: dict[str, float] = {}
        for upper, segment in self.segments.items():
            left[upper] = inf if segment.capacity.value is None else segment.capacity.value
        for links in self.flows.values():
            if links[0] in self.by_shape:
                left.update(dict.fromkeys(links, 1.0))
        active: dict[str, set[str]] = {upper: set() for upper in self.segments}
        for flow, links in self.flows.items():
            for upper in links:
                active[upper].add(flow)
        crossed = {upper: len(flows) for upper, flows in active.items()}
        while len(self.rates) < len(self.flows):
            upper, share = self._fullest(left, active, crossed)
            for flow in sorted(active[upper]):
                self.rates[flow], self.narrowest[flow] = share, upper
                for link in self.flows[flow]:
                    left[link] = max(0.0, left[link] - share) if left[link] != inf else inf
                    if link != upper:
                        active[link].discard(flow)
            active[upper] = set()

    def _fullest(
        self, left: dict[str, float], active: dict[str, set[str]], crossed: dict[str, int]
    ) -> tuple[str, float]:
        """The link that fills first; of equal ones a shared link before an own one, a switch's before a card's, the nearest."""
        shares = {upper: left[upper] / len(flows) for upper, flows in active.items() if flows}
        lowest = min(shares.values())
        nearly = [upper for upper, share in shares.items() if share == lowest or share <= lowest * (1 + 1e-9)]
        best = max(nearly, key=lambda u: (crossed[u] > 1, not self.segments[u].is_lowest, self._depth(u), u))
        return best, shares[best]

    def _is_unknown_uplink(self, upper: str) -> bool:
        return not self.segments[upper].is_lowest and self.segments[upper].capacity.value is None

    def _depth(self, upper: str) -> int:
        device = self.devices.get(upper)
        return len(device.path) if device else 0


def _uplink(name: str, tree: _Tree, upper: str, accelerators: list[str]) -> Uplink:
    segment = tree.segments[upper]
    members = [tree.devices[address] for address, links in tree.chains.items() if upper in links]
    members.sort(key=lambda one: _ORDER.index(one.kind) if one.kind in _ORDER else len(_ORDER))
    flows = {tree.chains[one.address][-1] for one in members}
    own = [tree.segments[flow].capacity for flow in sorted(flows)]
    solo = {one.address: _least([tree.segments[link].capacity for link in tree.chains[one.address]]) for one in members}
    rates = [tree.rates[tree.chains[address][-1]] for address in accelerators]
    source, capacity = segment.capacity.source, segment.capacity.value
    known_own = [one.value for one in own if one.value is not None]
    if capacity is None:
        busy = over = Fact[float](None, source, Confidence.DERIVED, segment.capacity.reason)
    else:
        busy = Fact(min(*rates, capacity), f"{source}, {len(flows)} links busy", Confidence.DERIVED)
        top = tree.chains[accelerators[0]][0]
        if top in tree.incomplete:
            busy = Fact(None, source, Confidence.DERIVED, f"the capacity of a link below {top} is not known")
        if len(known_own) == len(own):
            over = Fact(sum(known_own) / capacity, f"{source}, {len(flows)} links below", Confidence.DERIVED)
        else:
            over = Fact(None, source, Confidence.DERIVED, "the link of a member is not known")
    return Uplink(
        id=name, port=segment.port, root_port=tree.devices[accelerators[0]].path[0], link=segment.link,
        capacity_bytes_per_s=segment.capacity, shared_by=tuple(one.address for one in members),
        accelerators=tuple(accelerators), node=_node(tree, segment, members), solo_bytes_per_s=solo,
        busy_bytes_per_s=busy, oversubscription=over, present_bytes_per_s=segment.present,
    )  # fmt: skip


def is_unidentified(device: PciDevice) -> bool:
    """Whether what a function is was not read, so that it may be an accelerator: it shares links like one. Pure."""
    if device.kind != SlotKind.OTHER or device.config.port_type.value in (*_ABOVE_A_LINK, *_ABOVE_NO_LINK):
        return False
    if device.class_code.value is None:
        return True
    unread = device.vendor.value is None or device.device.value is None
    return unread and device.class_code.value[:2] in _MAY_BE_CLASSES


def _moves_data(device: PciDevice) -> bool:
    if device.kind == SlotKind.OTHER:
        return (device.class_code.value or "")[:2] in _MOVER_CLASSES
    return device.kind != SlotKind.BRIDGE


def _node(tree: _Tree, segment: _Segment, members: Iterable[PciDevice]) -> Fact[int]:
    port = tree.devices.get(segment.port)
    if port is not None and port.node.value is not None:
        return port.node
    nodes = {one.node.value: one.node for one in members if one.node.value is not None}
    if len(nodes) == 1:
        (node,) = nodes.values()
        return node
    reason = "members are on different nodes" if nodes else "firmware gives no node"
    return unknown(port.node.source if port else segment.port, reason)


def _no_end(port: str, reason: str) -> Link:
    """The end of a link that is not in the list of functions."""
    nothing: Fact[float] = unknown(port, reason)
    lanes: Fact[int] = unknown(port, reason)
    return Link(nothing, nothing, lanes, lanes)


def _joined(lower: Link, upper: Link) -> Link:
    """One link from its two ends: the lower end's word for now (ports of virtual machines make theirs up), the lesser for max."""
    speed_now = lower.speed_now_gt_s if lower.speed_now_gt_s.is_known else upper.speed_now_gt_s
    width_now = lower.width_now if lower.width_now.is_known else upper.width_now
    return Link(
        speed_now_gt_s=speed_now,
        speed_max_gt_s=_lesser(lower.speed_max_gt_s, upper.speed_max_gt_s, speed_now, "speed", "{:g} GT/s"),
        width_now=width_now,
        width_max=_lesser(lower.width_max, upper.width_max, width_now, "width", "x{}"),
    )


def _lesser(lower: Fact[N], upper: Fact[N], now: Fact[N], what: str, words: str) -> Fact[N]:
    """The lesser of the two ends' maxima; an end whose maximum is below what runs now is not believed.

    With one end left it is that end's where the link runs at it now, for then the other end can do so too; else unknown.
    """
    told = [end for end in (lower, upper) if end.value is not None]
    believed = [end for end in told if now.value is None or (end.value or 0) >= now.value]
    if not told:
        return lower
    if not believed:
        seen = " and ".join(words.format(end.value) for end in told).replace(" GT/s and", " and")
        reason = f"{seen} {'are' if len(told) > 1 else 'is'} below {words.format(now.value)}, which runs now"
        return Fact(None, told[0].source, Confidence.DERIVED, reason)
    least = min(believed, key=lambda end: end.value or 0)
    if len(believed) == 2 or least.value == now.value:
        return least
    other = upper if least is lower else lower
    why = other.reason or f"{words.format(other.value)} is below what runs now"
    reason = f"at most {words.format(least.value)}: the other end's top {what} is not known ({why})"
    return Fact(None, other.source, Confidence.DERIVED, reason)


def _capacity(link: Link, port: str) -> Fact[float]:
    """Link math at the present width and the highest speed both ends have: an idle link raises its speed under load."""
    return _math(link.speed_max_gt_s, link.width_now, f"link math of {port}")


def _present(link: Link, port: str) -> Fact[float]:
    return _math(link.speed_now_gt_s, link.width_now, f"link math of {port}")


def _math(speed: Fact[float], width: Fact[int], source: str) -> Fact[float]:
    if speed.value is None or width.value is None:
        missing: Fact[float] | Fact[int] = speed if speed.value is None else width
        return Fact(None, missing.source or source, Confidence.DERIVED, missing.reason)
    return Fact(
        link_bytes_per_s(speed.value, width.value),
        f"{source}: x{width.value} at {speed.value:g} GT/s",
        Confidence.DERIVED,
    )


def _least(capacities: Sequence[Fact[float]]) -> Fact[float]:
    for one in capacities:
        if one.value is None:
            return one
    return min(capacities, key=lambda one: one.value or 0.0)

"""Short words for the topology screens: links, lists of ids, facts that are not known, names of things. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import ConfigSpace, Link, Machine, PciDevice, SlotKind
from hicachectl.units import GIB

__all__ = [
    "Names",
    "gib",
    "ido",
    "is_virtual_disk",
    "link_text",
    "names_of",
    "node_text",
    "on_off",
    "ranges",
    "rate",
    "word",
]

_GENERATIONS = {2.5: "1", 5.0: "2", 8.0: "3", 16.0: "4", 32.0: "5", 64.0: "6", 128.0: "7"}


@dataclass(frozen=True)
class Names:
    """Display names by address: X0.. accelerators, N0.. NICs, D0.. disks; and the uplink of each."""

    short: Mapping[str, str]
    uplink: Mapping[str, str] = field(default_factory=dict)

    def of(self, address: str) -> str:
        """The display name, or the address of a thing without one."""
        return self.short.get(address, address)


def names_of(machine: Machine) -> Names:
    """Number the things of a machine in the order of their addresses. Virtual functions keep their address."""
    letters = {SlotKind.ACCELERATOR: "X", SlotKind.RDMA_NIC: "N", SlotKind.NIC: "N", SlotKind.NVME: "D"}
    counts = dict.fromkeys(letters.values(), 0)
    short: dict[str, str] = {}
    for device in machine.devices:
        letter = "D" if is_virtual_disk(device) else letters.get(device.kind)
        if letter is not None and (device.is_vf.value is not True or device.kind == SlotKind.ACCELERATOR):
            short[device.address] = f"{letter}{counts[letter]}"
            counts[letter] += 1
    return Names(short, {address: uplink.id for uplink in machine.uplinks for address in uplink.shared_by})


def is_virtual_disk(device: PciDevice) -> bool:
    """Whether a function is a disk of a virtual machine that is no NVMe: it may hold a storage tier all the same."""
    return device.kind == SlotKind.OTHER and (device.class_code.value or "")[:2] == "01" and bool(device.interfaces)


def word(fact: Fact[Any], unknown: str = "?") -> str:
    """The value as text, or `unknown`."""
    return unknown if fact.value is None else str(fact.value)


def on_off(fact: Fact[bool]) -> str:
    """on, off or ?."""
    return "?" if fact.value is None else "on" if fact.value else "off"


def ido(configs: Iterable[ConfigSpace], n_unidentified: int = 0) -> str:
    """ID-based ordering of requests and completions, "mixed" where the functions differ.

    A function of which a bit was not read has not the bit of the others: it is counted, as in "on / on, 1 unread",
    and so are the `n_unidentified` of which it is not known what they are.
    """
    pairs = [(config.ido_request, config.ido_completion) for config in configs]
    words, unread = [], set()
    for which in (0, 1):
        read = {on_off(pair[which]) for pair in pairs if pair[which].is_known}
        words.append("?" if not read else read.pop() if len(read) == 1 else "mixed")
        if words[-1] != "?":
            unread |= {number for number, pair in enumerate(pairs) if not pair[which].is_known}
    n_unread = len(unread) + n_unidentified
    return " / ".join(words) + (f", {n_unread} unread" if n_unread and words != ["?", "?"] else "")


def gib(fact: Fact[int], unknown: str = "?") -> str:
    """Bytes as whole GiB, one decimal below 10."""
    if fact.value is None:
        return unknown
    value = fact.value / GIB
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def rate(fact: Fact[float] | None) -> str:
    """Bytes a second as GiB/s, one decimal."""
    return "?" if fact is None or fact.value is None else f"{fact.value / GIB:.1f}"


def link_text(link: Link) -> str:
    """Generation and width, now / max: "4x8 / 4x16". An idle link may show a lower speed."""
    facts = (link.speed_now_gt_s, link.width_now, link.speed_max_gt_s, link.width_max)
    if all(fact.reason == "no such file" for fact in facts):
        return "no link"
    now = _one(link.speed_now_gt_s, link.width_now)
    most = _one(link.speed_max_gt_s, link.width_max)
    idle = (
        link.speed_now_gt_s.value is not None
        and link.speed_max_gt_s.value is not None
        and link.speed_now_gt_s.value < link.speed_max_gt_s.value
    )
    return f"{now} / {most}" + (" idle?" if idle else "")


def node_text(device: PciDevice) -> str:
    """The node, or "? near" with the nodes of the CPUs near it: never node 0 for an unknown one."""
    if device.node.value is not None:
        return str(device.node.value)
    near = device.node_fallback.value
    return f"? near {ranges(near)}" if near else "?"


def ranges(ids: Iterable[int]) -> str:
    """Ids as the kernel writes them.

    >>> ranges([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for one in sorted(set(ids)):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _one(speed: Fact[float], width: Fact[int]) -> str:
    generation = "?" if speed.value is None else _GENERATIONS.get(speed.value, f"{speed.value:g}GT/s")
    return f"{generation}x{'?' if width.value is None else width.value}"

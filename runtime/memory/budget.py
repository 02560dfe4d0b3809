"""Whether pools fit the host: one sum over everything that wants memory, from one look at the host, printed term by term. Pure.

    machine   total - other use - hugetlb held - left to the machine       what MemAvailable has, less the reserve
    cgroup    the limit up the tree that leaves least - what is used under it - left to the machine
    hugetlb   the free pages of the page size asked that nobody was promised, under the control group's limit on them; only pools of
              kind hugetlb draw on it

Everything is counted once for the host: the pools of all ranks, and a shared pool once however many map it. A sum that fits is a
promise of the kernel, no more: memory is had when its pages were touched (step `populate` of `mapping.py`). The locked-memory limit
is no term: registering with a GPU's driver is not bound by it (docs/facts.md#memlock), and nothing else here locks memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hicachectl.errors import CapacityError
from hicachectl.units import format_bytes

__all__ = ["Ask", "GroupLimit", "HostMemory", "HugetlbRoom", "Ledger", "ledger", "require_node_room"]


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The control group that leaves the least room: its limit, and what is used under it without what goes first when pressed."""

    limit_bytes: int
    used_bytes: int
    name: str = "cgroup"
    used_words: str = "used under it"
    """Name of the second term, which says so where more or less counts as used than is."""

    @property
    def room_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """The limit and what goes off, as (name, bytes)."""
        return (f"limit of {self.name}", self.limit_bytes), (self.used_words, -self.used_bytes)


@dataclass(frozen=True, slots=True)
class HugetlbRoom:
    """What a pool of reserved pages of one size can have: `free_bytes` are of pages that are free and were promised to nobody."""

    page_bytes: int
    free_bytes: int
    group: GroupLimit | None = None
    """The control group that leaves least of these pages; None where none was read."""
    unread: str | None = None
    """Why a limit on them may leave less than is known here; None where all were read."""

    @property
    def room_bytes(self) -> int:
        """Bytes of whole pages.

        >>> HugetlbRoom(2, 10, GroupLimit(8, 1)).room_bytes
        6
        """
        return self.free_bytes if self.group is None else min(self.free_bytes, self.group_bytes)

    @property
    def group_bytes(self) -> int:
        """What the group leaves, in whole pages; 0 without one."""
        return 0 if self.group is None else self.group.room_bytes // self.page_bytes * self.page_bytes

    @property
    def bound(self) -> str:
        limited = self.group is not None and self.group_bytes < self.free_bytes
        return "free hugetlb memory under the cgroup limit" if limited else "free hugetlb memory"

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """Its terms as (name, bytes)."""
        free = (f"free pages of {format_bytes(self.page_bytes)}, promised to nobody", self.free_bytes)
        return (free,) if self.group is None else (free, *self.group.terms)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """One look at the host's memory. `available_bytes` is the kernel's MemAvailable, which leaves out all hugetlb pools."""

    total_bytes: int
    available_bytes: int
    hugetlb_bytes: int = 0
    """Held by the hugetlb pools of all page sizes."""
    hugetlb: HugetlbRoom | None = None
    """Of the page size asked; None where no pool of reserved pages is asked for."""
    group: GroupLimit | None = None
    """None: no limit was found that binds this process; whether all were read says `unread`."""
    unread: str | None = None
    """Why a limit of a control group may leave less than is known here; None where all were read."""
    node_free_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def other_use_bytes(self) -> int:
        """What is in use by everything else."""
        return max(0, self.total_bytes - self.available_bytes - self.hugetlb_bytes)


@dataclass(frozen=True, slots=True)
class Ask:
    """Memory that something wants: of each of `ranks` ranks, or of all together when they share it."""

    name: str
    n_bytes: int
    ranks: int = 1
    shared: bool = False
    hugetlb: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes on this host.

        >>> Ask("host pool", 10, ranks=8).total_bytes, Ask("host pool", 10, ranks=8, shared=True).total_bytes
        (80, 10)
        """
        return self.n_bytes if self.shared else self.n_bytes * self.ranks


@dataclass(frozen=True, slots=True)
class Ledger:
    """The sum, its terms in order, what can be used, and which bound says so."""

    asks: tuple[tuple[str, int], ...]
    """What draws on plain memory, as (name, bytes)."""
    terms: tuple[tuple[str, int], ...]
    """What the host has and what goes off, as (name, bytes); what goes off is negative."""
    wanted_bytes: int
    room_bytes: int
    bound: str
    """"usable memory" or "usable memory under the cgroup limit"."""
    hugetlb_asks: tuple[tuple[str, int], ...] = ()
    hugetlb_wanted_bytes: int = 0
    hugetlb: HugetlbRoom | None = None
    unread: str | None = None

    @property
    def hugetlb_room_bytes(self) -> int:
        return 0 if self.hugetlb is None else self.hugetlb.room_bytes

    @property
    def fits(self) -> bool:
        return self.wanted_bytes <= self.room_bytes and self.hugetlb_wanted_bytes <= self.hugetlb_room_bytes

    def require(self, hint: str = "make the pools smaller") -> None:
        """Raise CapacityError with every term when the sum does not fit."""
        if self.fits:
            return
        if self.wanted_bytes > self.room_bytes:
            asks, wanted, bound, room, terms = self.asks, self.wanted_bytes, self.bound, self.room_bytes, self.terms
        else:
            asks, wanted, room = self.hugetlb_asks, self.hugetlb_wanted_bytes, self.hugetlb_room_bytes
            bound, terms = (
                ("free hugetlb memory", ()) if self.hugetlb is None else (self.hugetlb.bound, self.hugetlb.terms)
            )
        unread = "" if self.unread is None else f"; it may be less: {self.unread}"
        raise CapacityError(
            f"the pools need {format_bytes(wanted)}, {bound} is {format_bytes(room)}",
            terms=(*asks, ("wanted, the sum of these", wanted), *terms, (bound, room)),
            unit="bytes",
            why=" + ".join(f"{name} {format_bytes(amount)}" for name, amount in asks) + unread,
            hint=hint,
        )


def ledger(host: HostMemory, asks: Sequence[Ask], *, reserve_bytes: int) -> Ledger:
    """Add up what is wanted and what can be had. Pure. `reserve_bytes` are left to the machine, under a cgroup's limit too.

    >>> found = ledger(HostMemory(1536, 1326), [Ask("host pool", 150, ranks=8)], reserve_bytes=128)
    >>> found.terms, found.wanted_bytes, found.room_bytes, found.fits
    ((('total', 1536), ('other use', -210), ('left to the machine', -128)), 1200, 1198, False)
    """
    terms = [("total", host.total_bytes), ("other use", -host.other_use_bytes)]
    if host.hugetlb_bytes:
        terms.append(("hugetlb held", -host.hugetlb_bytes))
    terms.append(("left to the machine", -reserve_bytes))
    room, bound = max(0, host.available_bytes - reserve_bytes), "usable memory"
    if host.group is not None:
        terms += host.group.terms
        under = max(0, host.group.room_bytes - reserve_bytes)
        if under < room:
            room, bound = under, "usable memory under the cgroup limit"
    plain, reserved = (
        tuple((ask.name, ask.total_bytes) for ask in asks if ask.hugetlb is of_pool) for of_pool in (False, True)
    )
    return Ledger(
        asks=plain,
        terms=tuple(terms),
        wanted_bytes=sum(amount for _, amount in plain),
        room_bytes=room,
        bound=bound,
        hugetlb_asks=reserved,
        hugetlb_wanted_bytes=sum(amount for _, amount in reserved),
        hugetlb=host.hugetlb,
        unread=host.unread,
    )


def require_node_room(
    free_bytes: Mapping[int, int], n_bytes: int, nodes: Sequence[int], *, weights: Mapping[int, int] | None = None
) -> None:
    """Refuse a pool whose nodes have no room for it. Pure.

    `weights` None: bound to the nodes, all of it from any of them, and a page that none of them has gets the process killed. Else
    interleaved, each node giving by its weight: nobody is killed, the kernel takes the rest from other nodes, so the placement would
    not hold (docs/facts.md#interleave-spill), from where the first node is full. `free_bytes` is what each node can give; where one,
    or its weight, is not known, nothing is judged. Raises CapacityError with the free bytes of each node.
    """
    known = {node: free_bytes[node] for node in nodes if node in free_bytes}
    if not known or len(known) < len(nodes) or (weights is not None and set(nodes) - set(weights)):
        return
    room, reason, hint = (
        sum(known.values()),
        "no other node may be used",
        "make the pool smaller, or place it on more nodes",
    )
    if weights is not None:
        total = sum(weights[node] for node in nodes)
        first = min(nodes, key=lambda node: known[node] / weights[node])
        room = known[first] * total // weights[first]
        reason = f"node {first} is full first: the kernel would take what it lacks from other nodes, and the placement would not hold"
        hint = f"make the pool smaller, free memory on node {first}, or give another placement"
    if n_bytes <= room:
        return
    how = "" if weights is None else " by the placement"
    raise CapacityError(
        f"a pool of {format_bytes(n_bytes)} on nodes {', '.join(map(str, sorted(known)))}, which have room for {format_bytes(room)}{how}",
        terms=(("pool bytes", n_bytes), *((f"free on node {node}", free) for node, free in sorted(known.items()))),
        why=reason,
        hint=hint,
    )

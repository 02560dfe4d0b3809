"""Which copies run together in which case, and in which order. Pure.

    alone      one accelerator, nothing else: its neighbours idle
    uplink     all accelerators behind its uplink, the same way
    spread     the same, each with memory of a node of its own: writers with different targets are what strict ordering makes wait
    against    it, while its neighbours behind the uplink go the other way
    host       all accelerators of the host, the same way

Every accelerator meets every node alone; what shares a link or all of memory is measured with each accelerator on the first of
its nodes, and copies smaller than the largest alone and there only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicachectl.runtime.probes.link_math import LinkTarget, Way

__all__ = ["Busy", "LinkCase", "Scenario", "link_cases", "one_to_one"]


class Scenario(str, Enum):
    """Who else is busy."""

    ALONE = "alone"
    UPLINK = "uplink"
    SPREAD = "spread"
    AGAINST = "against"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Busy:
    """One accelerator in a case: with memory of which node (None: wherever it comes from), and which way."""

    target: LinkTarget
    node: int | None
    way: Way


@dataclass(frozen=True, slots=True)
class LinkCase:
    """Copies that run at the same time. `subject` is the address the case is about, None when it is about all of them."""

    scenario: Scenario
    size_bytes: int
    busy: tuple[Busy, ...]
    subject: str | None = None

    @property
    def rows(self) -> tuple[Busy, ...]:
        """Those whose rates the case is for. Pure."""
        return tuple(one for one in self.busy if self.subject in (None, one.target.address))


def link_cases(
    targets: Sequence[LinkTarget],
    nodes: Mapping[str, Sequence[int | None]],
    *,
    ways: Sequence[Way],
    sizes: Sequence[int],
    concurrent_only: bool = False,
    among: Sequence[LinkTarget] = (),
    spread: Mapping[str, int | None] | None = None,
) -> tuple[LinkCase, ...]:
    """Return the cases for `targets`, those of one node together so that its memory is made once. Pure.

    `nodes` are those of each address, the one for concurrent cases first. `among` are all usable accelerators of the host, for
    neighbours that are no targets themselves. `spread` gives each address a node of its own: those that share an uplink are measured
    together with these too, where they differ. `concurrent_only` keeps of the cases alone what the concurrent ones are compared
    with: those of the largest size, on the first node and on that of `spread`.
    """
    known = {target.address: target for target in (*among, *targets)}
    most = max(sizes)
    groups = _groups(targets, known)
    apart = {one.address: spread[one.address] for group in groups for one in group if spread and one.address in spread}
    nodes = {address: _with(own, apart.get(address)) for address, own in nodes.items()}
    alone = [
        LinkCase(Scenario.ALONE, size, (Busy(target, node, way),), target.address)
        for target in targets
        for at, node in enumerate(nodes[target.address])
        for size in sizes
        for way in ways
        if size == most or at == 0
        if not concurrent_only or (size == most and (at == 0 or node == apart.get(target.address)))
    ]
    alone.sort(key=lambda case: (case.busy[0].node is None, case.busy[0].node or 0))  # stable: one node at a time

    def first(target: LinkTarget) -> int | None:
        return next(iter(nodes.get(target.address) or (target.own_node,)))

    together: list[LinkCase] = []
    for group in groups:
        near = tuple(first(one) for one in group)
        far = tuple(apart.get(one.address) for one in group)
        places = {Scenario.UPLINK: near}
        if None not in far and len(set(far)) > 1 and far != near:
            places[Scenario.SPREAD] = far
        for scenario, at in places.items():
            for way in ways:
                busy = tuple(Busy(one, node, way) for one, node in zip(group, at, strict=True))
                together.append(LinkCase(scenario, most, busy))
        for target in group:
            if target not in targets:
                continue
            for way in ways:
                if way is Way.BOTH:
                    continue
                busy = tuple(Busy(one, first(one), way if one is target else way.against) for one in group)
                together.append(LinkCase(Scenario.AGAINST, most, busy, target.address))
    if len({target.uplink or target.address for target in targets}) > 1:
        together += [
            LinkCase(Scenario.HOST, most, tuple(Busy(target, first(target), way) for target in targets)) for way in ways
        ]
    return (*alone, *together)


def one_to_one(targets: Sequence[LinkTarget], nodes: Sequence[int]) -> dict[str, int | None]:
    """Give each accelerator a node of its own, in order, beginning again where there are fewer nodes. Pure.

    Neighbours behind one uplink then write to different nodes, which is what strict ordering makes wait.

    >>> one_to_one([LinkTarget("a", "X0", "cuda:0"), LinkTarget("b", "X1", "cuda:1")], [0, 1])
    {'a': 0, 'b': 1}
    """
    return {target.address: nodes[at % len(nodes)] if nodes else None for at, target in enumerate(targets)}


def _with(own: Sequence[int | None], apart: int | None) -> tuple[int | None, ...]:
    """The nodes of an accelerator, the one it has apart from its neighbours behind them where it is not among them."""
    return tuple(own) if apart is None or apart in own else (*own, apart)


def _groups(targets: Sequence[LinkTarget], known: Mapping[str, LinkTarget]) -> list[tuple[LinkTarget, ...]]:
    """The accelerators behind each uplink that more than one usable accelerator shares, each group once."""
    groups: dict[frozenset[str], tuple[LinkTarget, ...]] = {}
    for target in targets:
        members = [known[address] for address in sorted({target.address, *target.neighbours}) if address in known]
        if len(members) > 1:
            groups.setdefault(frozenset(one.address for one in members), tuple(members))
    return list(groups.values())

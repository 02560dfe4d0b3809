"""Weights of weighted interleave, by node: how many pages a pool takes from each before it goes on. Offered, set when chosen. Pure.

A choice is "offer" (told only), "auto" (the kernel's own weights, by bandwidth: told with the line, since the weights it
writes over could not be put back), "memory" (by each node's size) or
NODE=WEIGHT,NODE=WEIGHT. Linux Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave: 1 to 255, new
allocations only; a weight that is written switches the kernel to manual, so the item `@auto` comes first and is undone last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from hicachectl.tuning import finding
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.setting import NO_FILE, Setting, judge, leave_alone, report, skip
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Target

__all__ = ["WeightedInterleave", "by_memory"]

FOLDER = "/sys/kernel/mm/mempolicy/weighted_interleave"
MAX_WEIGHT = 255
_KNOB = "numa.interleave-weight"
_WHY = (
    "a pool spread with weights fills uneven nodes alike and uses the bandwidth of all of them; a pool both sockets read gained "
    "0.5 to 5 % by interleaving (ModelTC/LightLLM#1399; docs/facts.md#weighted-interleave)"
)
_ONLY = "counts for pools placed with weighted interleave, and for pages faulted from now on"


class WeightedInterleave:
    """`numa.interleave-weight@nodeN`, and `@auto` where the kernel's own weights are switched on or off."""

    name = _KNOB

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the weight of each pool node and of each node named, and the file `auto`. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        return (_auto().target, *(_node(ident).target for ident in _idents(machine, choice)))

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return the items of one way to choose weights. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        idents = _idents(sight.machine, choice)
        if choice.value == "offer":
            return (_offer(sight, choice, idents),)
        if choice.value == "auto":
            return (_to_auto(sight, choice),)
        weights = by_memory(sight.machine) if choice.value == "memory" else _parse(choice.value)
        if not weights:
            why = (
                "no memory node of this process is known"
                if choice.value == "memory"
                else f"{choice.value} names no weights"
            )
            remedy = (
                f"write offer, auto, memory or NODE=WEIGHT,NODE=WEIGHT (1 to {MAX_WEIGHT}), or {leave_alone(_KNOB)}"
            )
            return (skip(_auto(), sight, choice, (), why, remedy),)
        return _by_weight(sight, choices, choice, weights)


def by_memory(machine: Machine) -> dict[int, int]:
    """Return a weight a pool node, its size over that of the smallest; empty where a size is not known. Pure.

    Sizes, not what is free: a weight that changed with every look could never be applied as planned.
    """
    sizes = {node.id: node.memory_total_bytes.value or 0 for node in finding.Sight(machine).pool_nodes}
    least = min(sizes.values(), default=0)
    return {ident: min(MAX_WEIGHT, max(1, round(size / least))) for ident, size in sizes.items()} if least else {}


def _by_weight(sight: Sight, choices: Choices, choice: Choice, weights: dict[int, int]) -> tuple[Item, ...]:
    """Return the items of the nodes; where one changes and the kernel weighs by itself, first the one that stops it.

    A weight alone would stop the kernel too, and nothing would record that: where that item is not in the plan, or who
    weighs could not be read, the weights are skipped.
    """
    nodes = tuple(
        judge(_node(ident), sight, choice, (str(weight),), proof="binding", on_change=(_ONLY,))
        if 1 <= weight <= MAX_WEIGHT
        else skip(
            _node(ident), sight, choice, (), f"a weight of {weight} is outside of 1 to {MAX_WEIGHT}", "write one inside"
        )
        for ident, weight in weights.items()
    )
    by_itself = sight.value(_auto().target)
    if not any(node.kind is ItemKind.CHANGE for node in nodes):
        return nodes
    if by_itself.value is None:
        if by_itself.reason == NO_FILE:
            return nodes
        why = f"whether the kernel weighs by itself could not be read: {by_itself.reason} ({by_itself.source})"
        return tuple(_held(sight, choice, node, why, f"look at it: cat {by_itself.source}") for node in nodes)
    if by_itself.value != "false" and not choices.keeps(_KNOB, _auto().subject):
        why = f"auto is {by_itself.value}: a weight that is written ends that, and the item {_auto().id} is left out by --only"
        return tuple(_held(sight, choice, node, why, f"--only {_KNOB}") for node in nodes)
    told = ("a weight that is written stops the kernel's own weights; this item puts them back last at a rollback",)
    return (judge(_auto(), sight, choice, ("false",), on_change=told), *nodes)


def _to_auto(sight: Sight, choice: Choice) -> Item:
    told = ("the kernel takes the bandwidths from firmware tables; without them every weight is 1",)
    found = judge(_auto(), sight, choice, ("true",), on_change=told)
    weights = [node.interleave_weight for node in sight.machine.numa.nodes]
    if found.kind is ItemKind.SKIP and any(weight.is_known for weight in weights):
        return replace(found, remedy=f"write weights (memory, or NODE=WEIGHT,NODE=WEIGHT), or {leave_alone(_KNOB)}")
    if found.kind is ItemKind.CHANGE:
        why = f"it is {found.old}: the kernel would write over the weights, and false alone does not bring them back; {_lost(sight)}"
        remedy = f"echo true > {_auto().target.path}"
        return replace(found, kind=ItemKind.REPORT, reason=why, remedy=remedy, undo="nothing is written")
    return found


def _held(sight: Sight, choice: Choice, node: Item, reason: str, remedy: str) -> Item:
    """Return a node's item, a change as a skip."""
    if node.kind is not ItemKind.CHANGE:
        return node
    assert node.subject is not None
    return skip(_node(int(node.subject.removeprefix("node"))), sight, choice, (str(node.new),), reason, remedy)


def _lost(sight: Sight) -> str:
    """Name today's weights: the kernel overwrites them, and `auto` alone does not bring them back."""
    known = [
        f"{node.id}={node.interleave_weight.value}"
        for node in sight.machine.numa.nodes
        if node.interleave_weight.is_known
    ]
    return f"weights today: {','.join(known) or 'unknown'}"


def _offer(sight: Sight, choice: Choice, idents: tuple[int, ...]) -> Item:
    """Return one report for all nodes: today's weights, and those by memory."""
    first = replace(_node(idents[0]), subject=None) if idents else replace(_auto(), subject=None)
    values = {ident: sight.value(_node(ident).target) for ident in idents}
    unread = [ident for ident, fact in values.items() if not fact.is_known]
    if unread:
        first = replace(_node(unread[0]), subject=None)
    by_size = by_memory(sight.machine)
    even = len(set(by_size.values())) < 2
    wanted = _words(by_size) if by_size else "unknown"
    reason = f"weights are {_words({ident: fact.value for ident, fact in values.items()})}, by memory {wanted}: "
    reason += "nodes are even, plain interleave does the same" if even else "offered, not set"
    remedy = (
        "nothing to do" if even else f"set tune.{_KNOB.replace('-', '_')} to memory, auto or NODE=WEIGHT,NODE=WEIGHT"
    )
    found = report(first, sight, choice, (wanted,) if by_size else (), reason, remedy)
    if found.kind is ItemKind.SKIP:
        return found
    return replace(
        found,
        title="interleave weights of all nodes",
        target=None,
        old=_words({ident: fact.value for ident, fact in values.items()}),
    )


def _words(weights: Mapping[int, object]) -> str:
    return ",".join(f"{ident}={weight}" for ident, weight in weights.items())


def _idents(machine: Machine, choice: Choice) -> tuple[int, ...]:
    named = _parse(choice.value)
    return tuple(named) if named else tuple(node.id for node in finding.Sight(machine).pool_nodes)


def _parse(text: str) -> dict[int, int]:
    """Return weights by node, empty for what is none.

    >>> _parse("0=3,1=1"), _parse("0=x")
    ({0: 3, 1: 1}, {})
    """
    found = [re.fullmatch(r"(\d{1,5})=(\d{1,5})", part.strip(), re.ASCII) for part in text.split(",")]
    return {int(one[1]): int(one[2]) for one in found if one} if all(found) else {}


def _node(ident: int) -> Setting:
    return Setting(
        _KNOB,
        f"interleave weight of node {ident}",
        _WHY,
        Target(Method.SYSFS, f"{FOLDER}/node{ident}"),
        f"weighted interleave (Linux 6.9 or later) or node {ident}",
        subject=f"node{ident}",
    )


def _auto() -> Setting:
    return Setting(
        _KNOB,
        "interleave weights by the kernel",
        _WHY,
        Target(Method.SYSFS, f"{FOLDER}/auto"),
        "weights of its own (added to Linux in May 2025)",
        subject="auto",
    )

"""Facts and choices -> a plan: what changes, what is the same, what is skipped and why. Pure.

plan = make_plan(sight, choices, knobs, recipes={"pcie-ido-request": "9f86..."}, about=About("0.3.0", "c12-07", now))
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hicachectl.errors import UsageError
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.fingerprint import Fingerprint, fingerprint_of
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import overlap

__all__ = ["About", "Difference", "Plan", "differences", "make_plan", "plan_id", "to_apply"]


@dataclass(frozen=True, slots=True)
class About:
    """Who made a plan, and when: UTC, RFC 3339."""

    tool_version: str
    host: str | None
    made_at: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered items for one host. `id` is p- and the digest of everything but the time: the same host and choices give the same id."""

    id: str
    about: About
    choices: Choices
    fingerprint: Fingerprint
    items: tuple[Item, ...]

    @property
    def changes(self) -> tuple[Item, ...]:
        """The items that would be written, in order. Pure."""
        return tuple(item for item in self.items if item.kind is ItemKind.CHANGE)

    def counts(self) -> dict[str, int]:
        """Return how many items there are of each kind, zero included. Pure."""
        found = Counter(item.kind for item in self.items)
        return {kind.value: found[kind] for kind in ItemKind}


def make_plan(
    sight: Sight, choices: Choices, knobs: Sequence[Knob], *, recipes: Mapping[str, str], about: About
) -> Plan:
    """Ask every knob for its items and put them together. Pure.

    `recipes` are the sha256 of every recipe among the knobs; those of the plan's own items go into the fingerprint. Raises
    ValueError when two knobs give an item the same id: that is a bug, and would make a journal ambiguous; UsageError when two
    items set the same bits.
    """
    items = tuple(
        item for knob in knobs for item in knob.items(sight, choices) if choices.keeps(item.knob, item.subject)
    )
    twice = [name for name, n in Counter(item.id for item in items).items() if n > 1]
    if twice:
        raise ValueError(f"two items are called {twice[0]}")
    _check_apart(items)
    used = {item.recipe: recipes[item.recipe] for item in items if item.recipe is not None}
    fingerprint = fingerprint_of(sight.machine, used)
    plan = Plan("", about, choices, fingerprint, items)
    return replace(plan, id=plan_id(plan))


def _check_apart(items: Sequence[Item]) -> None:
    """Raise UsageError for two items that set the same bits: one would undo the other."""
    by_path: dict[str, list[Item]] = {}
    for item in items:
        if item.target is None or not item.wanted or item.kind not in (ItemKind.CHANGE, ItemKind.SAME):
            continue
        for other in by_path.setdefault(item.target.path, []):
            if other.target is not None and overlap(item.target, other.target):
                raise UsageError(
                    f"{other.id} and {item.id} set the same bits",
                    where=item.target.path,
                    why="one would undo the other, and neither could be taken back by itself",
                    hint="leave one of them out: --only, or null in the profile",
                )
        by_path[item.target.path].append(item)


@dataclass(frozen=True, slots=True)
class Difference:
    """An item that a plan and a fresh plan of the same choices do not share; `now` is None where the host has no such item."""

    id: str
    was: str
    now: str | None


def differences(plan: Plan, fresh: Plan, *, another_boot: bool = False) -> tuple[Difference, ...]:
    """List the items of a plan to be written that a fresh plan would not write in the same way. Pure.

    Apply writes only what the tool itself would plan now, so that neither an edited file nor a host that moved gets a
    write. A change whose value is already there is no difference: it has become "same". `another_boot`: what a boot set
    anew need not be what it was when the plan was made, and what was the same then counts too.
    """
    now = {item.id: item for item in fresh.items}
    found = []
    for item in _to_write(plan, another_boot):
        other = now.get(item.id)
        if other is None or not _written_alike(item, other, another_boot):
            found.append(Difference(item.id, _words(item), None if other is None else _words(other)))
    return tuple(found)


def to_apply(plan: Plan, fresh: Plan, *, another_boot: bool = False) -> tuple[Item, ...]:
    """Return the items to write, as the fresh plan has them and in its order. Pure.

    So how often a write is read back, which effect is looked for, and in which order is never what a file says.
    `differences` comes first.
    """
    wanted = {item.id for item in _to_write(plan, another_boot)}
    return tuple(item for item in fresh.items if item.id in wanted)


def _to_write(plan: Plan, another_boot: bool) -> tuple[Item, ...]:
    kinds = (ItemKind.CHANGE, ItemKind.SAME) if another_boot else (ItemKind.CHANGE,)
    return tuple(item for item in plan.items if item.kind in kinds and item.wanted and item.target is not None)


def _written_alike(item: Item, other: Item, another_boot: bool) -> bool:
    if other.kind not in (ItemKind.CHANGE, ItemKind.SAME) or _essence(item) != _essence(other):
        return False
    if another_boot or other.kind is ItemKind.SAME:
        return True
    if item.old is None or other.old is None or item.target is None:
        return False
    mask = item.target.mask
    if mask is not None and isinstance(item.old, int) and isinstance(other.old, int):
        return item.old & mask == other.old & mask
    return item.old == other.old


def _essence(item: Item) -> tuple[object, ...]:
    return item.target, item.wanted, item.rule, item.recipe_sha256, item.on_not_implemented, item.ordering


def _words(item: Item) -> str:
    if item.kind is ItemKind.CHANGE and item.target is not None:
        register = item.target.register
        at = "" if register is None else f" at {register.offset:#x} mask {register.mask:#x}"
        return f"{item.show(item.old)} -> {item.show(item.new)} in {item.target.path}{at}"
    return f"{item.kind.value}{f': {item.reason}' if item.reason else ''}"


def plan_id(plan: Plan) -> str:
    """Return the id of a plan: p- and eight digits of the digest of everything in it but the time. Pure."""
    timeless = replace(plan, id="", about=replace(plan.about, made_at=""))
    return f"p-{hashlib.sha256(repr(_in_order(timeless)).encode()).hexdigest()[:8]}"


def _in_order(plan: Plan) -> tuple[object, ...]:
    """The plan without anything whose text depends on the order of a mapping."""
    choices = plan.choices
    return (
        plan.about, choices.profile, choices.revision, sorted(choices.wanted.items(), key=lambda pair: pair[0]), choices.only,
        choices.bound, choices.allow_isolation_loss, choices.online, choices.persist_files, choices.in_guest,
        plan.fingerprint.boot_id, plan.fingerprint.kernel, plan.fingerprint.pci_set, sorted(plan.fingerprint.recipes.items()),
        plan.items,
    )  # fmt: skip

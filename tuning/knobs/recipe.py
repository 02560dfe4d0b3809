"""One recipe as a knob: the places it has on this host, and what is to become of each. Pure.

knob = RecipeKnob(recipe)        # of load_recipes()

A recipe acts when the choices name its knob. One that only reports may stand beside another knob (`report.beside`), and a
vendor's own, put on this host by its operator, is always shown: what lies in that folder must not be silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicachectl.errors import UsageError
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.recipe import REGISTER_METHODS, Precheck, Recipe
from hicachectl.tuning.recipe_gates import Verdict, because, hidden, may_write, no_value, read_only, relaxed_ordering
from hicachectl.tuning.recipe_match import Place, Places, find_places
from hicachectl.tuning.recipe_place import locate
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import METHODS_THAT_REPORT, Method, Rule, Target, Value, agrees

__all__ = ["RecipeKnob"]


class RecipeKnob:
    """A recipe behind the knob protocol."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @property
    def name(self) -> str:
        """The recipe's knob."""
        return self.recipe.knob

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the register or file of every place; none where the recipe is not asked for. Pure."""
        if self._asked(choices) is None:
            return ()
        found = [locate(self.recipe, place).target for place in find_places(self.recipe, machine).places]
        return tuple(target for target in found if target is not None)

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item a place, or one for the host where there is no place. Pure.

        Raises UsageError for a choice whose word the recipe does not have.
        """
        asked = self._asked(choices)
        if asked is None:
            return ()
        wanted = self._wanted(choices.wanted.get(self.recipe.knob))
        found = find_places(self.recipe, sight.machine)
        if (
            self.recipe.reach.method in METHODS_THAT_REPORT
            and hidden(self.recipe, sight.machine, in_guest=choices.in_guest) is not None
        ):
            return ()  # a guest's firmware is not the machine's
        return tuple(self._items(sight, choices, asked, wanted, found))

    def _asked(self, choices: Choices) -> Choice | None:
        """Return the choice it acts by; one that says "left alone" for a vendor's recipe nobody asked for."""
        recipe, report = self.recipe, self.recipe.report
        choice = choices.wanted.get(recipe.knob)
        if choice is None and report is not None and report.beside is not None:
            choice = choices.wanted.get(report.beside)
        if choice is None and not recipe.shipped:
            choice = Choice("", "a vendor's recipe of this host", recipe.where)
        return choice

    def _wanted(self, choice: Choice | None) -> Value | None:
        recipe = self.recipe
        if choice is None or recipe.reports_only:
            return None
        value = recipe.value_of(choice.value)
        if value is None:
            raise UsageError(
                f"{recipe.knob} is {choice.value!r}, not one of {', '.join(word for word, _ in recipe.words)}",
                where=choice.origin,
                hint=f"hicachectl tune recipe show {recipe.id}",
            )
        if recipe.reach.method is Method.MODULE_PARAM:
            return f"options {recipe.reach.module} {recipe.reach.parameter}={value}\n"
        return value

    def _items(
        self, sight: Sight, choices: Choices, asked: Choice, wanted: Value | None, found: Places
    ) -> Iterator[Item]:
        if found.why_not is not None and self.recipe.knob in choices.wanted:
            kind = ItemKind.REPORT if self.recipe.reports_only else ItemKind.SKIP
            verdict = hidden(self.recipe, sight.machine, in_guest=choices.in_guest) or because(
                kind, found.why_not, "none is needed: the recipe is for other machines"
            )
            yield self._item(
                _Seen(Place(None), None, Fact(None, "", reason=found.why_not)), asked, wanted, verdict, sight
            )
        for place in found.places:
            spot = locate(self.recipe, place)
            if spot.target is not None:
                value = sight.value(spot.target)
            else:
                value = Fact(None, place.subject or "host", reason=spot.why_not)
            seen = _Seen(place, spot.target, value)
            if self.recipe.reports_only and place.why_not is not None:
                continue
            verdict = self._verdict(sight, choices, seen, wanted, found, spot.verdict)
            yield self._item(seen, asked, wanted, verdict, sight)

    def _verdict(
        self, sight: Sight, choices: Choices, seen: _Seen, wanted: Value | None, found: Places, spot: Verdict | None
    ) -> Verdict:
        """Decide what becomes of one place: first what hides it, then what is known of it, then whether it may change."""
        recipe, place = self.recipe, seen.place
        guest = hidden(recipe, sight.machine, place, in_guest=choices.in_guest)
        if guest is not None:
            return guest
        if recipe.report is not None:
            return Verdict(ItemKind.REPORT, recipe.report.reason, recipe.report.remedy, recipe.report.code)
        if wanted is None:
            return because(ItemKind.REPORT, "nobody asked for it", f"hicachectl tune plan --recipes {recipe.id}")
        if spot is not None:
            return spot
        if place.why_not is not None:
            return because(ItemKind.SKIP, place.why_not, place.remedy or "sudo hicachectl tune plan")
        if seen.target is None or seen.value.value is None:
            return no_value(seen.value.reason or "not read")
        if recipe.wants(Precheck.RELAXED_ORDERING_ALLOWED) is not None:
            refused = relaxed_ordering(sight.machine, place, wanted, seen.value.value)
            if refused is not None:
                return refused
        if agrees(seen.target, Rule.EQUAL, (wanted,), seen.value.value):
            return Verdict(ItemKind.SAME)
        closed = read_only(seen.target, sight.door(seen.target))
        return closed or may_write(recipe, sight.machine, choices, place, found.no_write)

    def _item(self, seen: _Seen, asked: Choice, wanted: Value | None, verdict: Verdict, sight: Sight) -> Item:
        recipe, place, target = self.recipe, seen.place, seen.target
        effect = recipe.effect
        return Item(
            id=recipe.knob if place.subject is None else f"{recipe.knob}@{place.subject}",
            knob=recipe.knob,
            subject=place.subject,
            title=recipe.title,
            kind=verdict.kind,
            target=target,
            old=seen.value.value,
            old_reason=seen.value.reason,
            wanted=() if wanted is None else (wanted,),
            rule=Rule.EQUAL,
            why=asked.reason,
            origin=asked.origin,
            source=seen.value.source or recipe.where,
            reason=verdict.reason,
            remedy=verdict.remedy,
            code=verdict.code,
            undo="yes, at the next load of the module" if recipe.reach.method is Method.MODULE_PARAM else "yes",
            owners=() if target is None else sight.owners.get(target.path, ()),
            probe=None if effect is None else effect.probe,
            min_gain=None if effect is None else effect.min_gain,
            max_loss=None if effect is None else effect.max_loss,
            read_back=recipe.read_back,
            on_not_implemented=recipe.on_not_implemented,
            ordering=recipe.risk.ordering,
            recipe=recipe.id,
            recipe_sha256=recipe.sha256,
            uplink=place.uplink,
            notes=(*verdict.notes, *_notes(recipe, seen, verdict.kind, sight.machine)),
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    place: Place
    target: Target | None
    value: Fact[Value]


def _notes(recipe: Recipe, seen: _Seen, kind: ItemKind, machine: Machine) -> Iterator[str]:
    """Yield what an operator should know before writing, and the word for what was read."""
    value, device = seen.value.value, seen.place.device
    word = None if value is None else recipe.word_of(value)
    if word is not None and kind is ItemKind.REPORT:
        yield f"it is {word} here"
    if kind is not ItemKind.CHANGE:
        return
    if recipe.on_not_implemented == "skip":
        yield "support unknown until written"
    if (
        device is not None
        and device.config.transactions_pending.value
        and recipe.wants(Precheck.TRANSACTIONS_PENDING) is not None
    ):
        yield "transactions were pending when it was read: apply it while the device is idle"
    if recipe.reach.method is Method.MODULE_PARAM:
        yield f"takes effect when {recipe.reach.module} is loaded again; where the initramfs loads it, rebuild that too"
    elif recipe.reach.method in REGISTER_METHODS:
        lost = [
            what
            for what, kept in (("a reboot", recipe.survives_reboot), ("a function reset", recipe.survives_flr))
            if not kept
        ]
        if lost:
            yield f"lost at {' and at '.join(lost)}"
    if recipe.status.value != "public":
        yield f"the recipe is {recipe.status.value}"
    if machine.host.virtualisation.value is None:
        yield f"whether this is a virtual machine is not known ({machine.host.virtualisation.reason})"

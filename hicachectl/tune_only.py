"""Whether every word of `--only` names something: a word that names nothing would make an empty plan look like a healthy host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from hicachectl.config_keys import catalogue
from hicachectl.errors import UsageError
from hicachectl.tune_choices import KEY_OF_KNOB
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.item import Item
from hicachectl.tuning.plan import Plan

__all__ = ["check_only", "without_only"]

_SIZES = "thp.size"


def check_only(plan: Plan, names: Sequence[str], recipes: Mapping[str, str], whole: Callable[[], Plan]) -> None:
    """Raise UsageError for the first word of `--only` that lets no item of the plan through, with what would.

    `names` are the knobs there are, `recipes` the knob of each recipe by its id; `whole` makes the plan without `--only`
    and is called only where a place has to be named. A knob that is wanted and has nothing on this host is no error.
    """
    for word in plan.choices.only:
        if not any(_lets(word, item) for item in plan.items):
            _explain(word, plan.choices, tuple(dict.fromkeys((*names, *KEY_OF_KNOB))), recipes, whole)


def _explain(
    word: str, choices: Choices, names: Sequence[str], recipes: Mapping[str, str], whole: Callable[[], Plan]
) -> None:
    name, at, subject = word.partition("@")
    meant = [known for known in names if known == name or known.startswith(f"{name}.")]
    if name.startswith(f"{_SIZES}."):
        meant.append(name)
    if not meant:
        raise _unknown(word, name, at + subject, names, recipes)
    wanted = [knob for knob in choices.wanted if any(knob == one or knob.startswith(f"{one}.") for one in meant)]
    if not wanted:
        raise _left_alone(word, meant[0], choices, recipes)
    if not subject:
        return
    places = [item for item in whole().items if item.subject is not None and _lets(name, item)]
    if any(item.subject == subject for item in places):
        return
    raise _elsewhere(word, name, subject, places)


def _lets(word: str, item: Item) -> bool:
    return Choices("", 0, {}, only=(word,)).keeps(item.knob, item.subject)


def _unknown(word: str, name: str, at: str, names: Sequence[str], recipes: Mapping[str, str]) -> UsageError:
    """A name no knob has: perhaps spelt as a key, a flag or a recipe's id."""
    spelt = {_flat(known): known for known in names} | {_flat(ident): knob for ident, knob in recipes.items()}
    spelt |= {_flat(known.partition(".")[0]): known.partition(".")[0] for known in names} | {"thp-sizes": _SIZES}
    near = get_close_matches(_flat(name), spelt, n=1, cutoff=0.7)
    return UsageError(
        f"--only {word!r} names no setting",
        where="--only",
        why="the settings are " + ", ".join(names),
        hint=f"did you mean --only {spelt[near[0]]}{at}?" if near else "--only thp; hicachectl tune plan lists the ids",
    )


def _left_alone(word: str, knob: str, choices: Choices, recipes: Mapping[str, str]) -> UsageError:
    """A knob nobody asks for: its key is null."""
    key = KEY_OF_KNOB.get(knob) or ("tune.thp.sizes" if knob.startswith(_SIZES) else None)
    ident = next((ident for ident, known in recipes.items() if known == knob), None)
    if key is not None:
        why, hint = (
            choices.origins.get(key, f"{key} is null in profile {choices.profile}"),
            f"{catalogue()[key].flag} VALUE",
        )
    else:
        why, hint = "a recipe acts when it is asked for", f"--recipes {ident}"
    return UsageError(f"--only {word!r}: {knob} is left alone", where="--only", why=why, hint=f"to plan it: {hint}")


def _elsewhere(word: str, name: str, subject: str, places: Sequence[Item]) -> UsageError:
    """A place the knob does not have here, or the display name of an uplink, which may stand for another one tomorrow."""
    below = [item for item in places if item.uplink == subject]
    if below:
        lines = " ".join(f"--only {item.knob}@{item.subject}" for item in below)
        return UsageError(
            f"--only {word!r}: {subject} is a name on the screen, not an address",
            where="--only",
            why="names of uplinks are counted anew at every look",
            hint=lines,
        )
    subjects = list(dict.fromkeys(str(item.subject) for item in places))
    return UsageError(
        f"--only {word!r}: {name} is not at {subject!r} here",
        where="--only",
        why=f"its places are {', '.join(subjects)}"
        if subjects
        else "it has no places: it is one setting of the whole host",
        hint=f"--only {name}@{subjects[0]}" if subjects else f"--only {name}",
    )


def _flat(name: str) -> str:
    return name.removeprefix("--").removeprefix("tune.").replace("_", "-").replace(".", "-")


def without_only(choices: Choices) -> Choices:
    """Return the choices that let everything through. Pure."""
    return replace(choices, only=())

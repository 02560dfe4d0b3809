"""Targets, items and plans as JSON values and back, strictly: an unknown or missing key is an error that names its place. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar, cast

from hicachectl.errors import UsageError
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.fingerprint import Fingerprint
from hicachectl.tuning.item import Item, ItemKind, Owner, ReadBack
from hicachectl.tuning.plan import About, Plan
from hicachectl.tuning.target import Method, Register, Rule, Target, Value

__all__ = ["item_from_json", "item_to_json", "plan_from_json", "plan_to_json", "target_from_json", "target_to_json"]

T = TypeVar("T")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values: what `tune plan --output-file` saves under `data`. Pure."""
    about, choices, print_ = plan.about, plan.choices, plan.fingerprint
    return {
        "id": plan.id,
        "about": {"tool_version": about.tool_version, "host": about.host, "made_at": about.made_at},
        "choices": {
            "profile": choices.profile,
            "revision": choices.revision,
            "wanted": {
                k: {"value": c.value, "reason": c.reason, "origin": c.origin} for k, c in choices.wanted.items()
            },
            "only": list(choices.only),
            "bound": choices.bound,
            "allow_isolation_loss": choices.allow_isolation_loss,
            "online": choices.online,
            "persist_files": choices.persist_files,
            "in_guest": choices.in_guest,
        },
        "fingerprint": {
            "boot_id": print_.boot_id,
            "kernel": print_.kernel,
            "pci_set": print_.pci_set,
            "recipes": dict(print_.recipes),
        },
        "items": [item_to_json(item) for item in plan.items],
    }


def item_to_json(item: Item) -> dict[str, Any]:
    """Return an item as plain values, with `new` for readers; reading back ignores it. Pure."""
    found = {f.name: _plain(getattr(item, f.name)) for f in fields(item)}
    found["target"] = None if item.target is None else target_to_json(item.target)
    found["new"] = item.new
    return found


def target_to_json(target: Target) -> dict[str, Any]:
    """Return a target as plain values; registers in numbers. Pure."""
    register = target.register
    return {
        "method": target.method.value,
        "path": target.path,
        "register": None if register is None else {f.name: getattr(register, f.name) for f in fields(register)},
    }


def plan_from_json(value: Any, *, where: str = "plan") -> Plan:
    """Read a plan back; `facts`, which say why a null is null, are ignored. Pure. Raises UsageError with `where` and the JSON pointer of the first thing that is wrong."""
    at = _At(where, "")
    top = at.mapping(value, ("id", "about", "choices", "fingerprint", "items", "facts"), optional=("facts",))
    choices = at.inside("choices").mapping(top["choices"], _names(Choices, leave_out=("origins",)))
    wanted = at.inside("choices/wanted").mapping(choices["wanted"], None)
    printed = at.inside("fingerprint").mapping(top["fingerprint"], _names(Fingerprint))
    recipes = at.inside("fingerprint/recipes").mapping(printed["recipes"], None)
    about = at.inside("about").mapping(top["about"], _names(About))
    pick = at.inside
    ids = [entry.get("id") for entry in pick("items").list(top["items"]) if isinstance(entry, dict)]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise pick("items").wrong(f"has two items called {twice!r}")
    return Plan(
        id=pick("id").text(top["id"]),
        about=About(
            pick("about/tool_version").text(about["tool_version"]),
            pick("about/host").maybe_text(about["host"]),
            pick("about/made_at").text(about["made_at"]),
        ),
        choices=Choices(
            profile=pick("choices/profile").text(choices["profile"]),
            revision=pick("choices/revision").number(choices["revision"]),
            wanted={name: _choice(pick(f"choices/wanted/{name}"), entry) for name, entry in wanted.items()},
            only=tuple(pick("choices/only").texts(choices["only"])),
            bound=pick("choices/bound").flag(choices["bound"]),
            allow_isolation_loss=pick("choices/allow_isolation_loss").flag(choices["allow_isolation_loss"]),
            online=pick("choices/online").flag(choices["online"]),
            persist_files=pick("choices/persist_files").flag(choices["persist_files"]),
            in_guest=pick("choices/in_guest").flag(choices["in_guest"]),
        ),
        fingerprint=Fingerprint(
            pick("fingerprint/boot_id").maybe_text(printed["boot_id"]),
            pick("fingerprint/kernel").maybe_text(printed["kernel"]),
            pick("fingerprint/pci_set").maybe_text(printed["pci_set"]),
            {name: pick(f"fingerprint/recipes/{name}").text(digest) for name, digest in recipes.items()},
        ),
        items=tuple(
            item_from_json(entry, at=pick(f"items/{index}"))
            for index, entry in enumerate(pick("items").list(top["items"]))
        ),
    )


def item_from_json(value: Any, *, at: _At | None = None) -> Item:
    """Read an item back. Pure. Raises UsageError with the pointer."""
    at = at or _At("item", "")
    found = at.mapping(value, (*_names(Item), "new"), optional=("new",))
    read_back = at.inside("read_back").mapping(found["read_back"], _names(ReadBack))
    owners = at.inside("owners").list(found["owners"])
    texts = ("id", "knob", "title", "why", "origin", "source", "undo", "privilege", "proof", "on_not_implemented")
    maybe = ("subject", "old_reason", "reason", "remedy", "code", "probe", "recipe", "recipe_sha256", "uplink")
    kind = at.inside("kind").word(found["kind"], ItemKind)
    if kind is ItemKind.CHANGE:
        for name in ("target", "old", "wanted"):
            if found[name] in (None, []):
                raise at.inside(name).wrong("is empty, and a change needs it")
    return Item(
        kind=kind,
        target=None if found["target"] is None else target_from_json(found["target"], at=at.inside("target")),
        old=None if found["old"] is None else at.inside("old").value(found["old"]),
        wanted=tuple(
            at.inside(f"wanted/{i}").value(entry) for i, entry in enumerate(at.inside("wanted").list(found["wanted"]))
        ),
        rule=at.inside("rule").word(found["rule"], Rule),
        owners=tuple(_owner(at.inside(f"owners/{i}"), entry) for i, entry in enumerate(owners)),
        min_gain=at.inside("min_gain").maybe_real(found["min_gain"]),
        max_loss=at.inside("max_loss").maybe_real(found["max_loss"]),
        read_back=ReadBack(
            at.inside("read_back/tries").number(read_back["tries"]),
            at.inside("read_back/delay_s").real(read_back["delay_s"]),
        ),
        ordering=at.inside("ordering").flag(found["ordering"]),
        notes=tuple(at.inside("notes").texts(found["notes"])),
        **cast(Any, {name: at.inside(name).text(found[name]) for name in texts}),
        **cast(Any, {name: at.inside(name).maybe_text(found[name]) for name in maybe}),
    )


def target_from_json(value: Any, *, at: _At | None = None) -> Target:
    """Read a target back. Pure. Raises UsageError with the pointer."""
    at = at or _At("target", "")
    found = at.mapping(value, ("method", "path", "register"))
    register = None
    if found["register"] is not None:
        names = _names(Register)
        numbers = at.inside("register").mapping(found["register"], names)
        register = Register(**{name: at.inside(f"register/{name}").number(numbers[name]) for name in names})
        if register.width not in (8, 16, 32, 64):
            raise at.inside("register/width").wrong(f"is {register.width}, not 8, 16, 32 or 64")
        for name in ("offset", "mask", "never"):
            bits = 64 if name == "offset" else register.width
            if not 0 <= getattr(register, name) < 1 << bits:
                raise at.inside(f"register/{name}").wrong(f"is {getattr(register, name)}, not a number of {bits} bits")
    return Target(at.inside("method").word(found["method"], Method), at.inside("path").text(found["path"]), register)


class _At:
    """A place in a document; its methods check a value and name the place when it does not fit."""

    def __init__(self, where: str, pointer: str) -> None:
        self.where, self.pointer = where, pointer

    def inside(self, name: str) -> _At:
        return _At(self.where, f"{self.pointer}/{name}")

    def wrong(self, what: str, hint: str | None = None) -> UsageError:
        return UsageError(
            f"{self.pointer or '/'} {what}",
            where=self.where,
            why="a plan is read strictly: what apply writes comes from it",
            hint=hint or "make the plan again: hicachectl tune plan --output-file PLAN",
        )

    def mapping(self, value: Any, names: Sequence[str] | None, optional: Sequence[str] = ()) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(f"is {_short(value)}, not an object")
        if names is not None:
            for name in value:
                if name not in names:
                    near = get_close_matches(name, names, n=1)
                    raise self.wrong(f"has an unknown key {name!r}", f"did you mean {near[0]!r}?" if near else None)
            for name in names:
                if name not in value and name not in optional:
                    raise self.wrong(f"has no key {name!r}")
        return value

    def list(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, list):
            raise self.wrong(f"is {_short(value)}, not a list")
        return value

    def texts(self, value: Any) -> Sequence[str]:
        return [self.inside(str(i)).text(entry) for i, entry in enumerate(self.list(value))]

    def text(self, value: Any) -> str:
        return self._of(value, str, "a text")

    def maybe_text(self, value: Any) -> str | None:
        return None if value is None else self.text(value)

    def number(self, value: Any) -> int:
        if isinstance(value, bool):
            raise self.wrong(f"is {value}, not a whole number")
        return self._of(value, int, "a whole number")

    def real(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(f"is {_short(value)}, not a number")
        return float(value)

    def maybe_real(self, value: Any) -> float | None:
        return None if value is None else self.real(value)

    def flag(self, value: Any) -> bool:
        return self._of(value, bool, "true or false")

    def value(self, value: Any) -> Value:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise self.wrong(f"is {_short(value)}, neither a word nor a whole number")
        return value

    def word(self, value: Any, words: type[E]) -> E:
        known = [word.value for word in words]
        if value not in known:
            raise self.wrong(f"is {_short(value)}, not one of {', '.join(known)}")
        return words(value)

    def _of(self, value: Any, kind: type[T], name: str) -> T:
        if type(value) is not kind:
            raise self.wrong(f"is {_short(value)}, not {name}")
        return value


E = TypeVar("E", bound=Enum)


def _choice(at: _At, value: Any) -> Choice:
    found = at.mapping(value, _names(Choice))
    return Choice(**{name: at.inside(name).text(found[name]) for name in _names(Choice)})


def _owner(at: _At, value: Any) -> Owner:
    found = at.mapping(value, _names(Owner))
    return Owner(
        at.inside("name").text(found["name"]),
        at.inside("where").text(found["where"]),
        at.inside("value").maybe_text(found["value"]),
    )


def _names(kind: Any, leave_out: Sequence[str] = ()) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in leave_out)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, (Owner, ReadBack)):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

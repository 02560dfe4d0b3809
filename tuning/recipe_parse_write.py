"""What a recipe writes, the words for it, and how it is read back and proven, from marked YAML. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.errors import ProfileError
from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.recipe import REGISTER_METHODS, Effect, Precheck, Reach
from hicachectl.tuning.recipe_fields import Fields, as_number
from hicachectl.tuning.recipe_rules import broken_rules
from hicachectl.tuning.target import METHODS_THAT_REPORT, Value

__all__ = ["Write", "parse_read_mask", "parse_verify", "parse_write"]

_MAX_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Write:
    """What is written: bits of a register, or a text (`mask` None); `value` None where nothing is."""

    mask: int | None
    value: Value | None
    forbidden: int
    words: tuple[tuple[str, Value], ...]


def parse_write(all_: Fields, reach: Reach | None, prechecks: tuple[tuple[Precheck, int], ...]) -> Write:
    """Read what is written; null or missing (told elsewhere) means that the recipe only reads."""
    nothing = Write(None, None, 0, _words(all_, reach, None))
    if reach is None or not all_.has("write"):
        return nothing
    register = reach.method in REGISTER_METHODS
    keys = ("mask", "value", "forbid_mask") if register else ("value",)
    write = all_.section("write", keys, ("mask", "value") if register else ("value",))
    assert write is not None
    if reach.method in METHODS_THAT_REPORT:
        all_.wrong("write", f"{reach.method.value} settings are only reported: write: null")
        return nothing
    if not register:
        text = write.text("value")
        words = _words(all_, reach, None) or ((("on", text),) if text is not None else ())
        if text is not None and text not in [value for _, value in words]:
            all_.wrong("words", f"value {text!r} has no word")
        return Write(None, text, 0, words)
    mask, value = write.number("mask", 1, _MAX_U64), write.number("value", 0, _MAX_U64)
    forbidden = write.number("forbid_mask", 0, _MAX_U64) or 0
    if mask is None or value is None:
        return nothing
    for key, what in broken_rules(reach, mask, value, forbidden, prechecks):
        if key in write.values:
            write.wrong(key, what)
        else:
            where = ("access", key) if key in ("offset", "width") else ("write",)
            all_.problems.append(ProfileError(what, where=all_.doc.where(where)))
    words = _words(all_, reach, mask) or (("on", value),)
    if value not in [known for _, known in words]:
        all_.wrong("words", f"value {value:#06x} of write has no word")
    return Write(mask, value, forbidden, words)


def _words(all_: Fields, reach: Reach | None, mask: int | None) -> tuple[tuple[str, Value], ...]:
    """Read the names of values; of a register they are bits inside the mask."""
    names = all_.values.get("words")
    if "words" not in all_.values or reach is None:
        return ()
    if not isinstance(names, dict) or not names:
        all_.wrong("words", f"words is {names!r}, not a mapping of words to values")
        return ()
    found: list[tuple[str, Value]] = []
    for word, raw in names.items():
        value: Value | None = raw if isinstance(raw, str) else None
        if reach.method in REGISTER_METHODS:
            value = as_number(raw)
            if value is None or value < 0 or (mask is not None and value & ~mask):
                value = None
        where = all_.doc.where(("words", word))
        if value is None:
            inside = f" inside the mask {mask:#06x}" if mask is not None else ""
            all_.problems.append(ProfileError(f"word {word!r} is {raw!r}, not a value{inside}", where=where))
        elif value in [known for _, known in found]:
            all_.problems.append(ProfileError(f"word {word!r} has the value of another word", where=where))
        else:
            found.append((str(word), value))
    return tuple(found)


def parse_verify(all_: Fields, write: Write) -> tuple[ReadBack | None, Effect | None]:
    """Return how a write is read back and which load proves it. Pure."""
    verify = all_.section("verify", ("readback", "effect"), ("readback",))
    if verify is None:
        return None, None
    back = verify.section("readback", ("mask", "value", "tries", "delay_ms"))
    tries = delay = None
    if back is not None:
        tries, delay = back.number("tries", 1, 20), back.number("delay_ms", 0, 10_000)
        for key, expected in (("mask", write.mask), ("value", write.value)):
            given = as_number(back.values.get(key))
            if (
                write.value is not None
                and key in back.values
                and (given if isinstance(expected, int) else back.values[key]) != expected
            ):
                back.wrong(key, f"{key} is {back.values[key]!r}; what is read back is what was written")
    effect = verify.section("effect", ("probe", "min_gain", "max_loss"), ("probe", "min_gain", "max_loss"))
    found = None
    if effect is not None:
        probe, gain, loss = effect.text("probe"), effect.real("min_gain", 1.0, 100.0), effect.real("max_loss", 0.0, 1.0)
        if probe is not None and gain is not None and loss is not None:
            found = Effect(probe, gain, loss)
    standard = ReadBack()
    return ReadBack(tries or standard.tries, standard.delay_s if delay is None else delay / 1000), found


def parse_read_mask(all_: Fields, reach: Reach | None, write: Write) -> int | None:
    """Read the mask of a register that is only reported: it is as mandatory as that of a write."""
    if (
        reach is None
        or reach.method not in REGISTER_METHODS
        or "write" not in all_.values
        or all_.values["write"] is not None
    ):
        return None
    verify = all_.values.get("verify")
    back = verify.get("readback") if isinstance(verify, dict) else None
    mask = as_number(back.get("mask")) if isinstance(back, dict) else None
    where = all_.doc.where(("verify", "readback", "mask"))
    if mask is None or mask < 1 or (reach.width is not None and mask >> reach.width):
        all_.problems.append(
            ProfileError(
                f"verify.readback needs the mask that is read, within {reach.width or 64} bits",
                where=where,
                hint="mask: 0x0100",
            )
        )
        return None
    for word, value in write.words:
        if isinstance(value, int) and value & ~mask:
            where = all_.doc.where(("words", word))
            all_.problems.append(ProfileError(f"word {word!r} has bits outside the mask {mask:#06x}", where=where))
    return mask

"""A marked YAML document -> a recipe, or every problem in it with its line. Pure; the format is docs/facts.md#recipes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hicachectl.errors import ProfileError
from hicachectl.tuning.host.model import SlotKind
from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.recipe import (
    REGISTER_METHODS,
    CpuMatch,
    Effect,
    KernelMatch,
    Match,
    PciMatch,
    Precheck,
    Reach,
    Recipe,
    Report,
    Risk,
    Scope,
    Source,
    Status,
    knob_of,
)
from hicachectl.tuning.recipe_fields import Fields, as_number, blanks, top
from hicachectl.tuning.recipe_rules import (
    ACCESS_CONTROL,
    EXPRESS,
    RESERVED_AREAS,
    broken_rules,
    never_written,
    too_wide,
    unfit,
)
from hicachectl.tuning.target import METHODS_THAT_REPORT, Method, Value
from hicachectl.yaml_marks import Marked

__all__ = ["SCHEMA", "is_recipe_id", "parse_fields"]

SCHEMA = "hicachectl.recipe/1"
_KEYS = (
    "schema", "id", "knob", "title", "status", "match", "access", "words", "write", "on_not_implemented", "precheck", "verify",
    "revert", "persist", "risk", "report", "source",
)  # fmt: skip
_NEEDED = ("schema", "id", "title", "status", "match", "access", "write", "verify", "revert", "risk", "source")
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_KNOB = re.compile(r"[a-z][a-z0-9]*\.[a-z0-9]+([.-][a-z0-9]+)*")
_HEX_PATTERN = re.compile(r"(0x)?[0-9a-fA-F?]+")
_PORT_TYPES = (
    "endpoint",
    "legacy",
    "root-port",
    "upstream",
    "downstream",
    "bridge",
    "pci-to-pcie-bridge",
    "rc-endpoint",
    "event-collector",
)
_KINDS = (SlotKind.ACCELERATOR, SlotKind.NIC, SlotKind.RDMA_NIC, SlotKind.NVME, SlotKind.BRIDGE, SlotKind.OTHER)
_CPU_VENDORS = {"hygon": "HygonGenuine", "amd": "AuthenticAMD", "intel": "GenuineIntel"}
_LOCKDOWN = ("none", "integrity", "confidentiality")
_ANCHORED = (Method.PCI_CONFIG, Method.PCI_ECAP)
_MAX_U64 = (1 << 64) - 1
_PATHS = {Method.SYSFS: "/sys/", Method.SYSCTL: "/proc/sys/", Method.MOUNT: "/"}


def is_recipe_id(text: str) -> bool:
    """Say whether a text can be the id of a recipe: small words with dashes between, none of them a knob of another kind. Pure.

    >>> is_recipe_id("hygon-write-order"), is_recipe_id("thp-enabled"), is_recipe_id("X")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None and text.partition("-")[0] not in RESERVED_AREAS


@dataclass(frozen=True, slots=True)
class _Write:
    mask: int | None
    value: Value | None
    forbidden: int
    words: tuple[tuple[str, Value], ...]


def parse_fields(doc: Marked, *, shipped: bool, sha256: str) -> tuple[Recipe | None, list[ProfileError]]:
    """Return the recipe, or None and the problems. Pure. Blanks of a template are told first, and alone."""
    empty = blanks(doc)
    if empty:
        return None, empty
    problems: list[ProfileError] = []
    all_ = top(doc, _KEYS, _NEEDED, problems)
    schema = all_.text("schema")
    if schema is not None and schema != SCHEMA:
        all_.wrong("schema", f"schema is {schema!r}; this program reads {SCHEMA}")
    ident, knob = _names(all_)
    title, status = all_.text("title"), all_.text("status", [s.value for s in Status])
    match = _match(all_)
    reach = _access(all_)
    sources = _sources(all_, status)
    prechecks = _prechecks(all_)
    write = _write(all_, reach, prechecks)
    if write.value is not None and match is not None and reach is not None:
        for part, what in too_wide(match, reach):
            all_.problems.append(ProfileError(what, where=doc.where(("match", part))))
    read_back, effect = _verify(all_, write)
    mask = write.mask if write.mask is not None else _read_mask(all_, reach, write)
    reset, flr, reapply = _persist(all_)
    risk = _risk(all_)
    report = _report(all_, write.value is None)
    on_not_implemented = all_.text("on_not_implemented", ("skip", "fail"))
    if write.value is not None and "on_not_implemented" not in all_.values:
        all_.wrong(None, "key 'on_not_implemented' is missing", hint="skip where only a write tells, else fail")
    revert = all_.section("revert", ("from",), ("from",))
    if revert is not None:
        revert.text("from", ("journal",))  # never a default: what was there before is in the journal alone
    if problems or ident is None or knob is None or title is None or status is None or match is None:
        return None, problems
    if reach is None or read_back is None or risk is None:
        return None, problems
    return (
        Recipe(
            id=ident, knob=knob, title=title, status=Status(status), match=match, reach=reach, mask=mask, value=write.value,
            words=write.words, forbidden=never_written(reach, write.forbidden),
            on_not_implemented=on_not_implemented or "fail", prechecks=prechecks, read_back=read_back, effect=effect,
            survives_reboot=reset, survives_flr=flr, reapply=reapply, risk=risk, report=report, sources=sources,
            shipped=shipped, where=doc.path, sha256=sha256,
        ),
        [],
    )  # fmt: skip


# -- name and source ----------------------------------------------------------------------------------------------------


def _names(all_: Fields) -> tuple[str | None, str | None]:
    ident = all_.text("id")
    if ident is not None and not _ID.fullmatch(ident):
        all_.wrong(
            "id", f"id is {ident!r}, not small letters and digits with dashes between", hint="vendor-what-it-sets"
        )
        ident = None
    knob = all_.text("knob") if "knob" in all_.values else knob_of(ident) if ident else None
    if knob is not None and not _KNOB.fullmatch(knob):
        all_.wrong("knob", f"knob is {knob!r}, not AREA.WHAT in small letters")
        knob = None
    elif knob is not None and knob.partition(".")[0] in RESERVED_AREAS:
        key = "knob" if "knob" in all_.values else "id"
        all_.wrong(
            key, f"knob {knob!r} is in the area {knob.partition('.')[0]!r}, which is no recipe's", hint="choose another"
        )
        knob = None
    return ident, knob


def _sources(all_: Fields, status: str | None) -> tuple[Source, ...]:
    found = []
    for entry in all_.sections("source", ("kind", "ref", "checked"), ("kind", "ref", "checked")):
        kind = entry.text("kind", ("code", "document", "thread", "measurement", "specification"))
        ref, checked = entry.text("ref"), entry.text("checked")
        if checked is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", checked, re.ASCII):
            entry.wrong("checked", f"checked is {checked!r}, not a date such as 2026-11-29")
        if kind and ref and checked:
            found.append(Source(kind, ref, checked))
    if status == Status.PUBLIC.value and not all_.values.get("source"):
        all_.wrong("source", "a public recipe needs a source", hint="where its address and bits can be read")
    return tuple(found)


# -- match --------------------------------------------------------------------------------------------------------------


def _match(all_: Fields) -> Match | None:
    match = all_.section("match", ("cpu", "pci", "kernel", "topology"))
    if match is None:
        return None
    cpu, pci = match.section("cpu", ("vendor", "family", "model")), None
    kernel = match.section("kernel", ("min", "lockdown"))
    functions = match.section("pci", ("vendor", "device", "class", "kind", "port_type"))
    if functions is not None:
        pci = PciMatch(
            _patterns(functions, "vendor", 4), _patterns(functions, "device", 4), _patterns(functions, "class", 6),
            _one_or_more(functions, "kind", _KINDS), _one_or_more(functions, "port_type", _PORT_TYPES),
        )  # fmt: skip
    topology = match.section("topology", ("shared_upstream",), ("shared_upstream",))
    shared = _at_least(topology) if topology is not None else None
    return Match(
        cpu=CpuMatch(_vendors(cpu), _ranges(cpu, "family"), _ranges(cpu, "model")) if cpu is not None else CpuMatch(),
        pci=pci,
        kernel=KernelMatch(_oldest(kernel), _one_or_more(kernel, "lockdown", _LOCKDOWN)) if kernel else KernelMatch(),
        shared_upstream=shared,
    )


def _vendors(cpu: Fields) -> tuple[str, ...]:
    text = cpu.text("vendor")
    if text in (None, "any"):
        return ()
    return tuple(_CPU_VENDORS.get(word.strip().lower(), word.strip()) for word in str(text).split("|"))


def _ranges(cpu: Fields, key: str) -> tuple[tuple[int, int], ...]:
    """Read any, 25, "23|25" or "63-86"."""
    value = cpu.values.get(key)
    if value in (None, "any"):
        return ()
    whole = as_number(value)
    if whole is not None and 0 <= whole < 1 << 16:
        return ((whole, whole),)
    found = []
    for part in str(value).split("|") if isinstance(value, str) else ():
        numbers = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part, re.ASCII)
        if numbers is None or int(numbers[2] or numbers[1]) < int(numbers[1]):
            break
        found.append((int(numbers[1]), int(numbers[2] or numbers[1])))
    else:
        if found:
            return tuple(found)
    cpu.wrong(key, f'{key} is {value!r}, not any, a number, or numbers and ranges such as "63|79-86"')
    return ()


def _patterns(functions: Fields, key: str, n_digits: int) -> tuple[str, ...]:
    text = functions.text(key)
    if text in (None, "any"):
        return ()
    words = [word.strip().lower() for word in str(text).split("|")]
    bare = [word.removeprefix("0x") for word in words]
    if any(
        not _HEX_PATTERN.fullmatch(word) or len(digits) != n_digits for word, digits in zip(words, bare, strict=True)
    ):
        functions.wrong(
            key, f"{key} is {text!r}, not any or patterns of {n_digits} hex digits, ? for any digit, | between them"
        )
        return ()
    return tuple(bare)


def _one_or_more(section: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Read any, a word, or a list of words."""
    value = section.values.get(key)
    if value in (None, "any"):
        return ()
    if isinstance(value, list):
        return section.texts(key, known) or ()
    word = section.text(key, known)
    return (word,) if word is not None else ()


def _oldest(kernel: Fields) -> tuple[int, ...]:
    text = kernel.text("min")
    if text in (None, "any"):
        return ()
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", str(text), re.ASCII):
        kernel.wrong("min", f'min is {text!r}, not a version such as "6.10"')
        return ()
    return tuple(int(part) for part in str(text).split("."))


def _at_least(topology: Fields) -> int | None:
    text = topology.text("shared_upstream")
    found = re.fullmatch(r">=\s*(\d{1,3})", text or "", re.ASCII)
    if text is not None and found is None:
        topology.wrong("shared_upstream", f'shared_upstream is {text!r}, not such as ">=2"')
    return int(found[1]) if found else None


# -- access -------------------------------------------------------------------------------------------------------------


def _access(all_: Fields) -> Reach | None:
    keys = (
        "method", "scope", "anchor", "offset", "width", "instances", "path", "module", "parameter", "setting",
    )  # fmt: skip
    access = all_.section("access", keys, ("method", "scope"))
    if access is None:
        return None
    method_word, scope = (
        access.text("method", [m.value for m in Method]),
        access.text("scope", [s.value for s in Scope]),
    )
    if method_word is None or scope is None:
        return None
    method = Method(method_word)
    _allow_keys(access, method)
    anchor = access.section("anchor", ("cap", "ecap", "min_version"))
    capability = extended = None
    if anchor is not None:
        capability, extended = anchor.number("cap", 0, 0xFF), anchor.number("ecap", 0, 0xFFFF)
        if (capability is None) == (extended is None):
            anchor.wrong(None, "an anchor is either cap or ecap", hint="anchor: {cap: 0x10, min_version: 2}")
        if capability not in (None, EXPRESS):
            anchor.wrong("cap", f"cap is {capability:#x}; only 0x10, PCI Express, is located")
        if extended not in (None, ACCESS_CONTROL):
            anchor.wrong("ecap", f"ecap is {extended:#x}; only 0x0d, access control, is located")
    reach = Reach(
        method=method,
        scope=Scope(scope),
        offset=access.number("offset", 0, 0xFFFFFFFF),
        width=access.number("width", 8, 64),
        capability=capability,
        min_version=(anchor.number("min_version", 1, 15) if anchor is not None else None) or 1,
        extended=extended,
        instances=access.numbers("instances", 0, 0xFFFFFFFF) or (0,),
        path=_path(access, method, Scope(scope)),
        module=_word(access, "module"),
        parameter=_word(access, "parameter"),
        setting=access.text("setting"),
    )
    for key, what in unfit(reach):
        access.wrong(key if key in access.values else None, what)
    return reach


def _allow_keys(access: Fields, method: Method) -> None:
    """Width and offset are mandatory for registers; every other method has its own keys."""
    needed: tuple[str, ...] = ("setting",)
    extra: tuple[str, ...] = ()
    if method in REGISTER_METHODS:
        needed = ("offset", "width")
        extra = () if method is Method.MSR else ("anchor",) if method in _ANCHORED else ("instances",)
    elif method in _PATHS:
        needed = ("path",)
    elif method is Method.MODULE_PARAM:
        needed = ("module", "parameter")
    for key in needed:
        if key not in access.values:
            access.wrong(None, f"key {key!r} of access is missing: {method.value} needs it", hint=f"add {key}:")
    for key in access.values:
        if key not in ("method", "scope", *needed, *extra):
            access.wrong(key, f"{method.value} has no {key}", hint="it has: " + ", ".join((*needed, *extra)))


def _path(access: Fields, method: Method, scope: Scope) -> str | None:
    path = access.text("path")
    if path is None or method not in _PATHS:
        return None
    parts = path.split("/")
    if not path.startswith(_PATHS[method]) or ".." in parts or "" in parts[1:]:
        access.wrong("path", f"path is {path!r}, not a plain path below {_PATHS[method]}")
        return None
    allowed = {Scope.PER_FUNCTION: {"address"}, Scope.PER_ROOT_PORT: {"address"}, Scope.PER_CPU: {"cpu"}}.get(
        scope, set()
    )
    if (
        set(re.findall(r"\{([^{}]*)\}", path)) != allowed
        or path.count("{") != len(allowed)
        or path.count("}") != len(allowed)
    ):
        holder = " and ".join(f"{{{name}}}" for name in allowed) or "no {...}"
        access.wrong("path", f"path is {path!r}; with scope {scope.value} it holds {holder}, once")
        return None
    return path


def _word(access: Fields, key: str) -> str | None:
    word = access.text(key)
    if word is not None and not re.fullmatch(r"\w+", word, re.ASCII):
        access.wrong(key, f"{key} is {word!r}, not letters, digits and underscores")
        return None
    return word


# -- write and verify -----------------------------------------------------------------------------------------------------


def _write(all_: Fields, reach: Reach | None, prechecks: tuple[tuple[Precheck, int], ...]) -> _Write:
    """Read what is written; null or missing (told elsewhere) means that the recipe only reads."""
    nothing = _Write(None, None, 0, _words(all_, reach, None))
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
        return _Write(None, text, 0, words)
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
    return _Write(mask, value, forbidden, words)


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


def _verify(all_: Fields, write: _Write) -> tuple[ReadBack | None, Effect | None]:
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


def _read_mask(all_: Fields, reach: Reach | None, write: _Write) -> int | None:
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


# -- the rest -------------------------------------------------------------------------------------------------------------


def _prechecks(all_: Fields) -> tuple[tuple[Precheck, int], ...]:
    found: dict[Precheck, int] = {}
    for entry in all_.sections("precheck", [check.value for check in Precheck]):
        for key in entry.values:
            if key not in [check.value for check in Precheck]:
                continue  # told already
            check = Precheck(key)
            if check is Precheck.CONFIG_READABLE:
                number = entry.number(key, 64, 4096)
            elif check is Precheck.TRANSACTIONS_PENDING:
                number = entry.number(key, 0, 0)
            else:
                number = 1 if entry.flag(key) else None
                if entry.values[key] is False:
                    entry.wrong(key, f"{key} is false; leave it out instead")
            if number is not None:
                found[check] = number
    return tuple(found.items())


def _persist(all_: Fields) -> tuple[bool, bool, str]:
    persist = all_.section("persist", ("survives_reboot", "survives_flr", "reapply"))
    if persist is None:
        return False, False, "none"
    return (
        bool(persist.flag("survives_reboot")), bool(persist.flag("survives_flr")),
        persist.text("reapply", ("systemd", "modprobe", "none")) or "none",
    )  # fmt: skip


def _risk(all_: Fields) -> Risk | None:
    keys = ("level", "reboot_needed", "hazards", "quiesce")
    risk = all_.section("risk", keys, keys)
    if risk is None:
        return None
    level, quiesce = (
        risk.text("level", ("low", "medium", "high")),
        risk.text("quiesce", ("none", "recommended", "required")),
    )
    reboot, hazards = risk.flag("reboot_needed"), risk.texts("hazards")
    if level is None or quiesce is None or reboot is None or hazards is None:
        return None
    return Risk(level, reboot, hazards, quiesce)


def _report(all_: Fields, reports_only: bool) -> Report | None:
    report = all_.section("report", ("reason", "remedy", "beside", "code"), ("reason", "remedy"))
    if report is None:
        if reports_only and all_.values.get("write", 0) is None:
            all_.wrong(
                "report", "a recipe that only reports says why, and what to do instead", hint="report: {reason, remedy}"
            )
        return None
    if not reports_only:
        all_.wrong("report", "report is for recipes that only report: write: null")
    reason, remedy, beside, code = (report.text(key) for key in ("reason", "remedy", "beside", "code"))
    return Report(reason, remedy, beside, code) if reason is not None and remedy is not None else None

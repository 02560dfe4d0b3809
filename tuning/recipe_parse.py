"""A marked YAML document -> a recipe, or every problem in it with its line. Pure; the format is docs/facts.md#recipes."""

from __future__ import annotations

import re

from hicachectl.errors import ProfileError
from hicachectl.tuning.recipe import Precheck, Recipe, Report, Risk, Source, Status, knob_of
from hicachectl.tuning.recipe_fields import Fields, blanks, top
from hicachectl.tuning.recipe_parse_access import parse_access
from hicachectl.tuning.recipe_parse_match import parse_match
from hicachectl.tuning.recipe_parse_write import parse_read_mask, parse_verify, parse_write
from hicachectl.tuning.recipe_rules import RESERVED_AREAS, never_written, too_wide
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


def is_recipe_id(text: str) -> bool:
    """Say whether a text can be the id of a recipe: small words with dashes between, none of them a knob of another kind. Pure.

    >>> is_recipe_id("hygon-write-order"), is_recipe_id("thp-enabled"), is_recipe_id("X")
    (True, False, False)
    """
    return _ID.fullmatch(text) is not None and text.partition("-")[0] not in RESERVED_AREAS


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
    match = parse_match(all_)
    reach = parse_access(all_)
    sources = _sources(all_, status)
    prechecks = _prechecks(all_)
    write = parse_write(all_, reach, prechecks)
    if write.value is not None and match is not None and reach is not None:
        for part, what in too_wide(match, reach):
            all_.problems.append(ProfileError(what, where=doc.where(("match", part))))
    read_back, effect = parse_verify(all_, write)
    mask = write.mask if write.mask is not None else parse_read_mask(all_, reach, write)
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

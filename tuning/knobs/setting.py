"""One place that holds a word or a number, and the item that comes of it: what every knob of memory has in common. Pure.

SETTING = Setting("thp.enabled", "huge pages for anonymous memory", WHY, Target(Method.SYSFS, ".../enabled"), "CONFIG_...")
item = judge(SETTING, sight, choice, ("madvise",))
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.choices import Choice
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Rule, Target, Value, agrees

__all__ = ["NO_FILE", "RESTART", "Pin", "Setting", "in_container", "judge", "leave_alone", "report", "skip"]

RESTART = "restart the engine: only pages faulted from now on follow, those it has stay as they are"
NO_FILE = "no such file"
_NO_CHANGE = "nothing is written"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for a place on every host. `needs` says what a kernel must have for it; `words` are those the kernel documents.

    `argues_for` are the values that `why` speaks for; empty where it speaks of the place and not of a value.
    """

    knob: str
    title: str
    why: str
    target: Target
    needs: str
    words: tuple[str, ...] = ()
    subject: str | None = None
    privilege: str = "root"
    argues_for: tuple[str, ...] = ()

    def why_for(self, choice: Choice) -> str:
        """Return why this value is wanted: our own reason, or who set it where ours would speak against it. Pure."""
        ours = not self.argues_for or choice.value.partition("@")[0] in self.argues_for
        return self.why if ours else choice.reason

    @property
    def id(self) -> str:
        """KNOB or KNOB@SUBJECT. Pure."""
        return self.knob if self.subject is None else f"{self.knob}@{self.subject}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A boot parameter that sets the place: as written on the command line, and the value it means."""

    parameter: str
    value: str


def judge(
    setting: Setting,
    sight: Sight,
    choice: Choice,
    wanted: tuple[str, ...],
    *,
    rule: Rule = Rule.EQUAL,
    pin: Pin | None = None,
    proof: str = "",
    notes: tuple[str, ...] = (),
    on_change: tuple[str, ...] = (),
) -> Item:
    """Return the item: same, change, or a skip with its reason, remedy and code. Pure.

    `wanted[0]` is what would be written. A place that a boot parameter sets is skipped unless it reads as wanted: who
    wrote the command line meant it, and the next boot would undo us. A value already there is "same" even where a write
    is impossible. `proof` and `notes` go with change and same, `on_change` are further notes of a change alone.
    """
    fact = sight.value(setting.target)
    if fact.value is None:
        reason, remedy, code = _why_unread(setting, sight, fact)
        return skip(setting, sight, choice, wanted, reason, remedy, code=code, rule=rule)
    strange = _strange(setting, sight, wanted[0])
    if strange is not None and not _fits(setting.target, rule, wanted, fact.value):
        return skip(setting, sight, choice, wanted, *strange, code="HC-UNSUPPORTED", rule=rule)
    if _fits(setting.target, rule, wanted, fact.value):
        said = () if pin is None else (f"set by {pin.parameter} on the kernel command line",)
        better = (
            ()
            if rule is not Rule.ONE_OF or str(fact.value) == wanted[0]
            else (f"{fact.value} does as well as {wanted[0]}",)
        )
        return _item(setting, sight, choice, ItemKind.SAME, wanted, rule, proof=proof, notes=(*said, *better, *notes))
    if pin is not None:
        return skip(
            setting,
            sight,
            choice,
            wanted,
            f"PINNED: {pin.parameter} on the kernel command line wants {pin.value}, and {wanted[0]} is wanted here; it reads {fact.value}",
            f"take {pin.parameter} off the kernel command line and boot again, or {leave_alone(setting.knob)}",
            code="HC-PINNED",
            rule=rule,
        )
    locked = sight.door(setting.target).read_only
    if locked.value:
        return skip(setting, sight, choice, wanted, *_locked(sight, setting, locked), rule=rule)
    shared = ("the setting is the whole host's: every container on it follows",) if in_container(sight) else ()
    return _item(
        setting,
        sight,
        choice,
        ItemKind.CHANGE,
        wanted,
        rule,
        undo=f"yes: {fact.value} is written back",
        proof=proof,
        notes=(*notes, *on_change, *(shared if setting.target.method is not Method.MOUNT else ())),
    )


def skip(
    setting: Setting,
    sight: Sight,
    choice: Choice,
    wanted: tuple[str, ...],
    reason: str,
    remedy: str,
    code: str | None = None,
    *,
    rule: Rule = Rule.EQUAL,
    notes: tuple[str, ...] = (),
) -> Item:
    """Return a skip. Pure."""
    return _item(
        setting, sight, choice, ItemKind.SKIP, wanted, rule, reason=reason, remedy=remedy, code=code, notes=notes
    )


def report(
    setting: Setting,
    sight: Sight,
    choice: Choice,
    wanted: tuple[str, ...],
    reason: str,
    remedy: str,
    *,
    rule: Rule = Rule.EQUAL,
    notes: tuple[str, ...] = (),
) -> Item:
    """Return an item that is never written; a place that could not be read is a skip. Pure."""
    fact = sight.value(setting.target)
    if fact.value is None:
        why, what, code = _why_unread(setting, sight, fact)
        return skip(setting, sight, choice, wanted, why, what, code, rule=rule)
    return _item(setting, sight, choice, ItemKind.REPORT, wanted, rule, reason=reason, remedy=remedy, notes=notes)


def in_container(sight: Sight) -> bool:
    """Whether something said that this is a container. Pure."""
    return sight.machine.host.container.value not in (None, "none")


def leave_alone(knob: str) -> str:
    """Return the words of a remedy that gives up a knob. Pure.

    >>> leave_alone("thp.enabled")
    'set tune.thp.enabled to null'
    """
    if knob.startswith("thp.size."):
        return f"leave {knob.removeprefix('thp.size.')} out of tune.thp.sizes"
    return f"set tune.{knob.replace('-', '_')} to null"


def _item(
    setting: Setting,
    sight: Sight,
    choice: Choice,
    kind: ItemKind,
    wanted: tuple[Value, ...],
    rule: Rule,
    *,
    reason: str | None = None,
    remedy: str | None = None,
    code: str | None = None,
    undo: str = _NO_CHANGE,
    proof: str = "",
    notes: tuple[str, ...] = (),
) -> Item:
    fact = sight.value(setting.target)
    return Item(
        id=setting.id,
        knob=setting.knob,
        subject=setting.subject,
        title=setting.title,
        kind=kind,
        target=setting.target,
        old=fact.value,
        old_reason=fact.reason,
        wanted=wanted,
        rule=rule,
        why=setting.why_for(choice),
        origin=choice.origin,
        source=fact.source,
        reason=reason,
        remedy=remedy,
        code=code,
        undo=undo,
        privilege=setting.privilege,
        owners=sight.owners.get(setting.target.path, ()),
        proof=proof,
        notes=notes,
    )


def _fits(target: Target, rule: Rule, wanted: tuple[str, ...], seen: Value) -> bool:
    """Say whether the value will do; what is no number satisfies no at-least."""
    try:
        return agrees(target, rule, wanted, seen)
    except ValueError:
        return False


def _strange(setting: Setting, sight: Sight, word: str) -> tuple[str, str] | None:
    """Return reason and remedy where the file does not offer the word; the documented ones count where nobody read the file's."""
    offers = sight.door(setting.target).offers.value
    listed = offers or setting.words
    if not listed or word in listed:
        return None
    whose = f"{setting.target.path} offers" if offers else "the kernel documents"
    remedy = f"choose one of them, or {leave_alone(setting.knob)}"
    return f"{word} is not to be had: {whose} {', '.join(listed)}", remedy


def _why_unread(setting: Setting, sight: Sight, fact: Fact[Value]) -> tuple[str, str, str]:
    """Return reason, remedy and code for a place that could not be read: hidden, not in this kernel, refused, or odd."""
    path, reason = setting.target.path, fact.reason or ""
    if reason == NO_FILE and in_container(sight):
        container = sight.machine.host.container.value
        return (
            f"{path} is not there: the container ({container}) hides it, or the kernel lacks {setting.needs}",
            "run hicachectl on the host, outside of the container",
            "HC-CONTAINER",
        )
    if reason == NO_FILE:
        return (
            f"{path} is not there: this kernel lacks {setting.needs}",
            f"use a kernel with {setting.needs}, or {leave_alone(setting.knob)}",
            "HC-UNSUPPORTED",
        )
    if reason == "permission denied":
        return f"{path} cannot be read without privilege", "run it as root: sudo hicachectl tune plan", "HC-NEED-ROOT"
    return f"{path} cannot be judged: {reason}", f"look at it: cat {path}", "HC-HOST"


def _locked(sight: Sight, setting: Setting, locked: Fact[bool]) -> tuple[str, str, str]:
    reason = f"{setting.target.path} is on a read-only mount ({locked.source})"
    if in_container(sight):
        return reason, "run hicachectl on the host, outside of the container", "HC-CONTAINER"
    top = "/".join(setting.target.path.split("/")[:2])
    return (
        reason,
        f"find out who mounted {top} read-only, or run it outside of that namespace: findmnt {top}",
        "HC-DENIED",
    )

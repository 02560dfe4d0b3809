"""One line of a plan: what a knob found on this host and what is to become of it. Pure.

thp = Item(id="thp.defrag", knob="thp.defrag", kind=ItemKind.CHANGE, target=..., old="madvise", wanted=("defer+madvise",), ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hicachectl.tuning.target import Rule, Target, Value, show_value

__all__ = ["Item", "ItemKind", "Owner", "ReadBack"]


class ItemKind(str, Enum):
    """What a plan does with an item."""

    CHANGE = "change"
    SAME = "same"
    SKIP = "skip"
    REPORT = "report-only"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who sets the same thing at boot or while the host runs, and would undo a change: tuned, a sysctl.d line, the kernel command line, irqbalance."""

    name: str
    where: str
    value: str | None
    """What it sets, where its file says so."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """How a write is read back: `tries` reads, `delay_s` seconds apart. A lab device loses a bit after two reads, so never once."""

    tries: int = 3
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Item:
    """One planned setting.

    `id` is KNOB or KNOB@SUBJECT and is unique in a plan. `old` is what was read (None: `old_reason` says why not). For a
    change `wanted[0]` is what is written: a word, or the wanted bits of the register in their place. `reason` says why an
    item is skipped or only reported and `remedy` what would make it possible; `code` is the HC- code of a skip that has a
    page. `proof` names the observation that shows an effect ("" where none exists); `probe` the load whose gain decides
    under --prove. `on_not_implemented` is skip or fail: what a write that changes nothing means. `ordering` marks changes of
    packet order, which are refused while a process holds an accelerator.
    """

    id: str
    knob: str
    subject: str | None
    title: str
    kind: ItemKind
    target: Target | None
    old: Value | None
    old_reason: str | None
    wanted: tuple[Value, ...]
    rule: Rule
    why: str
    origin: str
    source: str
    reason: str | None = None
    remedy: str | None = None
    code: str | None = None
    undo: str = "yes"
    privilege: str = "root"
    owners: tuple[Owner, ...] = ()
    proof: str = ""
    probe: str | None = None
    min_gain: float | None = None
    max_loss: float | None = None
    read_back: ReadBack = ReadBack()
    on_not_implemented: str = "fail"
    ordering: bool = False
    recipe: str | None = None
    recipe_sha256: str | None = None
    uplink: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the screen: what to restart, what it does not reach, hazards."""

    @property
    def new(self) -> Value | None:
        """The value after the change: a whole register with our bits replaced, or the word; None where there is no change. Pure."""
        if self.kind is not ItemKind.CHANGE or self.target is None:
            return None
        register, first = self.target.register, self.wanted[0]
        if register is None or not isinstance(first, int):
            return first
        return None if not isinstance(self.old, int) else register.merged(self.old, first)

    def show(self, value: Value | None) -> str:
        """Return a value of this item for people. Pure."""
        return str(value) if self.target is None else show_value(self.target, value)

"""Huge pages of one size: `hugepages-<n>kB/enabled` decides for anonymous memory, and only `inherit` follows the file above. Pure.

never above and always in the file of 2048 kB still gives huge pages of 2 MiB, so the effective word is always printed.
"""

from __future__ import annotations

import re

from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs.setting import RESTART, Pin, Setting, judge
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Target
from hicachectl.units import KIB, format_bytes

__all__ = ["GIVES", "THP", "ThpSizes", "effective", "own_word"]

THP = "/sys/kernel/mm/transparent_hugepage"
GIVES = frozenset(("always", "madvise"))
"""Words under which a mapping that asks gets huge pages."""
WORDS = ("always", "inherit", "madvise", "never")
"""Linux Documentation/admin-guide/mm/transhuge.rst."""
_KNOB = re.compile(r"thp\.size\.([1-9]\d{0,11})kB", re.ASCII)
_WHY = (
    "the file of a size decides for pages of that size, and only inherit follows the file above it "
    "(Linux Documentation/admin-guide/mm/transhuge.rst; docs/facts.md#thp-sizes)"
)
_PART = re.compile(r"(\d[\dKMG,-]*):(\w+)", re.ASCII)
_UNIT_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20}


class ThpSizes:
    """`thp.size.<n>kB` for every size that is chosen."""

    name = "thp.size"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file of each chosen size. Pure."""
        return tuple(_target(n_kib) for n_kib in _chosen(choices))

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return an item a chosen size, smallest first; none where inherit is asked for and no size has a file, for so it is. Pure."""
        return tuple(
            _item(sight, choices, n_kib) for n_kib in _chosen(choices) if not _so_already(sight, choices, n_kib)
        )


def effective(own: str | None, above: str | None) -> str | None:
    """Return the word that counts for a size: its own, or the one above where it inherits or has no file; None where unknown. Pure.

    >>> effective("inherit", "madvise"), effective("always", "never"), effective(None, "never")
    ('madvise', 'always', 'never')
    """
    return above if own in (None, "inherit") else own


def own_word(sight: Sight, choices: Choices) -> str | None:
    """Return what the file of the huge size will say when its item, where there is one, has been applied; None without such a file. Pure."""
    n_bytes = sight.machine.memory.thp.huge_page_bytes.value
    if n_bytes is None:
        return None
    for item in ThpSizes().items(sight, choices):
        if item.target == _target(n_bytes // KIB) and choices.keeps(item.knob, None) and item.new is not None:
            return str(item.new)
    found = sight.machine.memory.thp.sizes.get(f"hugepages-{n_bytes // KIB}kB/enabled")
    return None if found is None else found.value


def pinned_word(text: str, n_kib: int) -> str | None:
    """Return what `thp_anon=` says of a size, `16K-64K:always;2M:never`; None where it does not name it. Pure.

    >>> pinned_word("16K,64K-256K:always;2M:never", 128), pinned_word("64K:always", 2048)
    ('always', None)
    """
    found = None
    for match in _PART.finditer(text):
        for one in match[1].split(","):
            first, _, last = one.partition("-")
            low, high = _kib(first), _kib(last or first)
            if low is not None and high is not None and low <= n_kib <= high:
                found = match[2]
    return found


def _item(sight: Sight, choices: Choices, n_kib: int) -> Item:
    knob = f"thp.size.{n_kib}kB"
    choice, thp = choices.wanted[knob], sight.machine.memory.thp
    is_huge = thp.huge_page_bytes.value == n_kib * KIB
    setting = Setting(
        knob,
        f"anonymous pages of {format_bytes(n_kib * KIB)}",
        _WHY,
        _target(n_kib),
        _needs(sight, n_kib),
        WORDS,
    )
    said = sight.machine.host.pinned.get("thp_anon")
    word = None if said is None or said.value is None else pinned_word(said.value, n_kib)
    pin = None if word is None else Pin(f"thp_anon={said.value if said else ''}", word)
    seen, above = sight.value(setting.target).value, thp.enabled.value
    now = effective(None if seen is None else str(seen), above)
    then = effective(choice.value, above)
    told = f"effective for {format_bytes(n_kib * KIB)}: {now or 'unknown'} now, {then or 'unknown'} after (enabled above says {above or '?'})"
    proof = "thp-anonymous" if is_huge and then in GIVES else ""
    notes = (told,) if is_huge else (told, f"not the huge size of this host, {_huge(thp.huge_page_bytes.value)}")
    return judge(setting, sight, choice, (choice.value,), pin=pin, proof=proof, notes=notes, on_change=(RESTART,))


def _so_already(sight: Sight, choices: Choices, n_kib: int) -> bool:
    """Whether a kernel without a file a size (before 6.8) is asked to let its huge size follow the file above: it cannot do otherwise."""
    thp = sight.machine.memory.thp
    bare = thp.enabled.is_known and not thp.sizes and thp.huge_page_bytes.value == n_kib * KIB
    return bare and choices.wanted[f"thp.size.{n_kib}kB"].value == "inherit"


def _needs(sight: Sight, n_kib: int) -> str:
    thp = sight.machine.memory.thp
    if thp.enabled.is_known and not thp.sizes:
        return "a file a size (Linux 6.8 or later; before, enabled alone decides)"
    if thp.enabled.is_known:
        return f"pages of {n_kib} kB (it lists {', '.join(sorted({name.split('/')[0] for name in thp.sizes}))})"
    return "CONFIG_TRANSPARENT_HUGEPAGE"


def _huge(n_bytes: int | None) -> str:
    return "which is unknown" if n_bytes is None else format_bytes(n_bytes)


def _chosen(choices: Choices) -> tuple[int, ...]:
    return tuple(sorted(int(match[1]) for knob in choices.wanted if (match := _KNOB.fullmatch(knob))))


def _target(n_kib: int) -> Target:
    return Target(Method.SYSFS, f"{THP}/hugepages-{n_kib}kB/enabled")


def _kib(text: str) -> int | None:
    digits, unit = text[:-1], text[-1:]
    return int(digits) * _UNIT_KIB[unit] if unit in _UNIT_KIB and digits.isdigit() else None

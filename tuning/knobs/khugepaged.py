"""The kernel thread that joins small pages into huge ones later: whether it compacts, and how much it looks at. Pure.

It is what repairs a pool that took small pages under defrag=defer; pages of the huge size only.
"""

from __future__ import annotations

from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs.setting import Setting, judge, leave_alone, skip
from hicachectl.tuning.knobs.thp_sizes import THP
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Rule, Target

__all__ = ["KhugepagedDefrag", "KhugepagedPagesToScan"]

_GUIDE = "Linux Documentation/admin-guide/mm/transhuge.rst; docs/facts.md#thp-sizes"
DEFRAG = Setting(
    "khugepaged.defrag",
    "khugepaged may compact memory",
    f"with defrag=defer a pool takes small pages where memory is in pieces, and khugepaged must make room to repair them ({_GUIDE})",
    Target(Method.SYSFS, f"{THP}/khugepaged/defrag"),
    "CONFIG_TRANSPARENT_HUGEPAGE",
    ("0", "1"),
    argues_for=("1",),
)
PAGES = Setting(
    "khugepaged.pages-to-scan",
    "pages khugepaged looks at in a pass",
    f"it decides how soon small pages of a pool are joined, at the price of one core's time ({_GUIDE})",
    Target(Method.SYSFS, f"{THP}/khugepaged/pages_to_scan"),
    "CONFIG_TRANSPARENT_HUGEPAGE",
)


class KhugepagedDefrag:
    """`khugepaged.defrag`: 0 or 1. No mapping shows its effect at once."""

    name = "khugepaged.defrag"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (DEFRAG.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item. Pure."""
        choice = choices.wanted.get(self.name)
        return () if choice is None else (judge(DEFRAG, sight, choice, (choice.value,)),)


class KhugepagedPagesToScan:
    """`khugepaged.pages-to-scan`: at least this many; a larger number of somebody else stays."""

    name = "khugepaged.pages-to-scan"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (PAGES.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        if not (choice.value.isascii() and choice.value.isdigit() and int(choice.value) > 0):
            remedy = f"write a number of pages from 1 up, or {leave_alone(self.name)}"
            return (skip(PAGES, sight, choice, (), f"{choice.value} is no number of pages", remedy),)
        return (judge(PAGES, sight, choice, (choice.value,), rule=Rule.AT_LEAST),)

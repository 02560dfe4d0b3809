"""Automatic NUMA balancing: off only where pools and ranks are bound, for then its scans find nothing to do. Pure."""

from __future__ import annotations

from hicachectl.tuning import finding
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.setting import Pin, Setting, judge, leave_alone, skip
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Target

__all__ = ["NumaBalancing"]

SETTING = Setting(
    "numa.balancing",
    "automatic NUMA balancing",
    "its scans showed as pauses of 16 to 31 ms in a serving path (deepseek-ai/DeepEP#624), while off for everyone cost unbound "
    "programs up to 20 % (redhat-performance/tuned#283; docs/facts.md#balancing)",
    Target(Method.SYSCTL, "/proc/sys/kernel/numa_balancing"),
    "CONFIG_NUMA_BALANCING",
    argues_for=("0",),
)
_PINNED = {"enable": "1", "disable": "0"}
"""Words of numa_balancing= (Linux Documentation/admin-guide/kernel-parameters.txt)."""


class NumaBalancing:
    """`numa.balancing`: a bit mask, 0 is off. 0 is written only with the permission `bound`."""

    name = "numa.balancing"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (SETTING.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        if not (choice.value.isascii() and choice.value.isdigit()):
            remedy = f"write a bit mask such as 0 or 1, or {leave_alone(self.name)}"
            return (skip(SETTING, sight, choice, (), f"{choice.value} is no number", remedy),)
        unbound = choice.value == "0" and not choices.bound
        several = len(finding.Sight(sight.machine).memory_nodes) > 1
        told = "off, and nobody said that pools and ranks are bound: unbound programs may lose by it"
        notes = (told,) if unbound and several else ()
        found = judge(SETTING, sight, choice, (choice.value,), pin=_pin(sight), notes=notes)
        if found.kind is not ItemKind.CHANGE or not unbound:
            return (found,)
        reason = f"balancing is {found.old}, and nobody said that pools and ranks are bound to nodes: unbound programs may lose by 0"
        remedy = "bind them first (hicachectl topo shows the placement), then plan with --bound"
        return (skip(SETTING, sight, choice, (choice.value,), reason, remedy, "HC-NUMA-BALANCING"),)


def _pin(sight: Sight) -> Pin | None:
    said = sight.machine.host.pinned.get("numa_balancing")
    if said is None or said.value is None:
        return None
    word = said.value.split(",")[-1]
    return Pin(f"numa_balancing={said.value}", _PINNED.get(word, word))

"""Zone reclaim: what the kernel does when a node is full. Told, never set: who switched it on had a reason we do not know. Pure."""

from __future__ import annotations

from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs.setting import Setting, report
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Target

__all__ = ["ZoneReclaim"]

SETTING = Setting(
    "numa.zone-reclaim",
    "reclaim on a full node before another node is asked",
    "with it a pool that fills a node reclaims there instead of going on elsewhere; Linux has it off by default since 2014 "
    "(commit 4f9b16a64753; docs/facts.md#zone-reclaim)",
    Target(Method.SYSCTL, "/proc/sys/vm/zone_reclaim_mode"),
    "CONFIG_NUMA",
)


class ZoneReclaim:
    """`numa.zone-reclaim`: report only."""

    name = "numa.zone-reclaim"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (SETTING.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one report with the lines that would switch it off. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        value = sight.value(SETTING.target).value
        if value == "0":
            return (report(SETTING, sight, choice, ("0",), "it is 0, as it should be", "nothing to do"),)
        remedy = "sysctl -w vm.zone_reclaim_mode=0, and to keep it /etc/sysctl.d/90-zone-reclaim.conf: vm.zone_reclaim_mode = 0"
        reason = f"it is {value}, 0 is usual: with large registered pools a full node may stall in reclaim; this tool does not set it"
        return (report(SETTING, sight, choice, ("0",), reason, remedy),)

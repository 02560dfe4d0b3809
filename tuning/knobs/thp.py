"""Transparent huge pages, host-wide: who gets them, what a page fault does to find one, and the governor of memfd. Pure.

Which file governs which mapping is docs/facts.md#which-setting: `enabled` private anonymous memory, `shmem_enabled` memfd
and shared anonymous memory, and neither /dev/shm (tmpfs.py).
"""

from __future__ import annotations

from dataclasses import replace

from hicachectl.errors import UsageError
from hicachectl.tuning import finding
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.judge_memory import ROOMY_SHARE
from hicachectl.tuning.knobs.setting import RESTART, Pin, Setting, judge, skip
from hicachectl.tuning.knobs.thp_sizes import GIVES, THP, effective, own_word
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import Method, Rule, Target
from hicachectl.units import format_bytes, parse_size

__all__ = ["AT_LEAST_AS_GOOD", "DEFRAG", "ThpDefrag", "ThpEnabled", "ThpShmem", "has_room", "settle"]

_GUIDE = "Linux Documentation/admin-guide/mm/transhuge.rst"
_CONFIG = "CONFIG_TRANSPARENT_HUGEPAGE"
AT_LEAST_AS_GOOD = {"advise": ("advise", "within_size", "always"), "within_size": ("within_size", "always")}
"""Words of shared memory under which what asked for huge pages gets them as well: within_size heeds advice too (transhuge.rst)."""

ENABLED = Setting(
    "thp.enabled",
    "huge pages for private anonymous memory",
    "a pool that asks for huge pages registers faster, 98 instead of 242 s for 1.5 TB in ROCm/mori#679, and madvise leaves "
    "everyone else alone (docs/facts.md#thp)",
    Target(Method.SYSFS, f"{THP}/enabled"),
    _CONFIG,
    ("always", "madvise", "never"),
    argues_for=("madvise",),
)
DEFRAG = Setting(
    "thp.defrag",
    "what a page fault does to find a huge page",
    "a fault that must compact first fills a pool at gigabytes a minute (NVIDIA/TensorRT-LLM#15430), and one that may not takes "
    "small pages where memory is in pieces (docs/facts.md#thp)",
    Target(Method.SYSFS, f"{THP}/defrag"),
    _CONFIG,
    ("always", "defer", "defer+madvise", "madvise", "never"),
    argues_for=("auto",),
)
SHMEM = Setting(
    "thp.shmem",
    "huge pages for memfd and shared anonymous memory",
    f"a pool in a memfd that all ranks map follows shmem_enabled and not enabled ({_GUIDE}; docs/facts.md#which-setting)",
    Target(Method.SYSFS, f"{THP}/shmem_enabled"),
    "CONFIG_TRANSPARENT_HUGEPAGE and CONFIG_SHMEM",
    ("always", "within_size", "advise", "never", "deny", "force"),
    argues_for=("always", "within_size", "advise"),
)


class ThpEnabled:
    """`thp.enabled`: the word of private anonymous memory. Ours is madvise; always is never a default."""

    name = "thp.enabled"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (ENABLED.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item, with the word that counts for the huge size after this plan. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        own = own_word(sight, choices)
        then = effective(own, choice.value)
        notes = [f"effective for the huge size after this plan: {then}"]
        if own not in (None, "inherit"):
            notes[0] += (
                f", which its own file says: this one does not reach it (tune.thp.sizes: {_huge_kib(sight)}kB=inherit)"
            )
        if choice.value == "always":
            notes.append(
                "always gives huge pages to every program: one host of three became 5 times slower (ikawrakow/ik_llama.cpp#2010)"
            )
        if sight.machine.memory.thp.process_enabled.value is False:
            notes.append(
                "THP_enabled is 0 for this process: a launcher switched huge pages off for all it starts, whatever is set here"
            )
        proof = "thp-anonymous" if then in GIVES else ""
        pin = _pin(sight, "transparent_hugepage")
        found = judge(
            ENABLED, sight, choice, (choice.value,), pin=pin, proof=proof, notes=tuple(notes), on_change=(RESTART,)
        )
        if found.kind is ItemKind.SAME and choice.value in GIVES and then == "never":
            kib = _huge_kib(sight)
            why = f"it is {found.old}, and pages of {format_bytes(kib << 10)} follow their own file, which says never: pools get small pages"
            remedy = f"set tune.thp.sizes to {kib}kB=inherit in the same plan"
            return (skip(ENABLED, sight, choice, (choice.value,), why, remedy, "HC-THP-OFF"),)
        return (found,)


class ThpDefrag:
    """`thp.defrag`: a word, or "auto", or "auto:SIZE" with the huge blocks that must be free on each node."""

    name = "thp.defrag"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (DEFRAG.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item; of auto the notes hold the numbers it was decided by. No mapping shows its effect. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        notes: tuple[str, ...] = ()
        word = choice.value
        if word.partition(":")[0] == "auto":
            try:
                need = parse_size(word.partition(":")[2]) if ":" in word else None
            except UsageError as error:
                return (
                    skip(
                        DEFRAG,
                        sight,
                        choice,
                        (),
                        f"{word}: {error.what}",
                        "write auto, or auto:SIZE such as auto:64GiB",
                    ),
                )
            word, told = _auto(sight, need)
            notes = (told,)
        return (judge(DEFRAG, sight, choice, (word,), notes=notes),)


class ThpShmem:
    """`thp.shmem`: the word of memfd. It does not reach a mount, /dev/shm included, but with deny and force."""

    name = "thp.shmem"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name the file. Pure."""
        return (SHMEM.target,) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return one item. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        wanted = AT_LEAST_AS_GOOD.get(choice.value, (choice.value,))
        own = sight.machine.memory.thp.sizes.get(f"hugepages-{_huge_kib(sight)}kB/shmem_enabled")
        then = effective(None if own is None else own.value, choice.value)
        notes = ["governs memfd, SysV and shared anonymous memory, not /dev/shm: that is tmpfs.huge"]
        if own is not None and own.value not in (None, "inherit"):
            notes.append(f"pages of the huge size follow their own file, which says {own.value} ({own.source})")
        if sight.value(SHMEM.target).value in ("deny", "force"):
            notes.append(
                f"{sight.value(SHMEM.target).value} overrides every tmpfs mount too: their huge= counts again after this change"
            )
        proof = "thp-shmem" if then in ("advise", "within_size", "always", "force") else ""
        rule = Rule.ONE_OF if len(wanted) > 1 else Rule.EQUAL
        pin = _pin(sight, "transparent_hugepage_shmem")
        return (
            judge(
                SHMEM, sight, choice, wanted, rule=rule, pin=pin, proof=proof, notes=tuple(notes), on_change=(RESTART,)
            ),
        )


def settle(choices: Choices, sight: Sight) -> Choices:
    """Return the choices with the word that room decides now in the place of auto, and the numbers in its reason. Pure.

    A plan is made of these: free memory changes by the minute, and a plan that asked again when it is applied, or at every
    boot, would hardly ever fit. `sight` needs the machine and the door of the file.
    """
    choice = choices.wanted.get("thp.defrag")
    if choice is None or choice.value.partition(":")[0] != "auto":
        return choices
    try:
        need = parse_size(choice.value.partition(":")[2]) if ":" in choice.value else None
    except UsageError:
        return choices  # the item says so
    word, told = _auto(sight, need)
    settled = replace(choice, value=word, reason=f"{choice.reason}; {told}")
    return replace(choices, wanted={**choices.wanted, "thp.defrag": settled})


def has_room(machine: Machine, need_bytes: int | None) -> tuple[bool, str]:
    """Say whether every allowed memory node has the huge blocks a pool needs, and by which numbers. Pure.

    `need_bytes` must be free in huge blocks on each node; None asks for half of a node's free memory, the line that
    HC-THP-STALL draws. What is not known is no room.
    """
    page, nodes = machine.memory.thp.huge_page_bytes, finding.Sight(machine).pool_nodes
    if page.value is None:
        return False, f"the huge page size is not known: {page.reason}"
    if not nodes:
        return False, "no memory node of this process is known"
    told: list[tuple[float, bool, str]] = []
    for node in nodes:
        blocks, free = node.free_huge_blocks, node.memory_free_bytes
        if blocks.value is None:
            return False, f"free huge blocks of node {node.id} are not known: {blocks.reason} ({blocks.source})"
        if need_bytes is None and free.value is None:
            return False, f"free memory of node {node.id} is not known: {free.reason} ({free.source})"
        need = need_bytes if need_bytes is not None else int(ROOMY_SHARE * (free.value or 0))
        have = blocks.value * page.value
        line = f"node {node.id} has {format_bytes(have)} in free huge blocks and {format_bytes(need)} are needed"
        told.append((have / max(need, 1), have > 0 and have >= need, line))
    tightest = min(told)
    return tightest[1], f"{tightest[2]} (the tightest of {len(told)})"


def _auto(sight: Sight, need_bytes: int | None) -> tuple[str, str]:
    """Choose defer+madvise where a fault will rarely have to search, else defer: small pages at once and khugepaged later."""
    roomy, numbers = has_room(sight.machine, need_bytes)
    offers = sight.door(DEFRAG.target).offers.value
    if roomy and offers is not None and "defer+madvise" not in offers:
        return "defer", f"auto: defer, since this kernel offers no defer+madvise; {numbers}"
    return ("defer+madvise" if roomy else "defer"), f"auto: {'defer+madvise' if roomy else 'defer'}, since {numbers}"


def _pin(sight: Sight, parameter: str) -> Pin | None:
    said = sight.machine.host.pinned.get(parameter)
    return None if said is None or said.value is None else Pin(f"{parameter}={said.value}", said.value.split(",")[-1])


def _huge_kib(sight: Sight) -> int:
    return (sight.machine.memory.thp.huge_page_bytes.value or 2 << 20) // 1024

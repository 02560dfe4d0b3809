"""The `huge=` option of tmpfs mounts, /dev/shm first: what decides about pages of files there, whatever the other files say. Pure.

A choice is a word, or WORD@PATH,PATH for other mounts than /dev/shm. A remount reaches pages faulted from then on only, so
it comes before pools exist.
"""

from __future__ import annotations

from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs.setting import NO_FILE, Setting, in_container, judge, leave_alone, skip
from hicachectl.tuning.knobs.thp import AT_LEAST_AS_GOOD, SHMEM, ThpShmem
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.target import HUGE_WORDS, Method, Rule, Target

__all__ = ["TmpfsHuge", "fstab_line"]

DEV_SHM = "/dev/shm"
_GIVES = frozenset(("always", "within_size", "advise"))
_WHY = (
    "a file there gets small pages and MADV_HUGEPAGE succeeds and does nothing unless the mount says huge= "
    "(measured, docs/facts.md#dev-shm; Linux Documentation/admin-guide/mm/transhuge.rst)"
)
_POOLS = "reaches new pages only: remount before pools are created, and restart those that are there"


class TmpfsHuge:
    """`tmpfs.huge@MOUNT` for every mount of the choice."""

    name = "tmpfs.huge"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        """Name each mount, and shmem_enabled, which may overrule them. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        return (SHMEM.target, *(_setting(path).target for path in _parts(choice)[1]))

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        """Return an item a mount, in the order of the choice. Pure."""
        choice = choices.wanted.get(self.name)
        if choice is None:
            return ()
        word, paths = _parts(choice)
        return tuple(_item(sight, choices, choice, word, path) for path in paths)


def fstab_line(path: str, word: str, options: tuple[str, ...] = ("defaults",)) -> str:
    """Return the line of /etc/fstab that keeps the option over a boot (fstab(5): blanks are written \\040). Pure.

    `options` are the others of the mount: a line without them would drop its size, mode and noexec at the next boot.

    >>> fstab_line("/dev/shm", "advise")
    'tmpfs /dev/shm tmpfs defaults,huge=advise 0 0'
    """
    plain = path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    return f"tmpfs {plain} tmpfs {','.join(options)},huge={word} 0 0"


def _item(sight: Sight, choices: Choices, choice: Choice, word: str, path: str) -> Item:
    setting = _setting(path)
    wanted = AT_LEAST_AS_GOOD.get(word, (word,))
    rule = Rule.ONE_OF if len(wanted) > 1 else Rule.EQUAL
    if not path.startswith("/"):
        remedy = "write WORD@/PATH,/PATH, such as advise@/dev/shm"
        return skip(setting, sight, choice, wanted, f"{path!r} is no absolute path", remedy, rule=rule)
    missing = _missing(sight, setting, path, word)
    if missing is not None:
        return skip(setting, sight, choice, wanted, *missing, rule=rule)
    override = _override(sight, choices)
    if override == "deny" and word != "never":
        remedy = "set tune.thp.shmem to advise in the same plan"
        reason = f"shmem_enabled=deny overrides every mount: huge={word} would change nothing"
        return skip(setting, sight, choice, wanted, reason, remedy, "HC-SHM-4K", rule=rule)
    notes = ("shmem_enabled=force overrides the mount as long as it stands",) if override == "force" else ()
    proof = "tmpfs-huge" if word in _GIVES or override == "force" else ""
    keep = _keep(sight, path, word)
    return judge(setting, sight, choice, wanted, rule=rule, proof=proof, notes=notes, on_change=(_POOLS, keep))


def _missing(sight: Sight, setting: Setting, path: str, word: str) -> tuple[str, str, str] | None:
    """Return reason, remedy and code where there is no mount to change, or no huge pages in the kernel."""
    thp = sight.machine.memory.thp
    if thp.enabled.reason == NO_FILE and not in_container(sight):
        reason = f"this kernel has no huge pages ({thp.enabled.source} is not there), and refuses huge="
        return (
            reason,
            f"use a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or {leave_alone('tmpfs.huge')}",
            "HC-UNSUPPORTED",
        )
    fact = sight.value(setting.target)
    if fact.is_known:
        return None
    reason = f"{path} cannot be changed: {fact.reason} ({fact.source})"
    if in_container(sight):
        remedy = f"mount a tmpfs with huge={word} on the host and hand it to the container as {path}"
    else:
        remedy = f"add to /etc/fstab: {fstab_line(path, word)}; then: mount {path}"
    return reason, remedy, "HC-UNSUPPORTED"


def _override(sight: Sight, choices: Choices) -> str | None:
    """Return deny or force where shmem_enabled will still say so after this plan."""
    word = sight.value(SHMEM.target).value
    for item in ThpShmem().items(sight, choices):
        if choices.keeps(item.knob, None) and item.new is not None:
            word = item.new
    return str(word) if word in ("deny", "force") else None


def _keep(sight: Sight, path: str, word: str) -> str:
    if in_container(sight):
        return f"lasts as long as this container; to keep it, mount a tmpfs with huge={word} on the host and hand it in as {path}"
    for owner in sight.owners.get(path, ()):
        if owner.name == "fstab":
            return f"lasts until the next boot; to keep it, write huge={word} into the options at {owner.where}"
    return "lasts until the next boot; hicachectl tune unit PLAN prints the line of /etc/fstab that keeps it with the mount's other options"


def _parts(choice: Choice) -> tuple[str, tuple[str, ...]]:
    word, at, paths = choice.value.partition("@")
    return word, tuple(dict.fromkeys(path.rstrip("/") or "/" for path in paths.split(","))) if at else (DEV_SHM,)


def _setting(path: str) -> Setting:
    return Setting(
        "tmpfs.huge",
        f"huge pages for files in {path}",
        _WHY,
        Target(Method.MOUNT, path),
        "tmpfs with huge pages",
        HUGE_WORDS,
        subject=path,
        privilege="root (CAP_SYS_ADMIN)",
        argues_for=tuple(_GIVES),
    )

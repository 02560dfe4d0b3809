"""What makes a plan come back after a boot, as files an operator puts in place: systemd units, tmpfiles.d, a mount. Pure.

    hicachectl-tune.service   once a boot, after systemd-sysctl and before the engine: apply the saved plan, exit non-zero when it does not hold
    hicachectl-tune.timer     verifies later: a reset, a driver reload or another tool may take a setting away
    tmpfiles.d                words of huge pages, written by systemd-tmpfiles where nobody wants our unit
    fstab                     huge= of a tmpfs, set by systemd-remount-fs early in the boot

Sources: docs/facts.md#after-boot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicachectl.errors import UsageError
from hicachectl.tuning.host.mounts import Mount
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.tmpfs import fstab_line
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.target import Method, Rule

__all__ = ["BootFile", "boot_files", "unit_word"]

_THP = "/sys/kernel/mm/transparent_hugepage/"
_ENGINE = "multi-user.target"
_UNIT_NAME = re.compile(
    r"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]*)?\.(service|socket|target|mount|automount|timer|path|slice|scope)"
)
"""systemd.unit(5): what a unit may be called."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:=+,@-]+")
_DISPLAYED = frozenset(("seclabel",))
"""Words the kernel shows in the mount table and takes from nobody (security/selinux/hooks.c)."""


@dataclass(frozen=True, slots=True)
class BootFile:
    """One file: where it belongs, its text, what it is for in a sentence. `instead` marks an alternative to the unit, for its own settings alone."""

    path: str
    text: str
    why: str
    instead: bool = False


def boot_files(
    plan: Plan,
    *,
    plan_file: str,
    program: Sequence[str],
    engines: Sequence[str] = (),
    require: bool = False,
    mounts: Mapping[str, Mount] | None = None,
) -> tuple[BootFile, ...]:
    """Return the files that keep a plan over boots. Pure.

    `plan_file` is an absolute path, `program` the words that start this one; `engines` are the units that the plan is
    applied before, multi-user.target without any. `require` keeps them down when the apply fails (RequiredBy=): they would
    serve from a host that is not as planned, and after an update of the kernel they stay down until a new plan is saved.
    `mounts` are the host's by path: a line of fstab repeats their options. Raises UsageError for what cannot be the name of
    a unit, and for a path that a unit file cannot hold.
    """
    for engine in engines:
        if not _UNIT_NAME.fullmatch(engine) or len(engine) > 255:
            raise UsageError(
                f"--engine {engine!r} cannot be the name of a unit",
                where="--engine",
                why="it is a name and its kind, such as .service (systemd.unit(5))",
                hint=f"--engine {engine}.service"
                if _UNIT_NAME.fullmatch(f"{engine}.service")
                else "--engine ENGINE.service",
            )
    kept = [item for item in plan.items if item.kind in (ItemKind.CHANGE, ItemKind.SAME) and item.wanted]
    files = [
        BootFile(
            "/etc/systemd/system/hicachectl-tune.service",
            _service(plan, plan_file, program, engines, require),
            "applies the saved plan at every boot and reads it back, before the engine",
        ),
        BootFile(
            "/etc/systemd/system/hicachectl-tune-verify.service",
            _verify_service(plan_file, program),
            "verifies the plan; fails when a setting was taken away since",
        ),
        BootFile(
            "/etc/systemd/system/hicachectl-tune-verify.timer",
            _timer(),
            "runs the verification every 15 minutes: a device reset or a driver reload takes registers away",
        ),
    ]
    words = [item for item in kept if item.target is not None and item.target.path.startswith(_THP)]
    if words:
        files.append(
            BootFile(
                "/etc/tmpfiles.d/hicachectl.conf",
                _tmpfiles(plan, words),
                "huge page settings without our unit; tuned writes later and wins",
                instead=True,
            )
        )
    for item in kept:
        if item.target is not None and item.target.method is Method.MOUNT:
            files.append(_fstab(item, item.target.path, (mounts or {}).get(item.target.path)))
    return tuple(files)


def unit_word(text: str) -> str:
    """Return a word of ExecStart= that systemd reads as `text`: no specifier, variable or escape is taken out of it. Pure.

    Source: systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers". Raises UsageError for control characters.

    >>> unit_word("/etc/plan 50%.json")
    '"/etc/plan 50%%.json"'
    """
    _refuse_odd(text)
    if _PLAIN.fullmatch(text):
        return text
    for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(plain, written)
    return f'"{text}"'


# -- the units ----------------------------------------------------------------------------------------------------------


def _service(plan: Plan, plan_file: str, program: Sequence[str], engines: Sequence[str], require: bool) -> str:
    before = " ".join(engines) or _ENGINE
    apply = _command(*program, "tune", "apply", plan_file, "--yes", "--after-boot")
    about = " ".join(f"plan {plan.id}, profile {plan.choices.profile} rev {plan.choices.revision}".split())
    return f"""\
# {about}
[Unit]
Description=Host settings of the KV cache (hicachectl plan {" ".join(plan.id.split()).replace("%", "%%")})
After=systemd-sysctl.service systemd-tmpfiles-setup.service systemd-modules-load.service local-fs.target tuned.service
Before={before}
AssertPathExists={_path(plan_file)}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={apply}

[Install]
{"RequiredBy" if require and engines else "WantedBy"}={before}
"""


def _verify_service(plan_file: str, program: Sequence[str]) -> str:
    return f"""\
[Unit]
Description=Check the host settings of the KV cache
After=hicachectl-tune.service

[Service]
Type=oneshot
ExecStart={_command(*program, "tune", "verify", plan_file)}
"""


def _timer() -> str:
    return """\
[Unit]
Description=Check the host settings of the KV cache every 15 minutes

[Timer]
OnBootSec=5min
OnUnitActiveSec=15min

[Install]
WantedBy=timers.target
"""


def _command(*words: str) -> str:
    return " ".join(map(unit_word, words))


def _path(text: str) -> str:
    """A path that stands alone behind =: blanks belong to it, and a backslash at its end would take the next line in."""
    _refuse_odd(text)
    if "\\" in text or text != text.strip():
        raise _cannot_hold(text)
    return text.replace("%", "%%")


def _refuse_odd(text: str) -> None:
    if not text.isprintable():
        raise _cannot_hold(text)


def _cannot_hold(text: str) -> UsageError:
    return UsageError(
        f"{text!r} cannot stand in a unit file",
        why="it has control characters, a backslash or blanks at its end",
        hint="save the plan under a plain name, such as /etc/hicachectl/plan.json",
    )


# -- without the units ----------------------------------------------------------------------------------------------------


def _tmpfiles(plan: Plan, items: Sequence[Item]) -> str:
    lines = [f"# plan {' '.join(plan.id.split())}: type path mode user group age argument"]
    lines += [
        f"w {item.target.path} - - - - {word}"
        for item in items
        if item.target is not None and _PLAIN.fullmatch(word := _word(item)) and _PLAIN.fullmatch(item.target.path)
    ]
    return "\n".join(lines) + "\n"


def _word(item: Item) -> str:
    """What to write at boot: of a one-of rule the value that is there when it will do, else the wanted one."""
    keep = item.kind is ItemKind.SAME and item.rule is Rule.ONE_OF and item.old is not None
    return str(item.old if keep else item.wanted[0])


def _fstab(item: Item, path: str, mount: Mount | None) -> BootFile:
    """Return the line of a mount; where fstab has one, which must keep its other options, what to add there."""
    word = _word(item)
    line = fstab_line(path, word, _options(mount))
    there = next((owner.where.partition(" ")[0] for owner in item.owners if owner.name == "fstab"), None)
    if there is not None:
        return BootFile(
            "/etc/fstab", f"# {line}\n", f"{there} is the line of {path}: add huge={word} to its options, this is not a second one", instead=True
        )  # fmt: skip
    known = (
        "its options are those of the mount now"
        if mount is not None
        else "the mount is not here: add the options it has"
    )
    return BootFile(
        "/etc/fstab", f"{line}\n", f"one line for {path}, or huge={word} in the line there is; {known}", instead=True
    )


def _options(mount: Mount | None) -> tuple[str, ...]:
    """The options of a mount as mount(8) takes them, but for huge=."""
    if mount is None:
        return ("defaults",)
    said = dict.fromkeys((*mount.flags, *mount.options))
    return tuple(word for word in said if word not in _DISPLAYED and not word.startswith("huge="))

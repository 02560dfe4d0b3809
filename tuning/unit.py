"""What makes a plan come back after a boot, as files an operator puts in place: systemd units, tmpfiles.d, a mount. Pure.

    hicachectl-tune.service   once a boot, after systemd-sysctl and before the engine: apply the saved plan, exit non-zero when it does not hold
    hicachectl-tune.timer     verifies later: a reset, a driver reload or another tool may take a setting away
    tmpfiles.d                words of huge pages, written by systemd-tmpfiles where nobody wants our unit
    fstab                     huge= of a tmpfs, set by systemd-remount-fs early in the boot

Sources: docs/facts.md#after-boot.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.plan import Plan
from hicachectl.tuning.target import Method, Rule

__all__ = ["BootFile", "boot_files"]

_THP = "/sys/kernel/mm/transparent_hugepage/"
_ENGINE = "multi-user.target"


@dataclass(frozen=True, slots=True)
class BootFile:
    """One file: where it belongs, its text, what it is for in a sentence. `instead` marks an alternative to the unit, for its own settings alone."""

    path: str
    text: str
    why: str
    instead: bool = False


def boot_files(plan: Plan, *, plan_file: str, program: str, engines: Sequence[str] = ()) -> tuple[BootFile, ...]:
    """Return the files that keep a plan over boots. Pure.

    `plan_file` and `program` are absolute paths; `engines` are the units that must not start before the plan holds, and
    without them it holds before multi-user.target is reached. A unit whose apply fails keeps those engines from starting
    (RequiredBy=): they would serve from a host that is not as planned.
    """
    kept = [item for item in plan.items if item.kind in (ItemKind.CHANGE, ItemKind.SAME) and item.wanted]
    files = [
        BootFile(
            "/etc/systemd/system/hicachectl-tune.service",
            _service(plan, plan_file, program, engines),
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
            path = item.target.path
            why = f"one line to add, or huge= to add to the line of {path} where there is one"
            files.append(BootFile("/etc/fstab", _fstab(path, _word(item)), why, instead=True))
    return tuple(files)


def _service(plan: Plan, plan_file: str, program: str, engines: Sequence[str]) -> str:
    before = " ".join(engines) or _ENGINE
    apply = shlex.join([program, "tune", "apply", plan_file, "--yes", "--after-boot"])
    return f"""\
# plan {plan.id}, profile {plan.choices.profile} rev {plan.choices.revision}
[Unit]
Description=Host settings of the KV cache (hicachectl plan {plan.id})
After=systemd-sysctl.service systemd-tmpfiles-setup.service systemd-modules-load.service local-fs.target tuned.service
Before={before}
ConditionPathExists={plan_file}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={apply}

[Install]
{f"RequiredBy={before}" if engines else f"WantedBy={_ENGINE}"}
"""


def _verify_service(plan_file: str, program: str) -> str:
    return f"""\
[Unit]
Description=Check the host settings of the KV cache
After=hicachectl-tune.service

[Service]
Type=oneshot
ExecStart={shlex.join([program, "tune", "verify", plan_file])}
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


def _tmpfiles(plan: Plan, items: Sequence[Item]) -> str:
    lines = [f"# plan {plan.id}: type path mode user group age argument"]
    lines += [f"w {item.target.path} - - - - {_word(item)}" for item in items if item.target is not None]
    return "\n".join(lines) + "\n"


def _word(item: Item) -> str:
    """What to write at boot: of a one-of rule the value that is there when it will do, else the wanted one."""
    keep = item.kind is ItemKind.SAME and item.rule is Rule.ONE_OF and item.old is not None
    return str(item.old if keep else item.wanted[0])


def _fstab(path: str, word: str) -> str:
    return f"tmpfs {path} tmpfs rw,nosuid,nodev,huge={word} 0 0\n"

"""The files that keep a plan over boots, each under a line that says where it belongs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hicachectl.render.screen import Screen
from hicachectl.tuning.unit import BootFile

__all__ = ["draw_unit"]


def draw_unit(
    screen: Screen,
    files: Sequence[BootFile],
    warnings: Sequence[str] = (),
    written: Sequence[Path] | None = None,
    *,
    engines: Sequence[str] = (),
    require: bool = False,
) -> None:
    """Draw the files as text to copy, or the names of those that were `written`, and what to do with them. Lines are never broken."""
    for warning in warnings:
        screen.print(f"# WARNING: {warning}", "error")
    units = [file for file in files if not file.instead]
    others = [file for file in files if file.instead]
    for file in units if written is None else ():
        _file(screen, file)
    for path in written or ():
        screen.print(f"# wrote {path}")
    for line in _then(units, written, engines, require):
        screen.print(f"# {line}" if line else "#")
    if others and written is None:
        screen.print()
        screen.print("# Without the unit, for these settings alone (registers have no such file):")
        for file in others:
            _file(screen, file)


def _then(
    units: Sequence[BootFile], written: Sequence[Path] | None, engines: Sequence[str], require: bool
) -> list[str]:
    names = [file.path.rpartition("/")[2] for file in units]
    if written is None:
        split = ["each part into the file its first line names; or let them be written one by one: --output-dir DIR"]
    else:
        here = [str(path) for path in written if path.name in names]
        split = [f"  sudo install -m 0644 -t /etc/systemd/system {shlex.join(here)}"]
    waits = " ".join(engines)
    held = f"{waits} stay down" if len(engines) > 1 else f"{waits} stays down"
    if not engines:
        then = "nothing waits for it"
    else:
        then = (
            f"{held} until then"
            if require
            else f"{waits} start{'' if len(engines) > 1 else 's'} all the same; --require holds back"
        )
    return [
        "then:",
        *split,
        "  sudo systemctl daemon-reload",
        "  sudo systemctl enable hicachectl-tune.service",
        "  sudo systemctl enable --now hicachectl-tune-verify.timer",
        "",
        "After an update of the kernel, another PCI card or an edited recipe the plan no longer fits: the unit fails (exit 8),",
        f"nothing is applied until a new plan is saved to the same file, and {then}.",
        "A rollback lasts until the next boot, when the unit applies the plan again. To end that:",
        "  sudo systemctl disable --now hicachectl-tune-verify.timer hicachectl-tune.service",
    ]


def _file(screen: Screen, file: BootFile) -> None:
    screen.print(f"# {file.path}: {file.why}", "bold")
    screen.print(file.text.rstrip("\n"))
    screen.print()

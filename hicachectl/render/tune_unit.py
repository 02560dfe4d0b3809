"""The files that keep a plan over boots, each under a line that says where it belongs."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.render.screen import Screen
from hicachectl.tuning.unit import BootFile

__all__ = ["draw_unit"]


def draw_unit(screen: Screen, files: Sequence[BootFile]) -> None:
    """Draw the files as text to copy. Lines are never broken."""
    units = [file for file in files if not file.instead]
    for file in units:
        _file(screen, file)
    screen.print("# then:")
    screen.print("#   systemctl daemon-reload")
    screen.print("#   systemctl enable hicachectl-tune.service")
    screen.print("#   systemctl enable --now hicachectl-tune-verify.timer")
    others = [file for file in files if file.instead]
    if others:
        screen.print()
        screen.print("# Without the unit, for these settings alone (registers have no such file):")
    for file in others:
        _file(screen, file)


def _file(screen: Screen, file: BootFile) -> None:
    screen.print(f"# {file.path}: {file.why}", "bold")
    screen.print(file.text.rstrip("\n"))
    screen.print()

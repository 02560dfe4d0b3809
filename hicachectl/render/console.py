"""A rich console that obeys our own decisions about terminal, colour, width and encoding; for live boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from hicachectl.render.screen import Screen

__all__ = ["rich_console"]


def rich_console(screen: Screen, *, interactive: bool) -> Console:
    """Make a rich console on the screen's stream. Imports rich.

    `interactive` is `Output.interactive`: rich's own guess follows FORCE_COLOR, which is no terminal.
    """
    from rich.console import Console

    return Console(
        file=screen.stream,
        width=screen.width,
        force_terminal=interactive,
        force_interactive=interactive,
        color_system="standard" if screen.color else None,
        no_color=not screen.color,
        safe_box=screen.ascii or not screen.is_unicode,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )

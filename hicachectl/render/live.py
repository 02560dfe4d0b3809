"""What a sizing on live traffic says beside its curve: what was followed, what that can tell, and how new requests did."""

from __future__ import annotations

from typing import Any

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import format_count, format_seconds

__all__ = ["draw_live", "draw_live_steps", "live_steps_table", "live_words", "source_words"]


def draw_live(screen: Screen, live: dict[str, Any]) -> None:
    """Draw source and window."""
    screen.paragraph("LIVE    ", source_words(live))
    screen.paragraph("WINDOW  ", _window_words(live["window"]))
    for note in live["notes"]:
        screen.paragraph("  note: ", note)


def draw_live_steps(screen: Screen, live: dict[str, Any]) -> None:
    """Draw how new requests did in each step, and what became of the curve."""
    if not live["steps"]:
        return
    screen.table(live_steps_table(live), indent=" ")
    if live["too_long_requests"]:
        screen.paragraph(" note: ", f"{live['too_long_requests']} new requests were longer than L1 and left out")
    drift = live["drift"]
    if drift is not None:
        screen.paragraph("DRIFT   ", _drift_words(drift), "warn")


def source_words(live: dict[str, Any]) -> str:
    """Say what was followed and what it can tell. Pure."""
    seen = ", ".join(
        f"{format_count(n)} {name.replace('_', ' ')}" for name, n in live["seen"].items() if n and name != "connected"
    )
    unseen = (
        ""
        if live["sees_requests_that_hit_entirely"]
        else "; requests that hit entirely are not seen, reuse is a lower bound"
    )
    return f"{live['source']}, {live['reads']} ({live['transport']}), told from {live['told_from']}{unseen}. Seen: {seen or 'nothing'}"


def live_words(live: dict[str, Any]) -> str:
    """Say all of it in one paragraph, for a page. Pure."""
    drift = "" if live["drift"] is None else f" Drift {_drift_words(live['drift'])}."
    return f"{source_words(live)}. Window: {_window_words(live['window'])}.{drift}"


def _window_words(window: dict[str, Any]) -> str:
    return (
        f"{format_count(window['requests'])} requests in {format_seconds(window['seconds'])}, ended by: {window['ended']}; "
        f"saved as {window['file']}"
    )


def _drift_words(drift: dict[str, Any]) -> str:
    return (
        f"at {format_count(drift['at_pages'])} pages: {drift['reason']}. Curve and steps are of the newest "
        f"{format_count(drift['requests'])} requests, {format_count(drift['new_requests'])} of them new; before, the choice was "
        f"{format_count(drift['chosen_before_pages'])} pages"
    )


def live_steps_table(live: dict[str, Any]) -> Table:
    """A row a step: what the window said, what the exact curve of the step's own requests says, what was hit. Pure."""
    rows = [
        [
            format_count(step["pages"]), step["replayed"], format_count(step["requests"]), _percent(step["predicted_hit_rate"]),
            None if step["slack"] is None else f"{100 * step['slack']:.2f}", _percent(step["exact_hit_rate"]),
            _percent(step["measured_hit_rate"]), step["verdict"],
        ]
        for step in live["steps"]
    ]  # fmt: skip
    columns = (
        Column("PAGES", right=True), Column("REPLAYED", keep=1), Column("REQUESTS", right=True, keep=2), Column("WINDOW SAID", right=True),
        Column("+-", right=True, keep=3), Column("OWN CURVE", right=True), Column("MEASURED", right=True), Column("VERDICT"),
    )  # fmt: skip
    return Table(columns, rows)


def _percent(rate: float | None) -> str | None:
    return None if rate is None else f"{100 * rate:.2f} %"

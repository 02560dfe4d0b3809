"""What the screens of `hicachectl bench` share: the head, the method, and numbers beside the range expected."""

from __future__ import annotations

from typing import Any

from hicachectl.bench_data import measure, missing_costs
from hicachectl.render.screen import Screen
from hicachectl.units import GIB, format_bytes

__all__ = [
    "by_name",
    "draw_head",
    "draw_no_answer",
    "draw_no_costs",
    "draw_sources",
    "marked",
    "number",
    "rate_range",
    "rate_text",
    "sizes",
    "span",
    "why_no_answer",
]

Data = dict[str, Any]
_MOST_NAMES = 3


def draw_head(screen: Screen, title: str, data: Data) -> None:
    """Say what was measured, on what, and how."""
    setting = data["setting"]
    screen.print(title, "bold")
    device = setting["device"] if setting["accelerator"] is None else f"{setting['device']} {setting['accelerator']}"
    driver = "" if setting["driver"] is None else f"; {setting['driver']}"
    screen.paragraph("  device   ", f"{device} ({setting['device_reason']}){driver}")
    screen.paragraph(
        "  machine  ",
        f"{setting['processor']}, {setting['cores']} cores, {setting['memory']}; {setting['kernel']}; torch {setting['torch']}",
    )
    screen.paragraph("  method   ", f"{setting['method']}; median of {setting['rounds']} rounds")
    for reason, subjects in _fewer(data).items():
        more = f" and {len(subjects) - _MOST_NAMES} more" if len(subjects) > _MOST_NAMES else ""
        screen.paragraph("  fewer    ", f"{reason}: {'; '.join(subjects[:_MOST_NAMES])}{more}")


def _fewer(data: Data) -> dict[str, list[str]]:
    """What has fewer samples than rounds were asked for, by the reason. Pure."""
    found: dict[str, list[str]] = {}
    for one in data["measures"]:
        if one["samples"] and one["reason"] is not None and " samples: " in one["reason"]:
            names = found.setdefault(one["reason"], [])
            names += [] if one["subject"] in names else [one["subject"]]
    return found


def marked(data: Data, subject: str, text: str) -> str:
    """Return the first cell of a row, with a mark where its number is no answer. Pure."""
    return f"{text} ?" if subject in data["no_answer"] else text


def why_no_answer(one: Data) -> str | None:
    """Say why the median of a measure is no answer; None where it is one, or nothing was measured. Pure."""
    return measure(one["subject"], one["quantity"], one["samples"], reason=one["reason"]).why_no_answer


def draw_no_answer(screen: Screen, data: Data) -> None:
    """Say what the mark of a row means, when there is one."""
    if data["no_answer"]:
        screen.paragraph("  ", "? no answer (HC-NO-ANSWER): nothing may rest on this row")


def draw_no_costs(screen: Screen, data: Data) -> None:
    """Say why a cost that this benchmark measures is missing, once a reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in missing_costs(data).items():
        by_reason.setdefault(why, []).append(f"costs.{name}")
    for why, names in by_reason.items():
        screen.paragraph("  ", f"no {', '.join(names)}: {why}")


def draw_sources(screen: Screen, data: Data, of: str) -> None:
    """Say where the expected ranges are from, when there are any; `of`: the rates they belong to."""
    sources = sorted({one["expected"]["source"] for one in data["measures"] if one["expected"] is not None})
    if sources:
        screen.paragraph(
            "  ",
            f"(from..to): expected of {of}, as on one H200 host ({', '.join(sources)}); ratios carry over to other machines, absolutes do not",
        )


def by_name(data: Data) -> dict[tuple[str, str], Data]:
    """Return the measures by subject and quantity. Pure."""
    return {(one["subject"], one["quantity"]): one for one in data["measures"]}


def number(value: float) -> str:
    """Write a number with three digits. Pure.

    >>> number(0.012345), number(4.5678), number(123.4)
    ('0.0123', '4.57', '123')
    """
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = max(0, 2 - _exponent(abs(value)))
    return f"{value:.{min(digits, 9)}f}"


def span(expected: Data | None, scale: float = 1.0) -> str:
    """Write an expected range. Pure.

    >>> span({"low": 0.05, "high": 0.39, "source": "x"}), span(None), span({"low": 0.99, "high": None, "source": "x"}, 100)
    ('(0.0500 .. 0.390)', '', '(99.0 ..)')
    """
    if expected is None:
        return ""
    low = "" if expected["low"] is None else f"{number(expected['low'] * scale)} "
    high = "" if expected["high"] is None else f" {number(expected['high'] * scale)}"
    return f"({low}..{high})"


def sizes(cost: Data) -> str:
    """Say which transfers a cost was fitted to. Pure.

    >>> sizes({"from_bytes": 4096, "to_bytes": 1 << 20}), sizes({"from_bytes": None, "to_bytes": None})
    (' of 4.0 KiB to 1.0 MiB', '')
    """
    if cost["from_bytes"] is None:
        return ""
    return f" of {format_bytes(cost['from_bytes'])} to {format_bytes(cost['to_bytes'])}"


def rate_text(measure: Data | None, n_bytes: int) -> str | None:
    """Write the rate of a time in GiB/s; None where it was not measured. Pure."""
    if measure is None or not measure["p50"]:
        return None
    return number(n_bytes / GIB / measure["p50"])


def rate_range(measure: Data | None, n_bytes: int) -> str | None:
    """Write the expected range of a time as a rate in GiB/s. Pure."""
    if measure is None or measure["expected"] is None or measure["p50"] is None:
        return None
    gib, expected = n_bytes / GIB, measure["expected"]
    return span({"low": gib / expected["high"], "high": gib / expected["low"], "source": ""})


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])

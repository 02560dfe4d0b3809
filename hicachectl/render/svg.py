"""Small SVG plots for a page without scripts: frames, axes, bars, areas, lines, marks. Pure.

Colours come from the page's style sheet by class, so that light and dark both work; fills also differ by texture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["HEIGHT", "WIDTH", "Plot", "empty_plot", "nice_ticks"]

WIDTH, HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 40
_CHAR = 6.4  # width of a 12-pixel character, for placing labels


def nice_ticks(top: float, n: int = 4) -> list[float]:
    """Choose about `n` round steps from 0 that reach `top` (> 0). Pure.

    >>> nice_ticks(0.37), nice_ticks(5)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 2.0, 4.0, 6.0])
    """
    raw = top / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(top / step - 1e-9) + 1)]


@dataclass(slots=True)
class Plot:
    """One plot; `x` and `y` map data to fractions [0, 1] of the frame. Add parts, then `svg()`."""

    label: str
    x: Callable[[float], float]
    y: Callable[[float], float]
    under: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def px(self, value: float) -> float:
        """Horizontal place of a value in pixels, kept inside the frame. Pure."""
        return round(_LEFT + min(1.0, max(0.0, self.x(value))) * (WIDTH - _LEFT - _RIGHT), 1)

    def py(self, value: float) -> float:
        """Vertical place of a value in pixels, kept inside the frame. Pure."""
        return round(HEIGHT - _BOTTOM - min(1.0, max(0.0, self.y(value))) * (HEIGHT - _TOP - _BOTTOM), 1)

    def axes(self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], x_title: str) -> None:
        """Draw grid lines and labels; x labels that would touch the one before are left out."""
        for value, text in ys:
            at = self.py(value)
            self.under.append(f'<line class="grid" x1="{_LEFT}" y1="{at}" x2="{WIDTH - _RIGHT}" y2="{at}"/>')
            self.under.append(f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(text)}</text>')
        free_from = -1.0
        for value, text in xs:
            at, half = self.px(value), len(text) * _CHAR / 2
            self.over.append(
                f'<line class="axis" x1="{at}" y1="{HEIGHT - _BOTTOM}" x2="{at}" y2="{HEIGHT - _BOTTOM + 4}"/>'
            )
            middle = min(max(at, half), WIDTH - half - 1)
            if middle - half < free_from:
                continue
            free_from = middle + half + 6
            self.over.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 17}" text-anchor="middle">{escape(text)}</text>'
            )
        base = HEIGHT - _BOTTOM
        self.over.append(f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>')
        self.over.append(
            f'<text class="title" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>'
        )

    def bar(self, x0: float, x1: float, top: float, css: str, title: str) -> None:
        """Draw a bar from 0 to `top` over [x0, x1) with a gap of a pixel; `title` shows on hover."""
        left, right, at = self.px(x0), self.px(x1), self.py(top)
        height = max(0.0, HEIGHT - _BOTTOM - at)
        if top > 0:
            height = max(height, 1.0)  # a count of one among thousands stays visible
        self.parts.append(
            f'<rect class="{css}" x="{left + 0.5:.1f}" y="{HEIGHT - _BOTTOM - height:.1f}" width="{max(0.5, right - left - 1):.1f}" '
            f'height="{height:.1f}"><title>{escape(title)}</title></rect>'
        )

    def steps(self, edges: Sequence[float], low: Sequence[float], high: Sequence[float], css: str, title: str) -> None:
        """Fill between two step curves over the bins `edges`."""
        top = [
            f"{self.px(edge):.1f},{self.py(value):.1f}"
            for i, value in enumerate(high)
            for edge in (edges[i], edges[i + 1])
        ]
        bottom = [
            f"{self.px(edge):.1f},{self.py(low[i]):.1f}"
            for i in reversed(range(len(low)))
            for edge in (edges[i + 1], edges[i])
        ]
        self.parts.append(
            f'<polygon class="{css}" points="{" ".join(top + bottom)}"><title>{escape(title)}</title></polygon>'
        )

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Draw a line through points."""
        text = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{css}" points="{text}"/>')

    def mark(self, value: float, text: str, row: int) -> None:
        """Draw a vertical mark with its text in `row` from the top, on the side where there is room."""
        at, y = self.px(value), _TOP + 12 + 16 * row
        room = WIDTH - _RIGHT - at >= len(text) * _CHAR + 8
        self.over.append(f'<line class="mark" x1="{at}" y1="{_TOP + 16 * row}" x2="{at}" y2="{HEIGHT - _BOTTOM}"/>')
        anchor, x = ("start", at + 5) if room else ("end", at - 5)
        self.texts.append(f'<text class="halo" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self) -> str:
        """Return the finished plot."""
        return _svg(self.label, "".join(self.under + self.parts + self.over + self.texts))


def empty_plot(label: str, text: str) -> str:
    """Return a frame that says why there is nothing to plot. Pure."""
    frame = f'<rect class="frame" x="0.5" y="0.5" width="{WIDTH - 1}" height="99"/>'
    return _svg(label, f'{frame}<text x="{WIDTH / 2}" y="54" text-anchor="middle">{escape(text)}</text>', height=100)


def _svg(label: str, inside: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">{inside}</svg>'

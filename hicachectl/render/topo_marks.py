"""Which findings a row of `topo` is marked with."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.envelope import Diagnostic

__all__ = ["Marks"]

_MOST_MARKS = 5


class Marks:
    """The numbers of findings by what they are about, as the findings below are numbered."""

    def __init__(self, findings: Sequence[Diagnostic], about: Sequence[Sequence[str]]) -> None:
        ordered = sorted(zip(findings, about, strict=False), key=lambda pair: pair[0].severity.rank)
        self._about: dict[str, list[int]] = {}
        for number, (_, names) in enumerate(ordered, 1):
            for name in names:
                self._about.setdefault(name, []).append(number)

    def about(self, *names: str) -> str | None:
        """Return the marks of the rows' names, such as `[1][4]`, some of them with a count of the rest; None without any."""
        numbers = sorted({number for name in names for number in self._about.get(name, ())})
        shown = numbers if len(numbers) <= _MOST_MARKS else numbers[: _MOST_MARKS - 1]
        more = f"+{len(numbers) - len(shown)}" if len(numbers) > len(shown) else ""
        return "".join(f"[{number}]" for number in shown) + more or None

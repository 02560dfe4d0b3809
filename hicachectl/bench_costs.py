"""Lines through measured transfers, as `data.costs` of a benchmark holds them, and the transfers as measures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hicachectl.bench_data import NOISY_SPREAD, LineCost, Measure, measure
from hicachectl.units import format_seconds

if TYPE_CHECKING:
    from hicachectl.runtime.probes.fits import Fit, Timing

__all__ = ["line_cost", "transfer_measures", "transfers_of", "why_no_line"]


def line_cost(transfers: Sequence[tuple[int, float]]) -> tuple[LineCost | None, str | None]:
    """Fit seconds by bytes of transfers (bytes, seconds) through the median of each size; None with the reason where there is no line. Pure.

    Errors are relative to the medians: relative to single times, slow ones hardly count, and the line goes to the fastest. No line
    for transfers of fewer than two sizes, nor where it misses the median of a size by more than `NOISY_SPREAD` of that median.
    """
    from hicachectl.runtime.probes.fits import LINE, Timing, fit

    sizes = sorted({n_bytes for n_bytes, _ in transfers})
    if len(sizes) < 2:
        return None, "no transfer was measured" if not sizes else "transfers of one size only: no line through them"
    medians = [Timing(n, statistics.median(seconds for m, seconds in transfers if m == n)) for n in sizes]
    found = fit(medians, LINE)  # by bytes as well as by tokens
    worst = max(medians, key=lambda one: _off(found, one))
    if _off(found, worst) > NOISY_SPREAD:
        return None, (
            f"the line through the medians of {len(sizes)} sizes says {format_seconds(found.seconds(worst.n_tokens))} for {worst.n_tokens} B, "
            f"the median of which is {format_seconds(worst.seconds)}: {100 * _off(found, worst):.0f} % off, "
            f"{100 * NOISY_SPREAD:.0f} % is the most that a line may miss: measure sizes nearer to each other"
        )
    return LineCost(found.a_s, found.b_s, len(transfers), sizes[0], sizes[-1]), None


def transfer_measures(path: str, transfers: Sequence[tuple[int, float]]) -> list[Measure]:
    """Return transfers (bytes, seconds) on a path ("host read", ...) as measures, one a size. Pure."""
    sizes = sorted({n_bytes for n_bytes, _ in transfers})
    return [measure(f"{path}, {n} B", "transfer_s", [s for m, s in transfers if m == n]) for n in sizes]


def transfers_of(cost: str, measures: Sequence[Measure]) -> list[Measure]:
    """Return the measures that a line of `data.costs` is fitted to, by the line's name (`host_read`). Pure.

    A restore from the host tier (bench model) is a host read.
    """
    begins = {"transfer_s": f"{cost.replace('_', ' ')}, ", "restore_s": "host tier, " if cost == "host_read" else None}
    return [one for one in measures if (begin := begins.get(one.quantity)) and one.subject.startswith(begin)]


def why_no_line(measures: Sequence[Measure]) -> str | None:
    """Say why no line may go through these, by the first that is no answer; None where one may. Pure."""
    return next((f"{one.subject}, {one.quantity}: {one.why_no_answer}" for one in measures if one.why_no_answer), None)


def _off(line: Fit, median: Timing) -> float:
    """How far a line misses the median of a size, as a share of that median."""
    return abs(line.seconds(median.n_tokens) / median.seconds - 1.0)

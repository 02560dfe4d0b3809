"""Lines through measured transfers, as `data.costs` of a benchmark holds them, and the transfers as measures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.bench_data import LineCost, Measure, measure

__all__ = ["line_cost", "transfer_measures", "transfers_of", "why_no_line"]


def line_cost(transfers: Sequence[tuple[int, float]]) -> tuple[LineCost | None, str | None]:
    """Fit seconds by bytes of transfers (bytes, seconds); None with the reason where they are of fewer than two sizes. Pure."""
    from hicachectl.runtime.probes.fits import LINE, Timing, fit

    sizes = {n_bytes for n_bytes, _ in transfers}
    if len(sizes) < 2:
        return None, "no transfer was measured" if not sizes else "transfers of one size only: no line through them"
    found = fit([Timing(n_bytes, seconds) for n_bytes, seconds in transfers], LINE)  # by bytes as well as by tokens
    return LineCost(found.a_s, found.b_s, len(transfers), min(sizes), max(sizes)), None


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

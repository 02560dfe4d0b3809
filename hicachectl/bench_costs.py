"""Lines through measured transfers, as `data.costs` of a benchmark holds them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hicachectl.bench_data import LineCost

__all__ = ["line_cost"]


def line_cost(transfers: Sequence[tuple[int, float]]) -> tuple[LineCost | None, str | None]:
    """Fit seconds by bytes of transfers (bytes, seconds); None with the reason where they are of fewer than two sizes. Pure."""
    from hicachectl.runtime.probes.fits import LINE, Timing, fit

    sizes = {n_bytes for n_bytes, _ in transfers}
    if len(sizes) < 2:
        return None, "no transfer was measured" if not sizes else "transfers of one size only: no line through them"
    found = fit([Timing(n_bytes, seconds) for n_bytes, seconds in transfers], LINE)  # by bytes as well as by tokens
    return LineCost(found.a_s, found.b_s, len(transfers)), None

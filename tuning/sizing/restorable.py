"""Hits past L1 that lie in restores long enough to pay, for every capacity, from the runs of one pass. Pure.

A restore costs `fixed + slope n` seconds, computing the same n tokens `b n + c n^2`: below a crossover the restore is
dearer, and its pages are worth nothing. Distances rise along a request's path, so with C pages it restores the first m of
the pages that L1 misses; they count when m reaches the crossover, all at once, and each further page by itself. That is
one jump and a ramp for each request, which the runs hold already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hicachectl.runtime.cost import RecomputeCost
from hicachectl.runtime.least_squares import nonnegative_least_squares
from hicachectl.runtime.probes.break_even import crossing
from hicachectl.tuning.sizing.extents import Runs
from hicachectl.tuning.sizing.window import Counts

__all__ = ["crossover_tokens", "paying_hits", "restore_line"]

_LEAST_SAMPLES = 10


def paying_hits(runs: Runs, device_pages: int, crossover_pages: int, size: int) -> Counts:
    """Return for C = 0 .. size - 1 the pages hit past `device_pages` in restores of at least `crossover_pages`. Pure.

    With a crossover of one page these are all hits past L1.
    """
    least = max(1, crossover_pages)
    in_device = np.clip(device_pages + 1 - runs.distance, 0, runs.length)
    length, distance = runs.length - in_device, runs.distance + in_device
    before = _restored_before(length, runs.request)
    jumps = (before < least) & (before + length >= least)
    first = distance + np.where(jumps, least - before - 1, 0)  # the first page that counts
    counts = np.where(before + length >= least, distance + length - first, 0)
    some = counts > 0
    top = max(size, int((distance + length).max(initial=0))) + 1
    gained = np.bincount(first[some], minlength=top) - np.bincount((first + counts)[some], minlength=top)
    per_page = np.cumsum(gained)
    per_page += np.bincount(first[jumps], minlength=top) * (least - 1)  # the pages before it come with it
    found: Counts = np.cumsum(per_page)[:size].astype(np.int64)
    return found


def _restored_before(length: Counts, request: Counts) -> Counts:
    """Pages past L1 of the same request in earlier runs."""
    ends = np.cumsum(length)
    starts = ends - length
    if not len(request):
        return starts
    heads = np.flatnonzero(np.concatenate(([True], request[1:] != request[:-1])))
    return np.asarray(starts - np.repeat(starts[heads], np.diff(np.append(heads, len(request)))), np.int64)


def restore_line(tokens: Sequence[int], wait_s: Sequence[float]) -> tuple[float, float] | None:
    """Fit `fixed + slope n` seconds to measured restores of n tokens: least squares of relative errors, both >= 0. Pure.

    None where fewer than ten restores of at least two lengths were measured.

    >>> fixed_s, per_token_s = restore_line([512, 1024] * 5, [0.0611, 0.0622] * 5)
    >>> round(fixed_s, 6), round(per_token_s * 512, 6)
    (0.06, 0.0011)
    """
    seconds = np.asarray(wait_s, np.float64)
    n = np.asarray(tokens, np.float64)[seconds > 0]
    seconds = seconds[seconds > 0]
    if len(n) < _LEAST_SAMPLES or len(np.unique(n)) < 2:
        return None
    columns = np.stack((np.ones_like(n), n), axis=1) / seconds[:, None]
    fixed_s, per_token_s = nonnegative_least_squares(columns, np.ones_like(n))
    return float(fixed_s), float(per_token_s)


def crossover_tokens(recompute: RecomputeCost, fixed_s: float, per_token_s: float) -> int | None:
    """Return the fewest tokens whose restore is cheaper than computing them at the front of a request; None: never. Pure.

    Computing later tokens is dearer, so a restore further back crosses over earlier: this is the cautious end.

    >>> crossover_tokens(RecomputeCost(0.0, 28.4e-6, 0.0), 0.0441, 13.539e-6)  # docs/facts.md#kunlun-break-even: about 3,000
    2968
    """
    at = crossing(fixed_s, per_token_s, recompute.b_s, recompute.c_s)
    return None if at is None else math.floor(at) + 1

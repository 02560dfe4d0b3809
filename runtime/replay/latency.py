"""Latency histogram with edges 1, 2, 5 in every decade. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["EDGES_S", "LatencyHistogram", "latency_histogram"]

EDGES_S = tuple(float(f"{step}e{power}") for power in range(-6, 3) for step in (1, 2, 5))
"""1 us .. 500 s."""


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """`counts[i]` samples lay in [edges_s[i], edges_s[i + 1]); from the first bin that holds any to the last one.

    What is shorter than 1 us or longer than 500 s is in the first or last possible bin. Both are empty without samples.
    """

    edges_s: tuple[float, ...]
    counts: tuple[int, ...]


def latency_histogram(samples_s: npt.NDArray[np.float64]) -> LatencyHistogram:
    """Count samples in seconds. Pure.

    >>> latency_histogram(np.array([0.0015, 0.0019, 0.007]))
    LatencyHistogram(edges_s=(0.001, 0.002, 0.005, 0.01), counts=(2, 0, 1))
    """
    if not len(samples_s):
        return LatencyHistogram((), ())
    bins = np.clip(np.searchsorted(EDGES_S, samples_s, side="right") - 1, 0, len(EDGES_S) - 2)
    first, last = int(bins.min()), int(bins.max())
    counts = np.bincount(bins - first, minlength=last - first + 1)
    return LatencyHistogram(EDGES_S[first : last + 2], tuple(counts.tolist()))

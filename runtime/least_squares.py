"""Least squares with no negative number among the results: costs do not come back. Pure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

__all__ = ["nonnegative_least_squares"]

Floats = npt.NDArray[np.float64]


def nonnegative_least_squares(columns: Floats, wanted: Floats) -> Floats:
    """Minimise |columns x - wanted|^2 over x >= 0, by trying every set of non-zero numbers (3 columns: 7 sets). Pure.

    `columns` [samples, numbers], `wanted` [samples]; returns [numbers].

    >>> nonnegative_least_squares(np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([3.0, 5.0])).round(9).tolist()
    [1.0, 2.0]
    """
    n = columns.shape[1]
    scale = np.linalg.norm(columns, axis=0)
    best, best_error = np.zeros(n), math.inf
    for active in itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(n, 0, -1)):
        chosen = list(active)
        found = np.linalg.lstsq(columns[:, chosen] / scale[chosen], wanted, rcond=None)[0] / scale[chosen]
        error = float(np.sum((columns[:, chosen] @ found - wanted) ** 2))
        if (found >= 0).all() and error < best_error * (1 - 1e-9):
            best, best_error = np.zeros(n), error
            best[chosen] = found
    return best

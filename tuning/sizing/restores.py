"""Whether a larger registered pool restores more slowly: the same requests of two steps side by side. Pure.

Both steps replay the same window in the same order, so a request that restored as many pages in both did the same work;
the ratio of their waits is what the larger pool costs. Its noise has two parts: the standard error over consecutive tenths of
the pairs (delete-one jackknife), and how far two runs of one size were apart (`drift`). Where none was made twice the second part is
not known, and with it whether the two differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicachectl.tuning.sizing.confidence import standard_error

__all__ = ["Column", "RestoreRatio", "Restores", "compare_restores", "restores_of", "seconds_per_page", "tenths"]

Column = npt.NDArray[np.float64]
"""A value a request, in the order of the window."""

MOST_KEPT = 20_000
"""Requests whose restore a step keeps: of a longer window every k-th one, the same ones in every step."""
_GROUPS = 10
_LEAST_PAIRS = 10 * _GROUPS
_SIGNIFICANT = 2.0
"""Times its noise a ratio must be away from 1."""


@dataclass(frozen=True, slots=True)
class Restores:
    """Requests that waited for a restore: which ones of the window, pages each restored, seconds each waited."""

    requests: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    wait_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreRatio:
    """How much longer the same restores took with the larger pool. `noise` as above; of one run alone where `drift` is not known.

    `slower_s_per_page`: seconds more a restored page (less: negative), `differs`: away from 1 by more than twice the noise. `reason`: why
    there is no ratio, or why it is not known whether it differs (None).
    """

    small_pages: int
    large_pages: int
    n_requests: int
    ratio: float | None
    noise: float | None
    slower_s_per_page: float | None
    differs: bool | None
    reason: str | None = None
    by_tenth: tuple[float, ...] = ()
    """The ratio in each tenth of the pairs, in their order."""


def restores_of(pages: npt.NDArray[np.float64], wait_s: npt.NDArray[np.float64]) -> Restores:
    """Keep the restores of a window from its columns by request: pages restored, seconds waited. Pure.

    >>> restores_of(np.array([0.0, 3.0]), np.array([0.0, 0.5]))
    Restores(requests=(1,), pages=(3,), wait_s=(0.5,))
    """
    every = max(1, -(-len(pages) // MOST_KEPT))
    kept = np.flatnonzero(pages > 0)
    kept = kept[kept % every == 0]
    return Restores(
        tuple(kept.tolist()), tuple(pages[kept].astype(int).tolist()), tuple(float(f"{x:.4g}") for x in wait_s[kept])
    )


def seconds_per_page(
    restored_host: Column, restored_storage: Column, restore_wait_s: Column
) -> tuple[float | None, float | None]:
    """Return the seconds waited a page restored from the host, and from storage; None where there was none. Pure.

    The first from requests that restored nothing from storage; what the others waited beyond that, for their host pages, is
    storage's.

    >>> seconds_per_page(np.array([4.0, 2.0]), np.array([0.0, 8.0]), np.array([0.4, 1.0]))
    (0.1, 0.1)
    """
    below = restored_storage > 0
    pages, below_pages = float(restored_host[~below].sum()), float(restored_storage[below].sum())
    host_s = float(restore_wait_s[~below].sum()) / pages if pages else None
    if not below_pages:
        return host_s, None
    of_host = (host_s or 0.0) * float(restored_host[below].sum())
    return host_s, max(0.0, float(restore_wait_s[below].sum()) - of_host) / below_pages


def tenths(restores: Restores) -> tuple[float, ...]:
    """Return the seconds a restored page waited in each tenth of the restores, in their order; fewer than ten give one. Pure."""
    pages, wait_s = np.asarray(restores.pages, np.float64), np.asarray(restores.wait_s, np.float64)
    if not len(pages):
        return ()
    n_groups = _GROUPS if len(pages) >= _GROUPS else 1
    groups = np.arange(len(pages)) * n_groups // len(pages)
    return tuple(float(wait_s[groups == g].sum() / pages[groups == g].sum()) for g in range(n_groups))


def compare_restores(
    small_pages: int, small: Restores, large_pages: int, large: Restores, *, drift: float | str = 0.0
) -> RestoreRatio:
    """Compare the requests that restored as many pages in both steps. Pure. `drift`: what two runs of one size are apart, less 1, or why it is not known."""
    first, second = _matched(small, large)
    n = len(first)
    if n < _LEAST_PAIRS or not first[:, 1].sum():
        few = f"{n} requests restored as many pages in both, {_LEAST_PAIRS} are needed"
        return RestoreRatio(small_pages, large_pages, n, None, None, None, None, few)
    ratio = float(second[:, 1].sum() / first[:, 1].sum())
    groups = np.arange(n) * _GROUPS // n
    each = tuple(float(second[groups == g, 1].sum() / first[groups == g, 1].sum()) for g in range(_GROUPS))
    left_out = [float(second[groups != g, 1].sum() / first[groups != g, 1].sum()) for g in range(_GROUPS)]
    unknown = drift if isinstance(drift, str) else None
    noise = math.hypot(standard_error(left_out), 0.0 if isinstance(drift, str) else drift)
    differs = None if unknown is not None else abs(ratio - 1) > _SIGNIFICANT * noise
    slower = float((second[:, 1].sum() - first[:, 1].sum()) / first[:, 0].sum())
    return RestoreRatio(small_pages, large_pages, n, ratio, noise, slower, differs, unknown, by_tenth=each)


def _matched(small: Restores, large: Restores) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Rows of (pages, seconds) of the requests that both have with as many pages."""
    rows = [np.column_stack([one.requests, one.pages, one.wait_s]).reshape(-1, 3) for one in (small, large)]
    _, i, j = np.intersect1d(rows[0][:, 0], rows[1][:, 0], assume_unique=True, return_indices=True)
    first, second = rows[0][i, 1:], rows[1][j, 1:]
    same = first[:, 0] == second[:, 0]
    return first[same], second[same]

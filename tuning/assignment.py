"""The cheapest way to give each row a column of its own. Pure.

Shortest augmenting paths with potentials (the Hungarian method, Jonker and Volgenant 1987), then ties are broken towards
low columns for early rows, so that the result does not depend on the order of the search.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cheapest_assignment"]


def cheapest_assignment(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return a column for each row, all different, with the smallest sum; among equals the first in dictionary order. Pure.

    `costs` has at least as many columns as rows. Raises ValueError when it has not.

    >>> cheapest_assignment([[16, 10], [16, 10]]), cheapest_assignment([[1, 2, 3]])
    ([0, 1], [0])
    """
    n_columns = len(costs[0]) if costs else 0
    if len(costs) > n_columns:
        raise ValueError(f"{len(costs)} rows cannot have a column each of {n_columns}")
    best, rows, free = _least(costs, list(range(n_columns))), list(costs), list(range(n_columns))
    chosen: list[int] = []
    while rows:
        row, rest = rows[0], rows[1:]
        for column in free:
            left = [c for c in free if c != column]
            if row[column] + _least(rest, left) == best:
                chosen.append(column)
                best, rows, free = best - row[column], rest, left
                break
    return chosen


def _least(costs: Sequence[Sequence[int]], columns: Sequence[int]) -> int:
    """Return the smallest sum of an assignment of all rows to some of `columns`."""
    n, m, infinite = len(costs), len(columns), float("inf")
    row_price, column_price = [0.0] * (n + 1), [0.0] * (m + 1)
    owner = [0] * (m + 1)  # row of each column, 1-based; 0 = free
    for row in range(1, n + 1):
        owner[0], column = row, 0
        nearest, came_from, done = [infinite] * (m + 1), [0] * (m + 1), [False] * (m + 1)
        while owner[column]:
            done[column] = True
            step, following = infinite, 0
            for j in range(1, m + 1):
                if not done[j]:
                    reduced = costs[owner[column] - 1][columns[j - 1]] - row_price[owner[column]] - column_price[j]
                    if reduced < nearest[j]:
                        nearest[j], came_from[j] = reduced, column
                    if nearest[j] < step:
                        step, following = nearest[j], j
            for j in range(m + 1):
                if done[j]:
                    row_price[owner[j]] += step
                    column_price[j] -= step
                else:
                    nearest[j] -= step
            column = following
        while column:
            owner[column] = owner[came_from[column]]
            column = came_from[column]
    return sum(costs[owner[j] - 1][columns[j - 1]] for j in range(1, m + 1) if owner[j])

"""Plain models of a prefix cache, one request at a time, for the curves to be compared with; and random traces for both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from hicachectl.runtime.replay.request import TraceRequest

__all__ = ["BLOCK", "Path", "hits_of", "paths", "traced"]

BLOCK = 4
Path = tuple[tuple[int, ...], int]
"""Ids front to back, and the tokens of the last one."""


@st.composite
def paths(draw: st.DrawFn) -> list[Path]:
    """Requests that keep a front part of an earlier one and go on with new ids."""
    found: list[Path] = []
    next_id = 0
    for _ in range(draw(st.integers(1, 14))):
        before = draw(st.sampled_from(found))[0] if found else ()
        kept = before[: draw(st.integers(0, len(before)))]
        n_new = draw(st.integers(0, 5))
        ids = (*kept, *range(next_id, next_id + n_new))
        next_id += n_new
        found.append((ids, draw(st.integers(1, BLOCK)) if ids else 0))
    return found


def traced(requests: Sequence[Path]) -> list[TraceRequest]:
    """The requests as a trace reader hands them over."""
    return [
        TraceRequest(q, float(q), BLOCK * (len(ids) - 1) + last if ids else 0, 1, np.array(ids, np.int64))
        for q, (ids, last) in enumerate(requests)
    ]


def hits_of(requests: Sequence[Path], capacity: int) -> list[list[int]]:
    """Tokens of each block hit, by request, in a cache of `capacity` blocks that drops the leaf touched longest ago."""
    touched: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    found = []
    for now, (ids, last) in enumerate(requests):
        weights = [BLOCK] * (len(ids) - 1) + [last] if ids else []
        n_hit = next((n for n, one in enumerate(ids) if one not in touched), len(ids))
        found.append(weights[:n_hit])
        for before, one in zip((None, *ids), ids, strict=False):
            touched[one], parent[one] = now, before
        while len(touched) > capacity:
            leaves = set(touched) - {parent[one] for one in touched}
            del touched[min(leaves, key=lambda one: touched[one])]
    return found

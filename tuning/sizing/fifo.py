"""First in, first out, stepped request by request: the floor a pool without recency would have.

A block's place in the queue is the number of insertions before it; with C blocks exactly the last C inserted ones are
there. New blocks of a request enter from its tail to its head; residents keep their place.
"""

from __future__ import annotations

import numpy as np

from hicachectl.tuning.sizing.window import Definition, Window

__all__ = ["fifo_hits"]


def fifo_hits(window: Window, capacity: int, definition: Definition = Definition.D1, *, first: int = 0) -> int:
    """Return the hits with `capacity` blocks from request `first` on, in blocks (tokens for D2). Pure.

    For D3 the window is that of full blocks already.
    """
    place = np.full(window.n_distinct, -1, np.int64)
    inserted = hits = 0
    starts, lasts, ids = window.starts.tolist(), window.last_tokens.tolist(), window.ids
    for q in range(window.n_requests):
        row = ids[starts[q] : starts[q + 1]]
        missing = np.flatnonzero(place[row] < max(0, inserted - capacity))
        n_missing, n = len(missing), len(row)
        n_hit = int(missing[0]) if n_missing else n
        if q >= first:
            hits += n_hit
            if definition is Definition.D2 and n_hit:
                hits += n_hit * (window.block_tokens - 1) - (window.block_tokens - lasts[q] if n_hit == n else 0)
        if n_missing:
            place[row[missing]] = np.arange(inserted + n_missing - 1, inserted - 1, -1)
            inserted += n_missing
    return hits

"""Which layers of a load become ready together, and how a group of layers goes through bounded staging. Pure.

layers     0 | 1 ............ 13 | 14 .......... 26 | ...     groups: a small first one, so that compute starts early
a group    pages [0, 64) [64, 128) ...                        parts: what fits a staging buffer, of about equal size
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from hicachectl.errors import CapacityError
from hicachectl.runtime.geometry import KVGeometry

__all__ = ["even_parts", "group_planes", "layer_groups", "load_groups", "merged", "planes_that_fit"]

_GROUPS_AFTER_THE_FIRST = 6


def layer_groups(n_layers: int, first: int = 1, others: int | None = None) -> tuple[int, ...]:
    """Cut `n_layers` into a first group of `first` layers and further ones of `others` (a sixth of the rest). Pure.

    Measured on one H200: groups of 13 layers after a first one of 1 have the first layer ready after 2 % of the time and
    keep the rate of the link (docs/facts.md#h200-groups).

    >>> layer_groups(78)
    (1, 13, 13, 13, 13, 13, 12)
    >>> layer_groups(2)
    (1, 1)
    """
    first = min(first, n_layers)
    rest = n_layers - first
    if others is None:
        others = max(1, -(-rest // _GROUPS_AFTER_THE_FIRST))
    whole, left = divmod(rest, others)
    return (first, *(others,) * whole, *((left,) if left else ()))


def load_groups(n_layers: int, device_type: str) -> tuple[int, ...]:
    """Return the layer groups of loads to a type of device: on the processor one, since a copy there leaves nothing to
    compute with meanwhile. Pure.

    >>> load_groups(78, "cuda")
    (1, 13, 13, 13, 13, 13, 12)
    >>> load_groups(78, "cpu")
    (78,)
    """
    return (n_layers,) if device_type == "cpu" else layer_groups(n_layers)


def merged(groups: Sequence[int], layer_bytes: int, least_bytes: int) -> tuple[int, ...]:
    """Widen groups until every one has `least_bytes`: a group too small costs more to start than to move. Pure.

    `layer_bytes` are what one layer moves. A group takes only the layers it lacks from the groups after it, so that a small
    first one stays as small as it may be. What is left at the end joins the group before it.

    >>> merged((1, 13, 13), layer_bytes=10, least_bytes=20)
    (2, 12, 13)
    >>> merged((1, 13, 13), layer_bytes=10, least_bytes=100)
    (10, 17)
    """
    least = max(1, -(-least_bytes // layer_bytes))
    total = sum(groups)
    starts = [0]
    for end in accumulate(groups):
        if end > starts[-1]:
            starts.append(max(end, starts[-1] + least))
    while len(starts) > 1 and total - starts[-1] < least:
        starts.pop()
    return tuple(b - a for a, b in pairwise((*starts, total)))


def group_planes(geometry: KVGeometry, groups: Sequence[int]) -> list[tuple[range, int]]:
    """Return of each layer group its planes and the layer it ends before. Pure."""
    found = []
    first = 0
    for size in groups:
        found.append((geometry.planes_of(first, first + size), first + size))
        first += size
    return found


def even_parts(n: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut `[0, n)` into as few parts of at most `most` as there can be, of about equal size. Pure.

    >>> list(even_parts(10, 4))
    [(0, 3), (3, 6), (6, 10)]
    """
    n_parts = -(-n // most)
    for i in range(n_parts):
        yield n * i // n_parts, n * (i + 1) // n_parts


def planes_that_fit(planes: range, chunk_bytes: int, buffer_bytes: int) -> Iterator[range]:
    """Cut a range of planes so that a page of each part fits a staging buffer. Pure.

    Raises CapacityError when not even one chunk does.

    >>> list(planes_that_fit(range(4, 9), chunk_bytes=10, buffer_bytes=25))
    [range(4, 5), range(5, 7), range(7, 9)]
    """
    most = buffer_bytes // chunk_bytes
    if most < 1:
        raise CapacityError(
            "a staging buffer holds less than one chunk",
            terms=(("chunk bytes", chunk_bytes), ("buffer bytes", buffer_bytes)),
            hint="give the staging more bytes, or take smaller pages",
        )
    for start, end in even_parts(len(planes), most):
        yield range(planes.start + start, planes.start + end)

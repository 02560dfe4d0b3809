"""Which pages go down from device to host, and when. Pure: values in, values out.

A page's hit count is the number of distinct requests that touched it, its creator included, however often a request
is inserted (chunked prefill, double insertion, a prefill node that releases at once). It never grows with depth, so
what a policy chooses is always a prefix of the path, and a backed-up page never hangs under one that is not.

    write_through            hit count 1: at once
    write_through_selective  hit count >= 2 (configurable), or as far as the ghost list says it would have paid
    write_back               never here: when a page is evicted from the device tier
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["PathSegment", "WritePolicy", "choose"]


class WritePolicy(Enum):
    """When a page is copied to the host tier."""

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"

    def threshold(self, selective_hits: int) -> int | None:
        """Return the hit count that triggers a backup, None when hits never do."""
        if self is WritePolicy.WRITE_THROUGH:
            return 1
        return selective_hits if self is WritePolicy.WRITE_THROUGH_SELECTIVE else None


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Consecutive pages of a request's path with equal state: `n_pages`, of them the first `host_pages` and `device_pages` are resident."""

    n_pages: int
    hits: int
    host_pages: int
    device_pages: int


def choose(
    path: Iterable[PathSegment], policy: WritePolicy, *, selective_hits: int = 2, ghost_pages: int = 0
) -> tuple[int, int]:
    """Return the half-open page range `[start, end)` of the path to back up now; empty when start == end. Pure.

    `path` runs from the root down. `ghost_pages` is how far from the root the ghost list found pages that were evicted
    from the device tier before they were backed up (0 = none).

    >>> choose([PathSegment(4, 3, 4, 4), PathSegment(2, 1, 0, 2)], WritePolicy.WRITE_THROUGH)
    (4, 6)
    >>> choose([PathSegment(4, 3, 0, 4), PathSegment(2, 1, 0, 2)], WritePolicy.WRITE_THROUGH_SELECTIVE)
    (0, 4)
    """
    threshold = policy.threshold(selective_hits)
    if threshold is None:
        return (0, 0)
    start = end = depth = 0
    closed = True
    for segment in path:
        wanted = (
            segment.device_pages
            if segment.hits >= threshold
            else min(segment.device_pages, max(0, ghost_pages - depth))
        )
        wanted = max(wanted, segment.host_pages)
        if closed:
            start = depth + segment.host_pages
            closed = segment.host_pages == segment.n_pages
        end = max(end, depth + wanted)
        if wanted < segment.n_pages:
            break
        depth += segment.n_pages
    return (start, max(start, end))

"""Why a token of a request was not served from the cache: the words that partition the missed tokens."""

from __future__ import annotations

from enum import Enum

__all__ = ["MissReason"]


class MissReason(Enum):
    """One reason a missed token; every missed token has exactly one.

    The values are the names used in reports, JSON (`missed_tokens_by_reason`) and metric labels.
    """

    NEVER_SEEN = "never_seen"
    """No earlier request had this page."""
    EVICTED_DEVICE = "evicted_device"
    """It was in device memory and there is no host tier it could have gone to."""
    EVICTED_HOST = "evicted_host"
    """It was backed up to host memory and dropped there."""
    EVICTED_STORAGE = "evicted_storage"
    """It was stored in L3 and dropped there."""
    PARTIAL_PAGE = "partial_page"
    """The incomplete tail of a request: only whole pages are cached."""
    NOT_BACKED_UP = "not_backed_up"
    """It was in device memory and left it before the write policy copied it down."""
    RESTORE_DEARER = "restore_dearer"
    """A lower tier holds it, and computing it again was predicted to be cheaper."""
    FAILED = "failed"
    """A lower tier failed while it was being brought up."""
    IN_FLIGHT = "in_flight"
    """Another transfer is moving it and it was not ready in time."""
    FORGOTTEN = "forgotten"
    """Not in the bounded memory of seen keys, which has dropped entries: it may have been seen before."""

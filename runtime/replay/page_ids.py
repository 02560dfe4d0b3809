"""Block ids that mean the same in every file and process: 63 bits of a page key, so that they fit a trace."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from hicachectl.runtime.keys import KEY_BYTES, TOKEN_BYTES, key64, page_keys
from hicachectl.runtime.replay.request import Blocks

__all__ = ["id_of_hash", "page_ids", "scoped_ids"]

_MASK = (1 << 63) - 1
_ODD = np.uint64(0xBF58476D1CE4E5B9)  # a multiplier of splitmix64


def page_ids(tokens: list[int], page_tokens: int) -> Blocks:
    """Name the pages of a prompt, the incomplete last one too, by their tokens and all before. Pure.

    Returns ceil(len(tokens) / page_tokens) ids in 0..2^63-1: the first 8 bytes of each chained page key (`keys`),
    without the top bit. Raises OverflowError for a token id that is no uint32.
    """
    packed = np.array(tokens, "<u4").tobytes()
    keys = page_keys(packed, page_tokens)
    whole = len(keys) // KEY_BYTES * page_tokens * TOKEN_BYTES
    if whole < len(packed):
        keys += sha256(keys[-KEY_BYTES:] + packed[whole:]).digest()
    return (key64(keys) & np.uint64(_MASK)).astype(np.int64)


def id_of_hash(value: object) -> int | None:
    """Turn a block hash of an event, an int of 64 bits or bytes, into an id; None for anything else. Pure."""
    if type(value) is int:
        return value & _MASK
    if type(value) is bytes and len(value) >= 8:
        return int.from_bytes(value[:8], "big") & _MASK
    return None


def scoped_ids(ids: Blocks, session: str) -> Blocks:
    """Make ids of a session's own into ids that mean the same everywhere. Pure."""
    salt = np.uint64(int.from_bytes(sha256(session.encode()).digest()[:8], "big"))
    mixed = (ids.view(np.uint64) ^ salt) * _ODD
    mixed ^= mixed >> np.uint64(29)
    return ((mixed * _ODD) & np.uint64(_MASK)).astype(np.int64)

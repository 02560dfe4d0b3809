"""Token ids for a trace that records only block ids.

Page keys, tree and events work on tokens, so a block id must become tokens: token `pos` of block number b is
`b * block_tokens + pos` as uint32. That is injective, so two prefixes share a page exactly when their ids agree over it.

    ids mean the same everywhere and fit        number = id
    ids of sessions, or too large for uint32    numbers are handed out in order of first appearance
    tokens past the last id of a request        a number of their own for each request: they never match anything
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Blocks, TraceInfo, TraceRequest

__all__ = ["TokenMaker", "check_page_tokens"]

_TOKEN_LIMIT = 1 << 32  # tokens travel as uint32
_BLOCK_LIMIT = 1 << 20  # public traces have 16, 64 and 512; the positions of one block are kept in memory
_DENSE_LIMIT = 1 << 22  # ids below this are looked up in an array (4 bytes an id), larger ones in a dict


def check_page_tokens(block_tokens: int, page_tokens: int) -> str | None:
    """Check that pages of `page_tokens` can be cut from blocks of `block_tokens`. Pure.

    Returns a sentence for the report when pages are smaller than blocks, else None. Raises UsageError when the page does
    not divide the block.

    >>> check_page_tokens(512, 512) is None
    True
    >>> check_page_tokens(512, 64)
    'pages of 64 tokens in blocks of 512: hits are a lower bound, because ids that differ never share their first tokens'
    """
    if page_tokens <= 0 or block_tokens % page_tokens:
        divisors = [n for n in range(1, block_tokens + 1) if block_tokens % n == 0]
        near = [*(n for n in divisors if n < page_tokens)][-1:] + [*(n for n in divisors if n > page_tokens)][:1]
        raise UsageError(
            f"page_tokens {page_tokens} does not divide the trace's block of {block_tokens} tokens",
            hint=f"use {', '.join(map(str, near[:-1])) + ' or ' if len(near) > 1 else ''}{near[-1]}",
        )
    if page_tokens == block_tokens:
        return None
    return (
        f"pages of {page_tokens} tokens in blocks of {block_tokens}: hits are a lower bound, "
        "because ids that differ never share their first tokens"
    )


class TokenMaker:
    """Makes the tokens of requests, the same for the same request however often it is asked.

    From a TraceInfo it takes ids as numbers when they are global and fit; from a bare block size it numbers blocks in
    order of first appearance, so calls must then come in the same order to give the same tokens. Not thread-safe.

    >>> maker = TokenMaker(4)
    >>> request = TraceRequest(0, 0.0, 6, 1, np.array([70, 90]))
    >>> np.frombuffer(maker.tokens(request, 6), "<u4").tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, source: TraceInfo | int) -> None:
        block_tokens = source if isinstance(source, int) else source.block_tokens
        if not 0 < block_tokens <= _BLOCK_LIMIT:
            raise UsageError(f"blocks of {block_tokens} tokens, not 1..{_BLOCK_LIMIT}")
        self.block_tokens = block_tokens
        self._limit = _TOKEN_LIMIT // block_tokens  # numbers 0..limit-1 give tokens that fit
        self._offsets = np.arange(block_tokens, dtype=np.uint32)
        direct = isinstance(source, TraceInfo) and source.scopes == 0 and (source.max_block_id or 0) < self._limit
        # Numbers below `direct_end` are ids themselves; the counter hands out from there.
        self._direct_end = ((source.max_block_id or 0) + 1) if direct and isinstance(source, TraceInfo) else 0
        self._direct = direct
        self._next = self._direct_end
        self._dense: dict[int, npt.NDArray[np.uint32]] = {}  # scope -> number + 1 by id, 0 = not seen
        self._sparse: dict[tuple[int, int], int] = {}  # (scope, id) -> number
        self._tails: dict[int, int] = {}  # request index -> number of its tokens past the last id

    @property
    def n_numbers(self) -> int:
        """How many block numbers are in use, the largest possible id included where ids are numbers."""
        return self._next

    def tokens(self, request: TraceRequest, n_tokens: int) -> bytes:
        """Return tokens [0, n_tokens) of a request as little-endian uint32, 4 bytes a token.

        Changes only the memory of numbers handed out. Raises UsageError when n_tokens is not in 0..input_tokens or when
        the trace has more blocks than uint32 tokens can tell apart.
        """
        if not 0 <= n_tokens <= request.input_tokens:
            raise UsageError(f"tokens 0..{n_tokens} of request {request.index}, which has {request.input_tokens}")
        n_blocks = -(-n_tokens // self.block_tokens)
        numbers = self._numbers(request.scope, request.blocks[:n_blocks])
        if n_blocks > len(request.blocks):
            numbers = np.concatenate((numbers, self._tail(request, n_blocks - len(request.blocks))))
        first = numbers * np.uint32(self.block_tokens)
        whole = (first[:, None] + self._offsets).astype("<u4", copy=False)
        return whole.reshape(-1)[:n_tokens].tobytes()

    def _numbers(self, scope: int, ids: Blocks) -> npt.NDArray[np.uint32]:
        if self._direct:
            if scope or (len(ids) and int(ids.max()) >= self._direct_end):
                raise UsageError(f"block id {ids.max() if len(ids) else '-'} in scope {scope} is not of this trace",
                                 why=f"its ids are global and below {self._direct_end}")  # fmt: skip
            return ids.astype(np.uint32)
        if len(ids) and int(ids.max()) >= _DENSE_LIMIT:
            return np.fromiter((self._number(scope, int(id_)) for id_ in ids), np.uint32, len(ids))
        return self._dense_numbers(scope, ids)

    def _dense_numbers(self, scope: int, ids: Blocks) -> npt.NDArray[np.uint32]:
        table = self._dense.get(scope)
        needed = int(ids.max()) + 1 if len(ids) else 0
        if table is None or len(table) < needed:
            grown = np.zeros(max(256, needed, 2 * len(table) if table is not None else 0), np.uint32)
            if table is not None:
                grown[: len(table)] = table
            self._dense[scope] = table = grown
        found = table[ids]
        if not found.all():
            new = ids[found == 0]
            new = new[np.sort(np.unique(new, return_index=True)[1])]  # an id may come twice
            table[new] = np.arange(self._hand_out(len(new)) + 1, self._next + 1, dtype=np.uint32)
            found = table[ids]
        return found - np.uint32(1)

    def _number(self, scope: int, id_: int) -> int:
        if id_ < _DENSE_LIMIT:  # one id must have one number, whichever way its request went
            return int(self._dense_numbers(scope, np.array([id_], np.int64))[0])
        number = self._sparse.get((scope, id_))
        if number is None:
            number = self._sparse[scope, id_] = self._hand_out(1)
        return number

    def _tail(self, request: TraceRequest, n_blocks: int) -> npt.NDArray[np.uint32]:
        first = self._tails.get(request.index)
        if first is None:
            whole = -(-request.input_tokens // self.block_tokens) - len(request.blocks)
            first = self._tails[request.index] = self._hand_out(whole)
        return np.arange(first, first + n_blocks, dtype=np.uint32)

    def _hand_out(self, n: int) -> int:
        first = self._next
        if first + n > self._limit:
            raise UsageError(
                f"{first + n} different blocks of {self.block_tokens} tokens need token ids up to "
                f"{(first + n) * self.block_tokens - 1}, past the largest uint32 {_TOKEN_LIMIT - 1}",
                hint="replay a part of the trace, or fewer sessions",
            )
        self._next = first + n
        return first

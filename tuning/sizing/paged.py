"""A trace whose blocks are cut into pages, as the replay cuts them: what a pool of pages will see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from hicachectl.runtime.replay.request import TraceInfo, TraceRequest
from hicachectl.runtime.replay.tokens import check_page_tokens

__all__ = ["paged"]


def paged(requests: Iterable[TraceRequest], info: TraceInfo, page_tokens: int) -> Iterator[TraceRequest]:
    """Yield the requests with pages for blocks, the incomplete last page included. Reads `requests`.

    Tokens past the last named block get pages of their own: they are computed and cached, and never hit again. Raises
    UsageError for a page that does not divide the block.
    """
    check_page_tokens(info.block_tokens, page_tokens)
    each = info.block_tokens // page_tokens
    next_own: dict[int, int] = defaultdict(lambda: ((info.max_block_id or 0) + 1) * each)
    offsets = np.arange(each, dtype=np.int64)
    for request in requests:
        n_pages = -(-request.input_tokens // page_tokens)
        pages = (request.blocks[:, None] * each + offsets).reshape(-1)[:n_pages]
        if len(pages) < n_pages:
            first = next_own[request.scope]
            next_own[request.scope] = first + n_pages - len(pages)
            pages = np.concatenate((pages, np.arange(first, next_own[request.scope], dtype=np.int64)))
        yield replace(request, blocks=pages)

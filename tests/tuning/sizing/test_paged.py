from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lru_model import BLOCK, Path, paths, traced

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceInfo, TraceRequest, summarize
from hicachectl.runtime.replay.tokens import TokenMaker
from hicachectl.tuning.sizing.paged import paged


def info_of(requests: list[TraceRequest]) -> TraceInfo:
    return summarize(requests, format_name="t", path=None, block_tokens=BLOCK)


@settings(max_examples=60, deadline=None)
@given(paths(), st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_two_requests_share_a_page_exactly_when_their_tokens_agree_up_to_it(
    requests: list[Path], page_tokens: int, beyond: int
) -> None:
    traces = [
        TraceRequest(
            r.index,
            r.time_s,
            r.input_tokens + (beyond if r.index % 2 and not r.input_tokens % BLOCK else 0),
            1,
            r.blocks,
        )
        for r in traced(requests)
    ]
    info = info_of(traces)
    maker = TokenMaker(info)
    seen: dict[int, bytes] = {}
    other: dict[bytes, int] = {}
    for request in paged(traces, info, page_tokens):
        tokens = maker.tokens(traces[request.index], request.input_tokens)
        assert len(request.blocks) == -(-request.input_tokens // page_tokens)
        for n in range(request.input_tokens // page_tokens):
            prefix = tokens[: 4 * page_tokens * (n + 1)]
            page = int(request.blocks[n])
            assert seen.setdefault(page, prefix) == prefix
            assert other.setdefault(prefix, page) == page


def test_a_page_that_does_not_divide_the_block_is_refused() -> None:
    requests = [TraceRequest(0, 0.0, 4, 1, np.array([0], np.int64))]
    with pytest.raises(UsageError, match="does not divide"):
        list(paged(requests, info_of(requests), 3))

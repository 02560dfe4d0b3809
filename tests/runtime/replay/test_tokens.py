from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceInfo, TraceRequest, summarize
from hicachectl.runtime.replay.tokens import TokenMaker, check_page_tokens

BLOCK = 4


def request(blocks: list[int], *, index: int = 0, scope: int = 0, n_tokens: int | None = None) -> TraceRequest:
    n = len(blocks) * BLOCK if n_tokens is None else n_tokens
    return TraceRequest(index, 0.0, n, 1, np.array(blocks, np.int64), scope=scope)


def info(max_block_id: int, *, scopes: int = 0, block_tokens: int = BLOCK) -> TraceInfo:
    empty = summarize([], format_name="test", path=None, block_tokens=block_tokens)
    return dataclasses.replace(empty, max_block_id=max_block_id, scopes=scopes)


def ids(tokens: bytes) -> list[int]:
    return np.frombuffer(tokens, "<u4").tolist()


def test_a_global_id_is_the_block_number_itself() -> None:
    maker = TokenMaker(info(9))
    assert ids(maker.tokens(request([9, 2]), 8)) == [36, 37, 38, 39, 8, 9, 10, 11]


def test_tokens_are_little_endian_uint32_four_bytes_a_token() -> None:
    assert TokenMaker(info(64)).tokens(request([64]), 1) == b"\x00\x01\x00\x00"


def test_fewer_tokens_are_a_prefix_of_more() -> None:
    maker = TokenMaker(BLOCK)
    asked = request([5, 6, 7], n_tokens=11)
    whole = maker.tokens(asked, 11)
    assert len(whole) == 44
    assert all(maker.tokens(asked, n) == whole[: 4 * n] for n in range(12))


def test_the_same_request_gives_the_same_tokens_again() -> None:
    maker = TokenMaker(info(9, scopes=2))
    first, second = request([1, 2], scope=1, n_tokens=11), request([2, 1], index=1, scope=2, n_tokens=10)
    before = maker.tokens(first, 11), maker.tokens(second, 10)
    assert (maker.tokens(first, 11), maker.tokens(second, 10)) == before


def test_an_id_of_another_session_gives_other_tokens() -> None:
    maker = TokenMaker(info(9, scopes=2))
    mine, other = ids(maker.tokens(request([1], scope=1), 4)), ids(maker.tokens(request([1], scope=2), 4))
    assert not set(mine) & set(other)


def test_tokens_past_the_last_id_match_nothing() -> None:
    for source in (BLOCK, info(9)):
        maker = TokenMaker(source)
        first = ids(maker.tokens(request([9], index=0, n_tokens=10), 10))
        second = ids(maker.tokens(request([9], index=1, n_tokens=10), 10))
        assert first[:4] == second[:4]
        assert not set(first[4:]) & set(second)
        assert len(set(first)) == 10


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from([0, 1, 2, 3, 300, 2**22, 2**40, 2**63 - 1]), max_size=5)),
        max_size=8,
    )
)
def test_two_tokens_are_equal_exactly_when_scope_id_and_position_are(asked: list[tuple[int, list[int]]]) -> None:
    maker = TokenMaker(BLOCK)
    seen: dict[tuple[int, int, int], int] = {}
    for index, (scope, blocks) in enumerate(asked):
        got = ids(maker.tokens(request(blocks, index=index, scope=scope), len(blocks) * BLOCK))
        for at, token in enumerate(got):
            assert seen.setdefault((scope, blocks[at // BLOCK], at % BLOCK), token) == token
    assert len(set(seen.values())) == len(seen)


def test_numbers_that_pass_uint32_are_refused_with_both_values() -> None:
    nothing, block = np.empty(0, np.int64), 1 << 16
    TokenMaker(block).tokens(TraceRequest(0, 0.0, block * block, 1, nothing), 1)
    with pytest.raises(UsageError, match=r"65537 different blocks of 65536 .* 4295032831, past .* 4294967295"):
        TokenMaker(block).tokens(TraceRequest(0, 0.0, block * block + 1, 1, nothing), 1)


def test_a_block_of_no_tokens_or_of_too_many_is_refused() -> None:
    for block_tokens in (0, -1, 1 << 21):
        with pytest.raises(UsageError, match=f"blocks of {block_tokens} tokens"):
            TokenMaker(block_tokens)


def test_global_ids_too_large_for_uint32_are_numbered_by_first_appearance() -> None:
    maker = TokenMaker(info(2**40))
    assert ids(maker.tokens(request([2**40, 7]), 8)) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_an_id_the_summary_does_not_cover_is_refused() -> None:
    with pytest.raises(UsageError, match="block id 10 in scope 0 is not of this trace"):
        TokenMaker(info(9)).tokens(request([10]), 4)


def test_more_tokens_than_the_request_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"tokens 0\.\.5 of request 0, which has 4"):
        TokenMaker(BLOCK).tokens(request([1]), 5)


def test_a_page_must_divide_the_block() -> None:
    assert check_page_tokens(512, 512) is None
    note = check_page_tokens(512, 64)
    assert note is not None
    assert "lower bound" in note
    with pytest.raises(UsageError, match="page_tokens 500 does not divide the trace's block of 512") as caught:
        check_page_tokens(512, 500)
    assert caught.value.hint == "use 256 or 512"
    for page_tokens in (0, -4, 1024):
        with pytest.raises(UsageError):
            check_page_tokens(512, page_tokens)

"""Ids that mean the same everywhere, and their numbering in growing arrays."""

from __future__ import annotations

import numpy as np
import pytest

from hicachectl.errors import CapacityError
from hicachectl.runtime.keys import event_hashes, page_keys
from hicachectl.runtime.replay.key_numbers import KeyNumbers
from hicachectl.runtime.replay.page_ids import id_of_hash, page_ids, scoped_ids


def test_a_page_is_named_by_its_tokens_and_all_before_it() -> None:
    one, other = page_ids(list(range(10)), 4), page_ids([*range(8), 99, 98], 4)
    assert len(one) == 3
    assert (one[:2] == other[:2]).all()
    assert one[2] != other[2]
    assert page_ids(list(range(8)), 4).tolist() == one[:2].tolist()
    assert len({*one.tolist(), *page_ids([4, 5, 6, 7, 0, 1], 4).tolist()}) == 5
    assert int(one.min()) >= 0


def test_an_event_and_a_log_name_the_same_page_alike() -> None:
    tokens = list(range(8))
    packed = np.array(tokens, "<u4").tobytes()
    hashes = event_hashes(page_keys(packed, 4)).tolist()
    assert [id_of_hash(value) for value in hashes] == page_ids(tokens, 4).tolist()
    assert id_of_hash(page_keys(packed, 4)[:32]) == page_ids(tokens, 4)[0]
    assert id_of_hash("x") is None


def test_ids_of_two_sessions_differ_and_come_back() -> None:
    ids = np.arange(1000, dtype=np.int64)
    found = [*scoped_ids(ids, "a").tolist(), *scoped_ids(ids, "b").tolist()]
    assert len(set(found)) == 2000
    assert min(found) >= 0
    assert scoped_ids(ids, "a").tolist() == found[:1000]


def test_numbers_are_given_in_order_and_kept_while_the_table_grows() -> None:
    numbers = KeyNumbers(most=5000)
    keys = (np.arange(5000, dtype=np.int64) << 20) + 7  # no hashes: only their high bits differ
    assert np.concatenate([numbers.number(piece) for piece in np.split(keys, 50)]).tolist() == list(range(5000))
    assert numbers.number(keys[::-1]).tolist() == list(range(4999, -1, -1))
    assert numbers.find(np.array([1, 7], np.int64)).tolist() == [-1, 0]
    with pytest.raises(CapacityError, match="5000"):
        numbers.number(np.array([1], np.int64))

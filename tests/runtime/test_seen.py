"""Seen keys and the kind of miss their flags tell."""

from __future__ import annotations

import numpy as np
import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.seen import SeenFlag, SeenKeys, classify_missed

P, B, S = SeenFlag.PUBLISHED, SeenFlag.BACKED_UP, SeenFlag.STORED


def u64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def reasons(flags: list[int], *, host: bool = True, storage: bool = True, forgot: bool = False) -> list[MissReason]:
    got = classify_missed(np.array(flags, dtype=np.uint8), host_tier=host, storage_tier=storage, forgot_any=forgot)
    return got.tolist()


def test_flags_of_a_key_add_up_and_absent_keys_have_none() -> None:
    seen = SeenKeys(4)
    seen.add(u64(1, 2), P)
    seen.add(u64(2, 3), B | P)
    seen.add(u64(2), S)
    assert seen.get(u64(0, 1, 2, 3)).tolist() == [0, P, P | B | S, P | B]
    assert len(seen) == 3


def test_forgetting_is_remembered() -> None:
    seen = SeenKeys(2)
    seen.add(u64(1, 2), P)
    seen.add(u64(1, 2), B)
    assert not seen.forgot_any
    seen.add(u64(3), P)
    assert seen.forgot_any
    assert seen.get(u64(1, 2, 3)).tolist() == [0, P | B, P]
    assert len(seen) == seen.capacity == 2


def test_no_flags_are_refused() -> None:
    with pytest.raises(UsageError):
        SeenKeys(2).add(u64(1), SeenFlag(0))


def test_the_deepest_tier_that_had_the_page_dropped_it() -> None:
    assert reasons([0, P, P | B, P | B | S, P | S, B]) == [
        MissReason.NEVER_SEEN,
        MissReason.NOT_BACKED_UP,
        MissReason.EVICTED_HOST,
        MissReason.EVICTED_STORAGE,
        MissReason.EVICTED_STORAGE,
        MissReason.EVICTED_HOST,
    ]


def test_without_a_host_tier_a_published_page_was_evicted_from_the_device() -> None:
    assert reasons([P], host=False, storage=False) == [MissReason.EVICTED_DEVICE]


def test_without_a_storage_tier_the_host_dropped_it() -> None:
    assert reasons([P | B | S], storage=False) == [MissReason.EVICTED_HOST]


def test_an_unknown_page_is_never_seen_only_while_nothing_was_forgotten() -> None:
    assert reasons([0, P], forgot=True) == [MissReason.FORGOTTEN, MissReason.NOT_BACKED_UP]


def test_every_missed_page_gets_exactly_one_reason() -> None:
    for host in (False, True):
        for storage in (False, True):
            for forgot in (False, True):
                got = reasons(list(range(8)), host=host, storage=storage, forgot=forgot)
                assert all(isinstance(reason, MissReason) for reason in got)


def test_the_reasons_are_the_words_of_the_report() -> None:
    assert [reason.value for reason in MissReason] == [
        "never_seen",
        "evicted_device",
        "evicted_host",
        "evicted_storage",
        "partial_page",
        "not_backed_up",
        "restore_dearer",
        "failed",
        "in_flight",
        "forgotten",
    ]

"""Page keys against SHA-256 written out here with hashlib alone."""

from __future__ import annotations

import hashlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.keys import (
    DEFAULT_NAMESPACE,
    KEY_BYTES,
    KeyChain,
    Namespace,
    SeedTag,
    bigram_page_keys,
    chain_seed,
    event_hashes,
    key64,
    namespace_seed,
    page_keys,
)

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def golden(ids: list[int], page_tokens: int, seed: bytes = b"", *, bigram: bool = False) -> list[str]:
    """The definition, a token at a time."""
    units = (
        [struct.pack("<II", *pair) for pair in itertools.pairwise(ids)]
        if bigram
        else [struct.pack("<I", i) for i in ids]
    )
    previous, out = seed, []
    for start in range(0, len(units) - page_tokens + 1, page_tokens):
        digest = hashlib.sha256()
        if previous:
            digest.update(previous)
        for unit in units[start : start + page_tokens]:
            digest.update(unit)
        previous = digest.digest()
        out.append(previous.hex())
    return out


def hexes(keys: bytes) -> list[str]:
    return [keys[i : i + KEY_BYTES].hex() for i in range(0, len(keys), KEY_BYTES)]


def test_two_zero_tokens_have_these_digests() -> None:
    # printf '\\0\\0\\0\\0' | sha256sum, then the same after the 32 bytes of the first digest
    assert hexes(page_keys(bytes(8), 1)) == [
        "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119",
        "f2a62dfa3c9319768c498e2cd3ce35d2350614b1c308bf597e6adff05c4ce653",
    ]


@pytest.mark.parametrize(
    ("namespace", "keys", "bigram_keys"),
    [
        (
            Namespace(),
            [
                "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
                "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6",
            ],
            [
                "f721fe42aac11dcbfd1a17f24cc5765a0d5b6bc264d1c0b6581d775a7344c11f",
                "c35ad698917936a474f7e55f3a4855eaee20585cd0bf156b1ae3a62666ba7220",
            ],
        ),
        (
            Namespace("lora-7", "tenant-1"),
            [
                "79d2db6b4092f11ffa46786ce8a3206544ad01bddc932288f2a94ad9f89f01f0",
                "e6abeab0c02577e1c0f1adf78dc6292cd0ea30f16780f575756e3c572fc84bab",
            ],
            [
                "23542a6f1e68fa54f95705673967a75e6abe25f9001eecb1a717a9af00cd7bc4",
                "6d1bc2070a1d4fc6e886f1b03619d796cb16b0d05166c61906d9340c59d934b1",
            ],
        ),
    ],
)
def test_keys_equal_those_of_sglang_itself(namespace: Namespace, keys: list[str], bigram_keys: list[str]) -> None:
    # Recorded from the native hash of SGLang 0.5.23 (`srt/mem_cache/cpp_utils/hash_binding.cpp`): tokens 1-9, pages of 4.
    tokens = packed(list(range(1, 10)))
    assert hexes(page_keys(tokens, 4, namespace=namespace)) == keys
    assert hexes(bigram_page_keys(tokens, 4, namespace=namespace)) == bigram_keys


@settings(deadline=None)
@given(token_lists, st.integers(1, 9))
def test_keys_equal_the_definition(ids: list[int], page_tokens: int) -> None:
    assert hexes(page_keys(packed(ids), page_tokens)) == golden(ids, page_tokens)


@settings(deadline=None)
@given(token_lists, st.integers(1, 9))
def test_bigram_keys_equal_the_definition(ids: list[int], page_tokens: int) -> None:
    assert hexes(bigram_page_keys(packed(ids), page_tokens)) == golden(ids, page_tokens, bigram=True)


@settings(deadline=None)
@given(token_lists, st.integers(1, 5), st.text(), st.text())
def test_a_namespace_seeds_the_chain(ids: list[int], page_tokens: int, extra_key: str, cache_salt: str) -> None:
    namespace = Namespace(extra_key, cache_salt)
    seed = namespace_seed(namespace)
    assert seed is not None
    assert hexes(page_keys(packed(ids), page_tokens, namespace=namespace)) == golden(ids, page_tokens, seed)
    assert hexes(bigram_page_keys(packed(ids), page_tokens, namespace=namespace)) == golden(
        ids, page_tokens, seed, bigram=True
    )


@pytest.mark.parametrize("tag", list(SeedTag))
def test_a_seed_hashes_presence_length_and_text(tag: SeedTag) -> None:
    word = {SeedTag.STORAGE: b"sglang-cache-namespace-v1", SeedTag.EVENT: b"sglang-kv-event-namespace-v1"}[tag]
    text = "näme".encode()
    want = {
        Namespace("näme", None): word + b"\x01" + struct.pack("<Q", len(text)) + text + b"\x00",
        Namespace(None, "näme"): word + b"\x00" + b"\x01" + struct.pack("<Q", len(text)) + text,
        Namespace("", None): word + b"\x01" + struct.pack("<Q", 0) + b"\x00",
        Namespace("a", "b"): word + b"\x01" + struct.pack("<Q", 1) + b"a\x01" + struct.pack("<Q", 1) + b"b",
    }
    for namespace, message in want.items():
        assert namespace_seed(namespace, tag=tag) == hashlib.sha256(message).digest()


def test_absent_empty_and_joined_parts_never_meet() -> None:
    spaces = [Namespace(a, b) for a in (None, "", "ab", "a") for b in (None, "", "b", "ab")]
    seeds = [namespace_seed(space, tag=tag) for space in spaces if space != DEFAULT_NAMESPACE for tag in SeedTag]
    assert None not in seeds
    assert len(set(seeds)) == len(seeds)


def test_the_default_namespace_has_no_seed() -> None:
    assert namespace_seed(DEFAULT_NAMESPACE) is None
    tokens = packed([1, 2, 3, 4])
    assert page_keys(tokens, 2, tag=SeedTag.EVENT) == page_keys(tokens, 2, tag=SeedTag.STORAGE)


def test_storage_and_event_chains_of_a_namespace_differ() -> None:
    tokens, namespace = packed([1, 2, 3, 4]), Namespace(cache_salt="tenant")
    assert page_keys(tokens, 2, namespace=namespace) != page_keys(tokens, 2, namespace=namespace, tag=SeedTag.EVENT)


@pytest.mark.parametrize(
    "namespace", [Namespace("lora", None), Namespace(None, "salt"), Namespace("lora", "salt"), Namespace("", "")]
)
def test_event_hashes_bring_the_namespace_in_at_the_end(namespace: Namespace) -> None:
    ids = [5, 6, 7, 8, 9, 10]
    salt = namespace.cache_salt
    start = b"" if salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
    chain = golden(ids, 2, start)
    seed = namespace_seed(namespace, tag=SeedTag.EVENT)
    assert seed is not None
    want = [hashlib.sha256(seed + bytes.fromhex(text[:16])).digest()[:8] for text in chain]
    keys = page_keys(packed(ids), 2, namespace=namespace, tag=SeedTag.EVENT)
    assert hexes(keys) == chain
    assert chain_seed(namespace, tag=SeedTag.EVENT) == (start or None)
    assert event_hashes(keys, namespace).tolist() == [struct.unpack(">q", value)[0] for value in want]


def test_event_hashes_of_the_default_namespace_are_the_first_16_hex_digits() -> None:
    keys = page_keys(packed([1, 2, 3, 4]), 2)
    assert event_hashes(keys).tolist() == [struct.unpack(">q", bytes.fromhex(text[:16]))[0] for text in hexes(keys)]


def test_event_hashes_of_different_namespaces_never_meet() -> None:
    spaces = [Namespace(a, b) for a in (None, "", "a") for b in (None, "", "b")]
    seen = {int(event_hashes(page_keys(bytes(4), 1, namespace=n, tag=SeedTag.EVENT), n)[0]) for n in spaces}
    assert len(seen) == len(spaces)


@settings(deadline=None)
@given(token_lists, st.integers(1, 4), st.integers(0, 10))
def test_a_chain_continued_from_its_parent_is_the_whole_chain(ids: list[int], page_tokens: int, n_pages: int) -> None:
    tokens = packed(ids)
    cut = min(n_pages, len(ids) // page_tokens) * page_tokens * 4
    head = page_keys(tokens[:cut], page_tokens)
    tail = page_keys(tokens[cut:], page_tokens, parent=head[-KEY_BYTES:] if head else None)
    assert head + tail == page_keys(tokens, page_tokens)


@settings(deadline=None)
@given(st.lists(token_lists, max_size=6), st.integers(1, 7), st.booleans())
def test_appending_piece_by_piece_gives_the_keys_of_the_whole(
    pieces: list[list[int]], page_tokens: int, bigram: bool
) -> None:
    namespace = Namespace("adapter", None)
    chain = KeyChain(page_tokens, namespace=namespace, bigram=bigram)
    returned = b"".join(chain.append(packed(piece)) for piece in pieces)
    whole = packed([i for piece in pieces for i in piece])
    hasher = bigram_page_keys if bigram else page_keys
    assert returned == chain.keys == hasher(whole, page_tokens, namespace=namespace)
    assert chain.n_pages * page_tokens + chain.tail_tokens == len(whole) // 4


def test_a_chain_keeps_only_its_incomplete_tail() -> None:
    chain = KeyChain(4)
    chain.append(packed(list(range(4003))))
    assert chain.tail_tokens == 3


def test_a_refused_append_leaves_the_chain_as_it_was() -> None:
    chain = KeyChain(2)
    chain.append(packed([1, 2, 3]))
    before = (chain.keys, chain.tail_tokens)
    with pytest.raises(UsageError, match="6 bytes"):
        chain.append(bytes(6))
    assert (chain.keys, chain.tail_tokens) == before


@settings(deadline=None)
@given(token_lists)
def test_key64_is_the_first_16_hex_digits_and_signed_as_a_view(ids: list[int]) -> None:
    keys = page_keys(packed(ids), 1)
    got = key64(keys)
    assert got.dtype == np.uint64
    assert got.tolist() == [int(text[:16], 16) for text in hexes(keys)]
    signed = [struct.unpack(">q", bytes.fromhex(text[:16]))[0] for text in hexes(keys)]
    assert got.view(np.int64).tolist() == signed


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 4"):
        page_keys(b"abc", 1)
    with pytest.raises(UsageError, match="page_tokens is 0"):
        page_keys(b"", 0)
    with pytest.raises(UsageError, match="parent key has 8 bytes"):
        page_keys(b"", 1, parent=bytes(8))
    with pytest.raises(UsageError, match="31 bytes"):
        key64(bytes(31))

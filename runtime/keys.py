"""Page keys: the names of pages outside this process, byte-compatible with SGLang.

A page key is SHA-256(previous page's 32-byte digest, then this page's token ids as little-endian uint32). A chain in the
default namespace starts from nothing; any other chain starts from a seed that takes the place of the previous digest.
Bigram keys hash, for every unit of a page, the pair (token i, token i+1).

KV events name pages by 64 bits of a chain of their own: `SeedTag.EVENT` keys put through `event_hashes`. In the default
namespace both chains are one and the hash is the first 16 hex digits of the page key.

Source: sgl-project/sglang 0.5.23, `srt/mem_cache/utils.py` (`get_hash_str`, `storage_namespace_seed`,
`hash_str_to_int64`, `compute_node_event_hash_values`) and `srt/disaggregation/kv_events.py` (`kv_event_namespace_seed`,
`namespaced_block_hash`); read in the wheel.

Tokens travel as bytes, 4 a token; keys travel as bytes, 32 a page, concatenated. This module runs in the tokenizer's
thread, incrementally per conversation (`KeyChain`), never in the scheduling loop. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import overload

import numpy as np
import numpy.typing as npt

from hicachectl.errors import InvariantBroken, UsageError

__all__ = [
    "DEFAULT_NAMESPACE",
    "KEY_BYTES",
    "TOKEN_BYTES",
    "KeyChain",
    "KeyRun",
    "Namespace",
    "SeedTag",
    "bigram_page_keys",
    "chain_seed",
    "event_hashes",
    "key64",
    "namespace_seed",
    "page_keys",
]

KEY_BYTES = 32
TOKEN_BYTES = 4


class SeedTag(Enum):
    """What a seed is for. In the default namespace there is none, and both chains are the same."""

    STORAGE = b"sglang-cache-namespace-v1"
    EVENT = b"sglang-kv-event-namespace-v1"


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must match before tokens may be compared. An empty string is present, and so not the same as None."""

    extra_key: str | None = None
    cache_salt: str | None = None


DEFAULT_NAMESPACE = Namespace()


class KeyRun(Sequence[bytes]):
    """Page keys `[start, end)` of concatenated ones, cut out one by one as they are asked for. Pure.

    A prompt of 32,768 pages costs nothing until someone looks, and who stops at the first missing page cuts one key.

    >>> run = KeyRun(bytes(32) + bytes([1]) * 32 + bytes([2]) * 32, 1, 3)
    >>> len(run), run[0][0], [key[0] for key in run], len(run[1:])
    (2, 1, [1, 2], 1)
    """

    __slots__ = ("_end", "_keys", "_start")

    def __init__(self, keys: bytes, start: int, end: int) -> None:
        """Raises InvariantBroken when `keys` does not hold whole keys up to `end`."""
        if not 0 <= start <= end or end * KEY_BYTES > len(keys):
            raise InvariantBroken(f"keys [{start}, {end}) of {len(keys)} bytes", where="page keys")
        self._keys, self._start, self._end = keys, start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes]:
        keys = self._keys
        for at in range(self._start * KEY_BYTES, self._end * KEY_BYTES, KEY_BYTES):
            yield keys[at : at + KEY_BYTES]

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        found = range(self._start, self._end)[at]
        if isinstance(found, range):
            if found.step != 1:
                return [self._keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in found]
            return KeyRun(self._keys, found.start, max(found.start, found.stop))
        return self._keys[found * KEY_BYTES : (found + 1) * KEY_BYTES]


def page_keys(
    tokens: bytes,
    page_tokens: int,
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    parent: bytes | None = None,
    tag: SeedTag = SeedTag.STORAGE,
) -> bytes:
    """Hash the whole pages of a token sequence into chained page keys. Pure.

    `tokens` is little-endian uint32, 4 bytes a token; the incomplete tail is ignored. `page_tokens` >= 1. `parent` is the
    32-byte key of the page before the first token; it already carries its namespace, so `namespace` and `tag` only count
    without it. Returns 32 bytes for each of the len(tokens) // (4 * page_tokens) pages.
    Raises UsageError when a size is impossible.

    >>> page_keys(bytes(8), 1).hex()[:16], len(page_keys(bytes(24), 4))
    ('df3f619804a92fdb', 32)
    """
    _check_sizes(tokens, page_tokens, parent)
    previous = parent if parent is not None else chain_seed(namespace, tag=tag) or b""
    return _chain(tokens, page_tokens * TOKEN_BYTES, previous)


def bigram_page_keys(
    tokens: bytes,
    page_tokens: int,
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    parent: bytes | None = None,
    tag: SeedTag = SeedTag.STORAGE,
) -> bytes:
    """Hash the whole pages of a token sequence as bigrams, as speculative decoding with a draft head needs. Pure.

    Unit i is the pair (token i, token i+1), so n + 1 tokens give n units and (len(tokens) / 4 - 1) // page_tokens keys.
    Arguments, result and errors as `page_keys`.

    >>> len(bigram_page_keys(bytes(4 * 8), 4)), len(bigram_page_keys(bytes(4 * 9), 4))
    (32, 64)
    """
    _check_sizes(tokens, page_tokens, parent)
    previous = parent if parent is not None else chain_seed(namespace, tag=tag) or b""
    return _chain(_bigrams(tokens), 2 * page_tokens * TOKEN_BYTES, previous)


def namespace_seed(namespace: Namespace, *, tag: SeedTag = SeedTag.STORAGE) -> bytes | None:
    """Derive the 32 bytes that stand for a namespace; None for the default namespace. Pure.

    Presence and UTF-8 length are hashed too, so absent, empty and joined parts never meet.

    >>> namespace_seed(DEFAULT_NAMESPACE) is None, len(namespace_seed(Namespace(extra_key="lora-7")))
    (True, 32)
    """
    if namespace.extra_key is None and namespace.cache_salt is None:
        return None
    digest = sha256(tag.value)
    for part in (namespace.extra_key, namespace.cache_salt):
        if part is None:
            digest.update(b"\x00")
            continue
        encoded = part.encode("utf-8")
        digest.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def chain_seed(namespace: Namespace, *, tag: SeedTag = SeedTag.STORAGE) -> bytes | None:
    """Derive the 32 bytes that take the place of the digest before a chain's first page; None when there are none. Pure.

    A storage chain starts from the namespace's seed. An event chain starts from a hash of the salt alone: `event_hashes`
    brings the namespace in at its end.

    >>> chain_seed(Namespace(extra_key="lora-7"), tag=SeedTag.EVENT) is None
    True
    """
    if tag is SeedTag.STORAGE:
        return namespace_seed(namespace)
    if namespace.cache_salt is None:
        return None
    return sha256(b"sglang-cache-salt-v1\0" + namespace.cache_salt.encode("utf-8")).digest()


def event_hashes(keys: bytes, namespace: Namespace = DEFAULT_NAMESPACE) -> npt.NDArray[np.int64]:
    """Turn event-chain keys (32 bytes a page) into the signed block hashes of KV events, int64 [n_pages]. Pure.

    Pages of different namespaces never share one: SGLang's "dynamo" event format. Its plain format leaves `extra_key`
    out, so one hash may name two pages, and a removal would hide the other.

    >>> int(event_hashes(bytes.fromhex("ff" * 7 + "fe" + "00" * 24))[0])
    -2
    """
    plain = key64(keys)
    seed = namespace_seed(namespace, tag=SeedTag.EVENT)
    if seed is None:
        return plain.view(np.int64)
    hashes = (sha256(seed + int(value).to_bytes(8, "big")).digest()[:8] for value in plain)
    return np.frombuffer(b"".join(hashes), dtype=">i8").astype(np.int64)


def key64(keys: bytes) -> npt.NDArray[np.uint64]:
    """Take the first 8 bytes of each page key, big-endian, as native uint64 [n_pages]. Pure.

    A view as int64 is the block hash of KV events: the first 16 hex digits as a signed integer.
    Raises UsageError when `keys` is not a whole number of keys.

    >>> [hex(k) for k in key64(bytes.fromhex("0123456789abcdef" + "00" * 24))]
    ['0x123456789abcdef']
    """
    if len(keys) % KEY_BYTES:
        raise UsageError(f"page keys of {len(keys)} bytes are not a multiple of {KEY_BYTES}")
    return np.frombuffer(keys, dtype=">u8")[:: KEY_BYTES // 8].astype(np.uint64)


class KeyChain:
    """The page keys of one growing conversation.

    Keeps the keys, the last digest and the tokens of the incomplete tail (for bigrams from the first token of the tail
    page on), so that a turn costs its own tokens only. Not safe for two threads at once.

    >>> chain = KeyChain(2)
    >>> len(chain.append(bytes(12))), len(chain.append(bytes(4))), chain.n_pages
    (32, 32, 2)
    """

    __slots__ = ("_bigram", "_keys", "_page_tokens", "_previous", "_tail")

    def __init__(
        self,
        page_tokens: int,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        tag: SeedTag = SeedTag.STORAGE,
        bigram: bool = False,
    ) -> None:
        _check_sizes(b"", page_tokens, None)
        self._page_tokens = page_tokens
        self._bigram = bigram
        self._previous = chain_seed(namespace, tag=tag) or b""
        self._tail = b""
        self._keys = bytearray()

    def append(self, tokens: bytes) -> bytes:
        """Add tokens and return the keys of the pages they completed, 32 bytes each; changes the chain.

        Raises UsageError when `tokens` is not whole tokens; the chain is then unchanged.
        """
        _check_sizes(tokens, self._page_tokens, None)
        waiting = self._tail + tokens
        page_bytes = self._page_tokens * TOKEN_BYTES
        if self._bigram:
            new = _chain(_bigrams(waiting), 2 * page_bytes, self._previous)
        else:
            new = _chain(waiting, page_bytes, self._previous)
        self._tail = waiting[len(new) // KEY_BYTES * page_bytes :]
        if new:
            self._previous = new[-KEY_BYTES:]
            self._keys += new
        return new

    @property
    def keys(self) -> bytes:
        """All keys so far, 32 bytes a page: a copy."""
        return bytes(self._keys)

    @property
    def n_pages(self) -> int:
        """The number of whole pages so far."""
        return len(self._keys) // KEY_BYTES

    @property
    def tail_tokens(self) -> int:
        """The number of tokens held back for the next page (with bigrams, the last token always is)."""
        return len(self._tail) // TOKEN_BYTES


def _chain(data: bytes, page_bytes: int, previous: bytes) -> bytes:
    # A concatenation and one constructor call beat update() up to 2 KiB a page: benchmarks/bench_keys.py.
    digests = []
    for start in range(0, len(data) - page_bytes + 1, page_bytes):
        previous = sha256(previous + data[start : start + page_bytes]).digest()
        digests.append(previous)
    return b"".join(digests)


def _bigrams(tokens: bytes) -> bytes:
    ids = np.frombuffer(tokens, dtype="<u4")
    if len(ids) < 2:
        return b""
    return np.stack((ids[:-1], ids[1:]), axis=1).tobytes()


def _check_sizes(tokens: bytes, page_tokens: int, parent: bytes | None) -> None:
    if page_tokens < 1:
        raise UsageError(f"page_tokens is {page_tokens}", hint="a page has at least 1 token")
    if len(tokens) % TOKEN_BYTES:
        raise UsageError(
            f"token buffer of {len(tokens)} bytes is not a multiple of {TOKEN_BYTES}",
            hint="pass token ids as little-endian uint32",
        )
    if parent is not None and len(parent) != KEY_BYTES:
        raise UsageError(f"parent key has {len(parent)} bytes, a page key has {KEY_BYTES}")

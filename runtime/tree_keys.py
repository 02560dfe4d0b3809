"""Page keys kept sparsely on the nodes of a tree: at most 2 bytes a token, those between hashed again when asked for. Pure.

Page i (absolute, from 0) keeps its 32-byte key when (i + 1) is a multiple of the stride: every page from 16 tokens up, one
in 32 at page 1 (1 byte a token, where slots and tokens take 12 already). A node holds the keys kept of its own pages, concatenated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hicachectl.runtime.keys import KEY_BYTES, namespace_seed, page_keys

if TYPE_CHECKING:
    from hicachectl.runtime.node import Node

__all__ = ["kept_bytes", "keys_of", "stride_of", "trail"]

_ALL_KEYS_FROM_TOKENS = 16
_TOKENS_A_KEY = 32


def stride_of(page_tokens: int) -> int:
    """Return how many pages share one kept key. Pure."""
    return 1 if page_tokens >= _ALL_KEYS_FROM_TOKENS else max(1, _TOKENS_A_KEY // page_tokens)


def kept_bytes(start: int, end: int, stride: int) -> int:
    """Return the bytes of the keys kept of pages `[start, end)`. Pure."""
    return (end // stride - start // stride) * KEY_BYTES


def trail(keys: bytes, start: int, end: int, stride: int) -> bytes:
    """Pick the keys to keep of pages `[start, end)` out of the keys of a whole path (32 bytes each). Pure."""
    if stride == 1:
        return keys[start * KEY_BYTES : end * KEY_BYTES]
    first = (start // stride + 1) * stride - 1
    return np.frombuffer(keys, dtype=f"V{KEY_BYTES}")[first:end:stride].tobytes()


def keys_of(node: Node, start: int, end: int, page_tokens: int, stride: int) -> bytes:
    """Return the page keys (32 bytes each) of pages `[start, end)` of the path (absolute), all inside `node`. Pure."""
    depth = node.depth
    if stride == 1:
        return node.keys[(start - depth) * KEY_BYTES : (end - depth) * KEY_BYTES]
    width = 4 * page_tokens
    anchor = start // stride * stride
    walk: Node = node
    first = max(anchor, walk.depth)
    tokens = walk.tokens[(first - walk.depth) * width : (end - walk.depth) * width]
    while first > anchor:
        assert walk.parent is not None
        walk = walk.parent
        piece = max(anchor, walk.depth)
        tokens = walk.tokens[(piece - walk.depth) * width :] + tokens
        first = piece
    keys = page_keys(tokens, page_tokens, namespace=node.namespace, parent=_digest_before(walk, anchor, stride))
    return keys[(start - anchor) * KEY_BYTES :]


def _digest_before(node: Node, page: int, stride: int) -> bytes | None:
    """Return the digest of page `page - 1`, a multiple of the stride, or the namespace's seed at the root."""
    if page == 0:
        return namespace_seed(node.namespace)
    while node.depth > page - 1:
        assert node.parent is not None
        node = node.parent
    index = page // stride - 1 - node.depth // stride
    return node.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES]

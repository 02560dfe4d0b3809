"""The digest in a document that other commands read back: it tells that values were changed by accident, it proves no author.

    data.data_digest = "sha256:" + SHA-256 of the rest of data as canonical JSON: keys sorted, no spaces, ASCII, a number by its value

so indenting, another order of keys or 1 for 1.0 (as jq may write it) keeps the digest, another value does not. Whoever changes a
value on purpose can write the digest anew. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hicachectl.errors import UsageError

__all__ = ["DIGEST", "digest_of", "require_digest", "with_digest"]

DIGEST = "data_digest"


def digest_of(data: Mapping[str, Any]) -> str:
    """Return the digest of plain data, without the one it holds. Pure.

    >>> digest_of({"a": 1.0, "b": [2]}) == digest_of({"b": [2], "a": 1, "data_digest": "of before"})
    True
    """
    rest = {key: _by_value(value) for key, value in data.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def with_digest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of plain data with its digest. Pure."""
    return {**data, DIGEST: digest_of(data)}


def require_digest(data: Mapping[str, Any], path: str) -> None:
    """Raise UsageError, with both digests and the file, unless `data` holds its own. Pure."""
    found, wanted = data.get(DIGEST), digest_of(data)
    if found != wanted:
        raise UsageError(
            f"data.{DIGEST} is {found!r}, the values in the file give {wanted!r}", where=path,
            why="a value was changed after it was measured, or the file has no digest: nothing may rest on it",
            hint="measure again: hicachectl bench ... -o json --output-file FILE",
        )  # fmt: skip


def _by_value(value: Any) -> Any:
    """Write whole numbers as integers: 1.0 and 1 are the same number to every writer of JSON."""
    if isinstance(value, Mapping):
        return {key: _by_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_by_value(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

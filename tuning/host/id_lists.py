"""The two ways Linux writes a set of CPU or node ids: a list ("0-3,8") and a mask ("ff,00000000"). Pure."""

from __future__ import annotations

__all__ = ["parse_id_list", "parse_id_mask"]

_MAX_ID = 1 << 16
"""More CPUs or nodes than any kernel has (NR_CPUS is at most 8192): a larger number is garbage, not a list to expand."""


def parse_id_list(text: str) -> tuple[int, ...]:
    """Return the ids of a kernel list, sorted, each once; empty text is no ids. Pure. ValueError for anything else.

    >>> parse_id_list("0-2,8")
    (0, 1, 2, 8)
    """
    found: set[int] = set()
    for part in text.replace("\n", "").split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        low = _number(first)
        high = _number(last) if dash else low
        if high < low:
            raise ValueError(f"a range runs backwards: {part!r}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_id_mask(text: str) -> tuple[int, ...]:
    """Return the ids of a kernel mask, 32-bit words with the highest first. Pure. ValueError for anything else.

    >>> parse_id_mask("1,00000003")
    (0, 1, 32)
    """
    value = 0
    for word in text.strip().split(","):
        if len(word) > 8 or not word.isalnum() or not word.isascii():
            raise ValueError(f"not a word of a mask: {word!r}")
        value = value << 32 | int(word, 16)
        if value.bit_length() > _MAX_ID:
            raise ValueError(f"a mask of {value.bit_length()} bits")
    return tuple(bit for bit in range(value.bit_length()) if value >> bit & 1)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) >= _MAX_ID:
        raise ValueError(f"not an id: {text!r}")
    return int(text)

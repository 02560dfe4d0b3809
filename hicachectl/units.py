"""Sizes, rates and times as text and back: a leaf, importable from every layer.

Binary units (KiB to PiB) and decimal ones (kB to PB) are different numbers and are never mixed in one
screen; screens use the binary ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hicachectl.errors import UsageError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "PIB",
    "TIB",
    "counted",
    "format_bytes",
    "format_count",
    "format_rate",
    "format_seconds",
    "parse_counts",
    "parse_size",
    "parse_words",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
PIB = 1 << 50

_UNITS = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "pib": PIB,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB, "p": PIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
}  # fmt: skip
_MOST_DIGITS = 30
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str | int, *, where: str | None = None) -> int:
    """Read a size in bytes. Pure.

    A bare number is bytes; K, M, G, T, P and KiB... are powers of 1024, kB, MB, GB, TB, PB powers of 1000.
    Raises UsageError when it is not a size or not a whole number of bytes.

    >>> parse_size("1.5GiB"), parse_size("2GB"), parse_size(512)
    (1610612736, 2000000000, 512)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise UsageError(f"size {text} is negative", where=where, hint="give a size such as 64GiB")
        return text
    match = _SIZE.fullmatch(str(text))
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        short = match is not None and match.group(2).lower() in ("ki", "mi", "gi", "ti", "pi")
        raise UsageError(
            f"{text!r} is not a size" + (f", {str(text).strip()}B is" if short else ""),
            where=where,
            hint="give a number with KiB, MiB, GiB, TiB, PiB (1024) or kB, MB, GB, TB, PB (1000)",
        )
    number = match.group(1)
    if len(number) > _MOST_DIGITS:
        raise UsageError(
            f"{str(text)[:20]!r}... has {len(number)} digits", where=where, hint="give a size such as 64GiB"
        )
    size = int(number) * unit if "." not in number else float(number) * unit
    if size != int(size):
        raise UsageError(f"{text!r} is not a whole number of bytes", where=where, hint="give a whole number of bytes")
    return int(size)


def parse_counts(text: str, *, where: str, most: int, what: str = "counts") -> tuple[int, ...]:
    """Read a comma-separated list of whole numbers from 1 to `most`, in ASCII digits; sorted, each once. Pure.

    Raises UsageError with the text; `what` names what they are.

    >>> parse_counts("8, 1,8", where="--threads", most=1024)
    (1, 8)
    """
    words = [word.strip() for word in text.split(",")]
    digits = len(str(most))
    good = [
        w
        for w in words
        if w.isascii() and w.isdigit() and len(w.lstrip("0")) <= digits and 1 <= int(w.lstrip("0") or 0) <= most
    ]
    if len(good) < len(words):
        shown = text if len(text) <= 80 else f"{text[:60]}..."
        raise UsageError(f"{shown!r} are no {what}", where=where, why=f"each is from 1 to {most}", hint=f"{where} 1,4")
    return tuple(sorted({int(word.lstrip("0")) for word in good}))


def parse_words(text: str, known: Collection[str], *, where: str, what: str) -> tuple[str, ...]:
    """Read a comma-separated list of words out of `known`, in the order of the text. Pure.

    Raises UsageError with the first that is none of them; `what` names what one is.

    >>> parse_words("d2h, h2d", ("h2d", "d2h"), where="--direction", what="direction")
    ('d2h', 'h2d')
    """
    words = tuple(word.strip() for word in text.split(","))
    unknown = [word for word in words if word not in known]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no {what}", where=where, hint=f"one or more of {', '.join(known)}")
    return words


def format_bytes(n_bytes: float) -> str:
    """Write bytes for a person, binary units, one decimal from KiB up. Pure.

    >>> format_bytes(512), format_bytes(1536), format_bytes(3 * GIB)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    value, sign = abs(n_bytes), "-" if n_bytes < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.95:
            return f"{sign}{value:.0f} {unit}" if unit == "B" else f"{sign}{value:.1f} {unit}"
        value /= 1024
    return f"{sign}{value:.1f} PiB"


def format_rate(bytes_per_s: float) -> str:
    """Write a rate for a person. Pure.

    >>> format_rate(2 * GIB)
    '2.0 GiB/s'
    """
    return format_bytes(bytes_per_s) + "/s"


def format_seconds(seconds: float) -> str:
    """Write a duration for a person. Pure.

    >>> format_seconds(0.0000021), format_seconds(0.0123), format_seconds(75), format_seconds(3.2)
    ('2.1 us', '12.3 ms', '1 min 15 s', '3.2 s')
    """
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def counted(n: int | str, what: str) -> str:
    """Say how many of something there are, in words; text stands for a number that is not known. Pure.

    >>> counted(1, "fact"), counted(0, "fact"), counted(1200, "fact"), counted("?", "node")
    ('1 fact', '0 facts', '1,200 facts', '? nodes')
    """
    number = n if isinstance(n, str) else f"{n:,}"
    return f"{number} {what}{'' if n == 1 else 's'}"


def format_count(n: int) -> str:
    """Write a count with thin groups. Pure.

    >>> format_count(1043212)
    '1 043 212'
    """
    return f"{n:,}".replace(",", " ")

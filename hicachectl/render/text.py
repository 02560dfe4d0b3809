"""Text as a terminal shows it: cells, not characters, and nothing that moves the cursor."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["ascii_text", "cell_width", "pad", "printable", "real_text", "wrap"]

_WORD = re.compile(r"(?<!\S)[^\s\d]?[1-9]\d{0,2}(?: \d{3})+(?!\d)\S*|\S+")
"""A word, or a count as `format_count` writes it: its groups are one number, and the first alone would be another."""

_ASCII = str.maketrans({
    "─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+",
    "█": "#", "▉": "#", "▏": "|", "░": ".", "▒": ":", "▓": "#", "•": "*", "·": ".", "…": "...", "→": "->", "←": "<-",
    "✓": "ok", "✗": "x", "×": "x", "≤": "<=", "≥": ">=", "±": "+-", "µ": "u", "–": "-", "—": "-", "“": '"', "”": '"', "’": "'",
})  # fmt: skip


def cell_width(text: str) -> int:
    """Count terminal cells: wide and full-width characters take two, combining ones none. Pure.

    >>> cell_width("node 6"), cell_width("机房")
    (6, 4)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) or unicodedata.category(c) in ("Cf", "Mn", "Me")
        else 2 if unicodedata.east_asian_width(c) in ("W", "F")
        else 1
        for c in text
    )  # fmt: skip


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill `text` with spaces to `width` cells, on the left when `right` aligned; never cuts. Pure."""
    fill = " " * max(0, width - cell_width(text))
    return fill + text if right else text + fill


def real_text(text: str) -> str:
    r"""Undo the stand-ins Python uses for file-name bytes it could not decode, so that every reader takes the text. Pure.

    UTF-8 names become readable also under LC_ALL=C; bytes that are no UTF-8 become \xNN.

    >>> real_text("\udce6\udc9c\udcba"), real_text("a\udcff")
    ('机', 'a\\xff')
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        try:
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:
            return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""Write `text` so that it takes one line and the stream can encode it: control characters become \xNN. Pure.

    >>> printable("a\x1b[2Jb"), printable("机", "ascii")
    ('a\\x1b[2Jb', '\\u673a')
    """
    text = real_text(text)
    if any(unicodedata.category(c) == "Cc" for c in text):
        text = "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) == "Cc" else c for c in text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def ascii_text(text: str) -> str:
    """Replace the frames and signs this program draws by ASCII ones; names in other scripts stay. Pure."""
    return text.translate(_ASCII)


def wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """Break `text` at spaces into lines of at most `width` cells; a longer word stays whole, and so does a number in groups. Pure.

    The first line has no indent (the caller wrote its label), the next ones start with `indent`.

    >>> wrap("from 14 790 pages on", 9)
    ['from', '14 790', 'pages on']
    """
    lines: list[str] = []
    line, limit = "", width - cell_width(indent)
    for word in _WORD.findall(text):
        longer = f"{line} {word}" if line else word
        if line and cell_width(longer) > limit:
            lines.append(line)
            line = word
        else:
            line = longer
    lines.append(line)
    return [line if i == 0 else indent + line for i, line in enumerate(lines)]

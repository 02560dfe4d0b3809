"""One text stream with its width, colour and encoding: where every line for people goes through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from hicachectl.errors import UsageError
from hicachectl.render.table import Table, layout
from hicachectl.render.text import ascii_text, printable, wrap

__all__ = ["STYLES", "OutputFailed", "Screen", "StdoutClosed"]

STYLES = {"error": "31;1", "warn": "33", "ok": "32", "note": "36", "bold": "1", "dim": "2"}


class StdoutClosed(BaseException):
    """The reader of a stream went away; ends the command quietly with 141. Not an Exception, so no handler eats it."""


class OutputFailed(UsageError):
    """The stream itself cannot take what was written, so nothing more may follow on it."""

    default_code = "HC-OUTPUT"


class Screen:
    """Writes lines to one stream. Lines are encoded safely, flushed one by one, and never cut."""

    def __init__(
        self,
        stream: TextIO,
        *,
        width: int,
        color: bool = False,
        ascii: bool = False,
        wide: bool = False,
        tty: bool = False,
    ) -> None:
        self.stream = stream
        self.width = width
        self.color = color
        self.ascii = ascii
        self.wide = wide
        self.tty = tty
        """Whether somebody looks at a terminal: bars are drawn there alone."""
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    @property
    def is_unicode(self) -> bool:
        """Whether the stream takes every character, so that JSON need not escape. Pure."""
        return self.encoding.lower().replace("-", "").startswith("utf")

    def print(self, text: str = "", style: str | None = None) -> None:
        """Write `text` (may hold newlines) and flush. Raises StdoutClosed when nobody reads."""
        lines = [printable(ascii_text(line) if self.ascii else line, self.encoding) for line in text.split("\n")]
        if style and self.color:
            lines = [f"\x1b[{STYLES[style]}m{line}\x1b[0m" if line else line for line in lines]
        self.write("\n".join(lines) + "\n")

    def paragraph(self, label: str, text: str, style: str | None = None) -> None:
        """Write `label` and `text`, wrapped at the width under the end of the label."""
        lines = wrap(text, self.width, indent=" " * len(label))
        self.print("\n".join([label + lines[0], *lines[1:]]), style)

    def table(self, table: Table, *, indent: str = "") -> None:
        """Write a table that fits the width."""
        for number, line in enumerate(layout(table, self.width - len(indent), wide=self.wide, encoding=self.encoding)):
            self.print(f"{indent}{line}".rstrip(), "bold" if number == 0 else None)

    def lines(self, lines: Iterable[str]) -> None:
        """Write several lines."""
        for line in lines:
            self.print(line)

    def write(self, text: str) -> None:
        """Write text as it is and flush. Raises StdoutClosed when nobody reads, OutputFailed when it cannot be written."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            raise StdoutClosed from None
        except OSError as error:
            raise OutputFailed(
                f"cannot write: {error.strerror}",
                where=str(getattr(self.stream, "name", "the output")).strip("<>"),
                why="the disk behind it is full or gone",
                hint="write somewhere else",
            ) from error

"""A text file that somebody names on the command line, read whole: regular, small, UTF-8. A leaf, importable from every layer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hicachectl.errors import UsageError

__all__ = ["LARGEST_BYTES", "read_input"]

LARGEST_BYTES = 16 << 20
"""More than any result or table of times has."""


def read_input(path: Path, hint: str) -> str:
    """Read the text. Never waits: a device or a pipe without a writer is refused. Raises UsageError with the path and `hint`."""
    try:
        at = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read it: {why}", where=str(path), hint=hint) from error
    try:
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise UsageError(
                "it is no regular file", where=str(path), why="a device or a pipe may never end", hint=hint
            )
        with os.fdopen(at, "rb", closefd=False) as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path), hint=hint) from error
    finally:
        os.close(at)
    if len(content) > LARGEST_BYTES:
        raise UsageError(
            f"it has more than {LARGEST_BYTES} bytes", where=str(path), why="that is the most that is read", hint=hint
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"it is no UTF-8 text: {error}", where=str(path), hint=hint) from error

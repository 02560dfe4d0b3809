"""Bytes that are still being written: a file followed by its name, as `tail -F` does, and standard input.

A file that was replaced (rotated) is read to its end, then the new one from its beginning; one that was cut (copytruncate)
is read from its beginning. Both are told.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.notes import Notes

__all__ = ["READ_BYTES", "FollowedFile", "StandardInput", "Transport"]

READ_BYTES = 1 << 20
"""Bytes taken at a time."""
_LOOK_S = 0.05
_HEAD_BYTES = 64


class Transport(Protocol):
    """Where bytes come from. `ended` says why no more will come, None while they may."""

    @property
    def ended(self) -> str | None: ...
    @property
    def n_bytes(self) -> int: ...
    def read(self, timeout_s: float, most_bytes: int = READ_BYTES) -> tuple[bytes, bool]:
        """Wait up to `timeout_s` for bytes; b"" where none came. True: they begin a new file."""
        ...

    def position(self) -> dict[str, int] | None:
        """Say where the next bytes stand, to go on from there in another process; None where that cannot be."""
        ...

    def close(self) -> None: ...


class FollowedFile:
    """A file by its name. Opened at its beginning; `go_to` moves. Raises UsageError where it cannot be read."""

    ended: str | None = None

    def __init__(
        self,
        path: Path,
        notes: Notes,
        *,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self.path = path
        self.offset = self.n_bytes = 0
        self.n_replaced = self.n_cut = 0
        self._notes, self._clock, self._pause = notes, clock, pause
        self._begins_anew = False
        self._open()

    @property
    def size_bytes(self) -> int:
        """The bytes that are there now."""
        return os.fstat(self._handle).st_size

    def head(self, n_bytes: int) -> bytes:
        """Return the first bytes. Changes nothing."""
        return os.pread(self._handle, n_bytes, 0)

    def first_line(self) -> bytes:
        """Return the first line without its end, as much of it as there is. Changes nothing."""
        line, at = b"", 0
        while piece := os.pread(self._handle, READ_BYTES, at):
            begin, end, _ = piece.partition(b"\n")
            line += begin
            if end:
                break
            at += len(piece)
        return line

    def go_to(self, offset: int) -> bool:
        """Read on from byte `offset`; return whether it is inside a line."""
        self.offset = os.lseek(self._handle, offset, os.SEEK_SET)
        return offset > 0 and os.pread(self._handle, 1, offset - 1) != b"\n"

    def read(self, timeout_s: float, most_bytes: int = READ_BYTES) -> tuple[bytes, bool]:
        """Wait for bytes; as `Transport.read`. Notes a file that was replaced or cut."""
        end = self._clock() + timeout_s
        while True:
            self._look_if_cut()
            piece = os.read(self._handle, most_bytes)
            if piece:
                self.offset += len(piece)
                self.n_bytes += len(piece)
                anew, self._begins_anew = self._begins_anew, False
                self._remember_head()
                return piece, anew
            if self._was_replaced():
                continue
            left = end - self._clock()
            if left <= 0:
                return b"", False
            self._pause(min(_LOOK_S, left))

    def position(self) -> dict[str, int] | None:
        """Return device, inode and offset."""
        device, inode = self._identity
        return {"device": device, "inode": inode, "offset": self.offset}

    def is_at(self, position: dict[str, int]) -> bool:
        """Whether a position of before is one of this very file, and still in it."""
        same = self._identity == (position["device"], position["inode"])
        return same and position["offset"] <= self.size_bytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _open(self) -> None:
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(
                f"cannot follow it: {error.strerror}", where=str(self.path),
                hint="name the file that the engine writes to, - for standard input, or tcp://HOST:PORT of its publisher",
            ) from error  # fmt: skip
        found = os.fstat(self._handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._handle)
            raise UsageError("not a regular file", where=str(self.path), hint="give a pipe as -")
        self._identity = (found.st_dev, found.st_ino)
        self.offset, self._head = 0, b""
        self._remember_head()

    def _remember_head(self) -> None:
        if len(self._head) < _HEAD_BYTES:
            self._head = self.head(_HEAD_BYTES)

    def _look_if_cut(self) -> None:
        if self.size_bytes >= self.offset and self.head(len(self._head)) == self._head:
            return
        self._notes.count("times the file was cut and written anew: read from its beginning", str(self.path))
        self.n_cut += 1
        self.go_to(0)
        self._head, self._begins_anew = b"", True

    def _was_replaced(self) -> bool:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False  # between the two names of a rotation
        if (found.st_dev, found.st_ino) == self._identity or not found.st_size:
            return False  # an empty new one: the writer may still be at the old
        if self.size_bytes > self.offset:
            return True  # written after it was renamed: read that first
        os.close(self._handle)
        self._open()
        self._notes.count("times the file was replaced (rotated): followed on in the new one", str(self.path))
        self.n_replaced += 1
        self._begins_anew = True
        return True


class StandardInput:
    """Bytes of a pipe; nothing of it can be read twice. `handle` is its file descriptor."""

    def __init__(self, handle: int) -> None:
        self.ended: str | None = None
        self.n_bytes = 0
        self._handle = handle

    def read(self, timeout_s: float, most_bytes: int = READ_BYTES) -> tuple[bytes, bool]:
        """Wait for bytes; as `Transport.read`."""
        if self.ended is not None or not select.select([self._handle], [], [], max(0.0, timeout_s))[0]:
            return b"", False
        piece = os.read(self._handle, most_bytes)
        self.n_bytes += len(piece)
        if not piece:
            self.ended = "end of input"
        return piece, False

    def position(self) -> dict[str, int] | None:
        """Return None: a pipe has no place to go back to."""
        return None

    def close(self) -> None:
        """Leave standard input open: it is not ours."""

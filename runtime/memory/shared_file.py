"""What a shared pool says of itself, who holds it, and what a killed process left: all in the file (or memfd) of its memory.

    0                       mapped bytes          + 4096
    | the pool's memory ... | label               |        locks: byte 0 the owner, byte 1 everybody who maps it

The label lies behind the memory, so the pool starts on a huge page. A file gets its name only when it is whole: it has been
labelled and locked by then, and a process killed before leaves nothing. Locks are of the open file (F_OFD_SETLK, Linux 3.15), so the
kernel drops them with the last descriptor, whatever ended the process and in whatever container it ran; a process number tells less.

Nothing is removed but a file that has this label, belongs to this user, is locked by nobody, and still has that name.
Source: fcntl_locking(2), "Open file description locks".
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "LABEL_BYTES",
    "FoundFile",
    "Label",
    "Standing",
    "label_text",
    "lock_as_owner",
    "lock_as_user",
    "look_at_file",
    "owner_holds",
    "read_label",
    "remove_stale",
]

LABEL_BYTES = 4096
_MAGIC = "hicachectl pool"
_VERSION = 1
_OWNER, _USERS = 0, 1
_FLOCK = "@hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, len, pid (include/uapi/asm-generic/fcntl.h)."""

Label = Mapping[str, str | int]
"""What a pool says of itself, by name: `mapped_bytes`, `n_bytes`, `pid`, and what its maker adds."""


def label_text(label: Label) -> bytes:
    """Return the bytes of a label, LABEL_BYTES of them. Pure. Raises ValueError for one that is too long."""
    text = json.dumps({_MAGIC: _VERSION, **label}).encode()
    if len(text) > LABEL_BYTES:
        raise ValueError(f"a label of {len(text)} bytes")
    return text.ljust(LABEL_BYTES, b"\0")


def read_label(fd: int) -> Label | None:
    """Return the label of an open file; None where it has none of this version. Raises OSError."""
    size = os.fstat(fd).st_size
    if size <= LABEL_BYTES:
        return None
    try:
        found = json.loads(os.pread(fd, LABEL_BYTES, size - LABEL_BYTES).rstrip(b"\0"))
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get(_MAGIC) != _VERSION or found.get("mapped_bytes") != size - LABEL_BYTES:
        return None
    return {name: value for name, value in found.items() if name != _MAGIC}


def lock_as_owner(fd: int) -> None:
    """Hold a new file as its owner, and as one who maps it. Raises OSError (EAGAIN) when somebody else does."""
    _lock(fd, fcntl.F_WRLCK, _OWNER)
    lock_as_user(fd)


def lock_as_user(fd: int) -> None:
    """Hold a file as one who maps it, among others. Raises OSError (EAGAIN) while it is being removed."""
    _lock(fd, fcntl.F_RDLCK, _USERS)


def owner_holds(fd: int) -> bool:
    """Whether another descriptor than this one holds the file as its owner. Raises OSError."""
    return _held(fd, _OWNER)


class Standing(Enum):
    """What a name on a tmpfs is to a process that wants to make a pool of it."""

    FREE = "free"
    STALE = "stale"
    """A pool that a killed process left: nobody holds it."""
    IN_USE = "in use"
    FOREIGN = "foreign"
    """Not a pool of this user."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What lies at a name, and in words why it is that."""

    standing: Standing
    words: str = ""


def look_at_file(path: str) -> FoundFile:
    """Say what lies at `path`. Opens it for reading, changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return FoundFile(Standing.FREE)
    except OSError as error:
        return FoundFile(Standing.FOREIGN, f"it cannot be looked at: {error.strerror}")
    try:
        return _look_at(fd)
    finally:
        os.close(fd)


def remove_stale(path: str) -> FoundFile:
    """Remove a pool that a killed process left at `path`, and say what was found there; only STALE is gone afterwards.

    It is locked whole for that, so that nobody can attach to it or take it for stale at the same time.
    """
    found = look_at_file(path)
    if found.standing is not Standing.STALE:
        return found
    try:
        with _locked_whole(path) as fd:
            found = _look_at(fd)
            if found.standing is Standing.STALE and _is_at(path, fd):
                os.unlink(path)
                return found
    except (FileNotFoundError, BlockingIOError):
        return look_at_file(path)
    return found if found.standing is not Standing.STALE else look_at_file(path)


def _look_at(fd: int) -> FoundFile:
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        return FoundFile(Standing.FOREIGN, "it is no regular file")
    label = read_label(fd)
    if label is None:
        return FoundFile(Standing.FOREIGN, "it is no pool of hicachectl")
    if seen.st_uid != os.geteuid():
        return FoundFile(Standing.FOREIGN, f"it is a pool of user {seen.st_uid}, this is user {os.geteuid()}")
    maker = f"process {label.get('pid')}"
    if _held(fd, _OWNER):
        return FoundFile(Standing.IN_USE, f"{maker} made this pool and holds it")
    if _held(fd, _USERS):
        return FoundFile(Standing.IN_USE, f"{maker}, which made this pool, is gone, but another process maps it still")
    return FoundFile(Standing.STALE, f"{maker}, which made this pool, is gone, and nobody maps it")


@contextmanager
def _locked_whole(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        for byte in (_OWNER, _USERS):
            _lock(fd, fcntl.F_WRLCK, byte)
        yield fd
    finally:
        os.close(fd)


def _is_at(path: str, fd: int) -> bool:
    named, opened = os.lstat(path), os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _lock(fd: int, kind: int, byte: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))


def _held(fd: int, byte: int) -> bool:
    """Whether a lock of another open file stands in the way of having this byte alone."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK

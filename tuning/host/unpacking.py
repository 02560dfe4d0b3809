"""The unpacked bytes of an archive of untrusted origin: bounded, and an error where what packs them is cut short or broken."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hicachectl.errors import UsageError

__all__ = ["Counted", "opened", "refused"]

_MAGIC = {b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz"}
_MAX_WINDOW_BYTES = 128 << 20  # what zstd -19 --long=27 writes; bounds the memory of unpacking
_PACKED_BYTES = 512
"""Unpacked at a time: a zstd block of 128 KiB may be packed in 4 bytes, so that more would be gigabytes at once."""


@contextmanager
def opened(path: Path, total_bytes: int) -> Iterator[Counted]:
    """Open an archive packed as its first bytes say (plain, zst, bz2, gz, xz); reads end after `total_bytes` unpacked.

    Reads raise ValueError or EOFError where the packed data is broken or ends early. Raises UsageError for what is no
    file, empty, or over the bound, and OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place must not hang us
    with open(handle, "rb") as raw:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise refused(path, "it is not a regular file")
        head = raw.read(8)
        raw.seek(0)
        if not head:
            raise refused(path, "it is an empty file of 0 bytes")
        kind = next((k for magic, k in _MAGIC.items() if head.startswith(magic)), "tar")
        with _unpacked(raw, kind, path) as stream:
            yield Counted(stream, total_bytes, path)


def refused(path: Path, why: str) -> UsageError:
    """Return the error of an archive that is not used, and why. Pure."""
    return UsageError(
        "not used as a recorded host",
        where=str(path),
        why=why,
        hint="make one with: hicachectl topo snapshot FILE.tar.zst",
    )


class Counted:
    """A stream that stops when more comes out of it than allowed: a small archive can unpack to anything."""

    def __init__(self, stream: IO[bytes], limit: int, path: Path) -> None:
        self._stream, self._left, self._path, self._limit = stream, limit, path, limit

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` unpacked bytes. Raises UsageError over the bound."""
        piece = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(piece)
        if self._left < 0:
            raise refused(self._path, f"it unpacks to more than {self._limit:,} bytes")
        return piece


def _unpacked(raw: IO[bytes], kind: str, path: Path) -> Any:
    if kind == "zst":
        try:
            import zstandard
        except ImportError as error:
            raise UsageError(
                "a .zst archive needs the library zstandard", where=str(path), why="it is not installed",
                hint="pip install zstandard, or unpack it elsewhere and give the folder to --root",
            ) from error  # fmt: skip
        return _Quiet(_Frames(raw, zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)), zstandard.ZstdError)
    if kind == "bz2":
        import bz2

        return _Quiet(bz2.BZ2File(raw), OSError)
    if kind == "gz":
        import gzip
        import zlib

        return _Quiet(gzip.GzipFile(fileobj=raw), OSError, zlib.error)
    if kind == "xz":
        import lzma

        return _Quiet(lzma.LZMAFile(raw), lzma.LZMAError)
    return _Quiet(raw)


class _Frames:
    """Unpacks zstd frames and says when the last one does not end: the library's own stream takes that for the end."""

    def __init__(self, raw: IO[bytes], unpacker: Any) -> None:
        self._raw, self._unpacker = raw, unpacker
        self._frame: Any = None
        self._packed, self._ready = b"", b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none only at the end of the last frame. Raises ValueError where it is cut short."""
        while not self._ready:
            self._packed = self._packed or self._raw.read(_PACKED_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise ValueError("it is cut short: its zstd frame does not end")
                return b""
            if self._frame is None:
                self._frame = self._unpacker.decompressobj()
            self._ready, self._packed = self._frame.decompress(self._packed), b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def close(self) -> None:
        """Forget what is unpacked; the file is its opener's to close."""
        self._packed, self._ready = b"", b""


class _Quiet:
    """A decompressor whose complaints about broken data are ValueError."""

    def __init__(self, stream: Any, *errors: type[Exception]) -> None:
        self._stream, self._errors = stream, errors

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stream.close()

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except self._errors as error:
            raise ValueError(str(error)) from error

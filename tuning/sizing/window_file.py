"""The requests of a window as they come, in a trace/1 that only grows: a killed run loses at most the line it was writing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.trace1 import trace1_header, trace1_line
from hicachectl.tuning.sizing.whole_lines import whole_bytes, write_all
from hicachectl.tuning.state import fsync_folder, no_room

__all__ = ["WindowFile", "check_seal", "seal_of"]


class WindowFile:
    """Appends requests whose blocks are page keys. 0600: lengths, times and keys, no text. Not thread-safe."""

    def __init__(self, path: Path, handle: int, n_bytes: int) -> None:
        self.path = path
        self.n_bytes = n_bytes
        self._handle = handle

    @classmethod
    def begin(cls, path: Path, block_tokens: int, *, partial: bool) -> WindowFile:
        """Make the file with its header, durable before it returns. Raises HostError where it cannot be written."""
        file = cls(path, _opened(path, os.O_CREAT | os.O_EXCL), 0)
        file._write(trace1_header(block_tokens, partial=partial))
        file.sync()
        fsync_folder(path.parent)
        return file

    @classmethod
    def go_on(cls, path: Path, n_bytes: int | None = None) -> WindowFile:
        """Open a file again, cut to `n_bytes` (None: to its whole lines). Changes it. Raises HostError."""
        handle = _opened(path, 0)
        try:
            whole = whole_bytes(handle)
            kept = whole if n_bytes is None else min(n_bytes, whole)
            os.ftruncate(handle, kept)
            os.fsync(handle)
        except OSError as error:
            os.close(handle)
            raise no_room("the window", path, error) from error
        return cls(path, handle, kept)

    def append(self, requests: Iterable[TraceRequest]) -> None:
        """Write requests, whole lines at once; `sync` makes them durable. Raises HostError."""
        lines = b"".join(trace1_line(request) for request in requests)
        if lines:
            self._write(lines)

    def sync(self) -> None:
        """Make all that was appended durable. Raises HostError."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise no_room("the window", self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._handle, data)
        except OSError as error:
            raise no_room("the window", self.path, error) from error
        self.n_bytes += len(data)


def seal_of(path: Path) -> dict[str, Any]:
    """Return `bytes` and `sha256` of a file, as they are recorded of a complete window. Reads it. Raises OSError."""
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            n_bytes += len(block)
    return {"bytes": n_bytes, "sha256": digest.hexdigest()}


def check_seal(path: Path, recorded: Mapping[str, Any]) -> None:
    """Read a complete window again. Raises UsageError with both values where it is not the one that was recorded."""
    hint = "collect a new window: start without --resume"
    try:
        found = seal_of(path)
    except OSError as error:
        raise UsageError(f"the window is gone: {error.strerror}", where=str(path), hint=hint) from error
    for name in ("bytes", "sha256"):
        if found[name] != recorded[name]:
            raise UsageError(
                f"the window has {name} {found[name]}, recorded were {recorded[name]}", where=str(path),
                why="it was cut or changed since it was complete", hint=hint,
            )  # fmt: skip


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError as error:
        raise no_room("the window", path, error) from error

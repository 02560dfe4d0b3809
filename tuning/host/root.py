"""Where facts are read from: the live host, a recorded folder, or a snapshot archive. Every read goes through here.

A root never raises for a file that is missing, unreadable or odd: the answer is a `Fact` whose reason says which. It
remembers every file, folder and link it was asked for, so that a snapshot holds exactly what the readers read.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hicachectl.tuning.host.facts import Fact, known, unknown

__all__ = ["HostRoot", "Touched"]

_MAX_TEXT_BYTES = 1 << 20


@dataclass(slots=True)
class Touched:
    """What was asked for, by absolute path inside the root."""

    files: dict[str, int] = field(default_factory=dict)
    """path -> bytes read"""
    folders: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


class HostRoot:
    """A host's file tree. `path` is "/" for the live host; `name` is None for it and the recording's name otherwise."""

    def __init__(self, path: Path = Path("/"), *, name: str | None = None) -> None:
        self.path = path
        self.name = name
        self.touched = Touched()

    @property
    def is_live(self) -> bool:
        """Whether this is the running host: only then may a reader call the kernel."""
        return self.name is None

    def at(self, path: str) -> Path:
        """Return the real path of an absolute path of the host, for writers and messages."""
        return self.path / path.lstrip("/")

    def text(self, path: str) -> Fact[str]:
        """Read a small text file, stripped. Undecodable bytes become backslash escapes."""
        raw = self.data(path, _MAX_TEXT_BYTES)
        return raw.then(lambda found: found.decode("utf-8", errors="backslashreplace").strip())

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        """Read up to `n_bytes` from the start of a file with one open and unbuffered reads."""
        try:
            handle = os.open(self.at(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return unknown(path, self._why(path, error))
        try:
            pieces, left = [], n_bytes
            while left > 0:
                piece = os.read(handle, left)
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
        except OSError as error:
            return unknown(path, self._why(path, error))
        finally:
            os.close(handle)
        found = b"".join(pieces)
        self.touched.files[path] = max(self.touched.files.get(path, 0), len(found))
        return known(found, path)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        """List a folder, sorted."""
        try:
            found = tuple(sorted(os.listdir(self.at(path))))
        except OSError as error:
            return unknown(path, self._why(path, error))
        self.touched.folders.add(path)
        return known(found, path)

    def link(self, path: str) -> Fact[str]:
        """Return where a symbolic link points, as written in it."""
        try:
            found = os.readlink(self.at(path))
        except OSError as error:
            return unknown(path, self._why(path, error))
        self.touched.links.add(path)
        return known(found, path)

    def resolve(self, path: str) -> Fact[str]:
        """Follow one link and return the absolute path inside the root it points to, without leaving the root."""
        target = self.link(path)
        if target.value is None:
            return target
        parts: list[str] = []
        joined = PurePosixPath(path).parent / target.value
        for part in joined.parts[1:]:
            if part == "..":
                if parts:
                    parts.pop()
            elif part != ".":
                parts.append(part)
        return known("/" + "/".join(parts), path)

    def exists(self, path: str) -> bool:
        """Whether something is there; what cannot be looked at counts as not there."""
        there = os.path.lexists(self.at(path))
        if not there:
            self.touched.missing.add(path)
        return there

    def _why(self, path: str, error: OSError) -> str:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            self.touched.missing.add(path)
            return "no such file"
        if error.errno in (errno.EACCES, errno.EPERM):
            return "permission denied"
        return os.strerror(error.errno) if error.errno else str(error)

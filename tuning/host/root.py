"""Where facts are read from: the live host, a recorded folder, or a snapshot archive. Every read goes through here.

A root never raises for a file that is missing, unreadable or odd: the answer is a `Fact` whose reason says which. It
remembers every file, folder and link it was asked for, so that a snapshot holds exactly what the readers read.

A recording is untrusted: its links are followed inside it, as a chroot would (an absolute target starts at the recording's
top, `..` stops there), and what is neither a file nor a folder is not opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicachectl.tuning.host.facts import Fact, known, unknown

__all__ = ["NO_SUCH_FILE", "HostRoot", "Touched"]

NO_SUCH_FILE = "no such file"

_MAX_TEXT_BYTES = 8 << 20
"""A mount table or a zoneinfo of a host with a thousand CPUs stays below; what is longer is no settings file."""
_READ_BYTES = 64 << 10  # the kernel answers a page at a time; a larger buffer only costs its allocation
_MAX_LINKS = 40  # the kernel's own limit (MAXSYMLINKS, include/linux/namei.h)


@dataclass(slots=True)
class Touched:
    """What was asked for, by absolute path inside the root."""

    files: dict[str, int] = field(default_factory=dict)
    """path -> bytes read"""
    folders: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    woken: bool = False
    """Whether sleeping devices were read too."""


class HostRoot:
    """A host's file tree. `path` is "/" for the live host; `name` is None for it and the recording's name otherwise."""

    def __init__(self, path: Path = Path("/"), *, name: str | None = None) -> None:
        self.path = path
        self.name = name
        self.touched = Touched()
        self.probes: Mapping[str, Fact[Any]] = {}
        """Recorded facts that no file holds, by their place in the model (`places.py`)."""
        self.is_awake = False
        """Whether this is a recording that was made with sleeping devices awake: reading them wakes nothing."""
        self.collected_at: str | None = None
        """When it was recorded, UTC, where the recording says so."""
        self._top = os.fspath(path).rstrip("/")
        self._folders: dict[str, str] = {}

    @property
    def is_live(self) -> bool:
        """Whether this is the running host: only then may a reader call the kernel."""
        return self.name is None

    def at(self, path: str) -> Path:
        """Return the real path of an absolute path of the host, for writers and messages; of a recording, inside it.

        Raises OSError where a recording's links go round in circles.
        """
        return Path(self._real(path))

    def newest_s(self) -> float | None:
        """Date of a recorded folder, seconds since 1970; None where it cannot be read."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def text(self, path: str) -> Fact[str]:
        """Read a small text file, stripped. Undecodable bytes become backslash escapes; kernels of 2010 end node lists with a NUL."""
        raw = self.data(path, _MAX_TEXT_BYTES + 1)
        if raw.value is not None and len(raw.value) > _MAX_TEXT_BYTES:
            return unknown(path, f"longer than {_MAX_TEXT_BYTES >> 20} MiB")
        return raw.then(lambda found: found.rstrip(b"\0").decode("utf-8", errors="backslashreplace").strip())

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        """Read up to `n_bytes` from the start of a file with one open and unbuffered reads."""
        try:
            handle = self._open(path)
        except (OSError, ValueError) as error:
            return unknown(path, self._why(path, error))
        try:
            pieces, left = [], n_bytes
            while left > 0:
                piece = os.read(handle, min(left, _READ_BYTES))
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

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        """Read up to `n_bytes` at an offset with one read: what lies between pieces is not touched."""
        try:
            handle = self._open(path)
        except (OSError, ValueError) as error:
            return unknown(path, self._why(path, error))
        try:
            found = os.pread(handle, n_bytes, offset)
        except OSError as error:
            return unknown(path, self._why(path, error))
        finally:
            os.close(handle)
        self.touched.files[path] = max(self.touched.files.get(path, 0), offset + len(found))
        return known(found, path)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        """List a folder, sorted."""
        try:
            found = tuple(sorted(os.listdir(self._real(path))))
        except (OSError, ValueError) as error:
            return unknown(path, self._why(path, error))
        self.touched.folders.add(path)
        return known(found, path)

    def link(self, path: str) -> Fact[str]:
        """Return where a symbolic link points, as written in it."""
        try:
            found = os.readlink(self._real(path, last=False))
        except (OSError, ValueError) as error:
            return unknown(path, self._why(path, error))
        self.touched.links.add(path)
        return known(found, path)

    def resolve(self, path: str) -> Fact[str]:
        """Follow one link and return the absolute path inside the root it points to, without leaving the root.

        The folder the link lies in is followed first, for `..` in a target counts from where the link really is:
        `/sys/class/net/eth0/device` lies below the device, not below `/sys/class`.
        """
        target = self.link(path)
        if target.value is None:
            return target
        folder = path.rpartition("/")[0]
        try:
            parts = [] if target.value.startswith("/") else self._walk(folder)[1].split("/")[1:]
        except (OSError, ValueError) as error:
            return unknown(path, self._why(path, error))
        for part in target.value.split("/"):
            if part == "..":
                if parts:
                    parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return known("/" + "/".join(parts), path)

    def exists(self, path: str) -> bool:
        """Whether something is known to be there; what may not be looked at is not. `there` tells the two apart."""
        return self.there(path).value is True

    def there(self, path: str) -> Fact[bool]:
        """Look whether something is there; unknown with the reason where that may not be looked at."""
        try:
            os.lstat(self._real(path, last=False))
        except (OSError, ValueError) as error:
            reason = self._why(path, error)
            return known(False, path) if reason == NO_SUCH_FILE else unknown(path, reason)
        return known(True, path)

    def _open(self, path: str) -> int:
        if self.is_live:
            return os.open(f"{self._top}/{path.lstrip('/')}", os.O_RDONLY | os.O_CLOEXEC)
        # never blocks on a recorded pipe, never follows a link put there meanwhile
        handle = os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(handle).st_mode) and not stat.S_ISDIR(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.ENXIO, "neither a file nor a folder")
        return handle

    def _real(self, path: str, *, last: bool = True) -> str:
        """Return the path for the system calls. `last` says whether a link at its end is followed too.

        The live host needs nothing: its links are the kernel's to follow.
        """
        if self.is_live:
            return f"{self._top}/{path.lstrip('/')}"
        if last:
            return self._top + self._walk(path)[0] or "/"
        folder, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return self._top + self._walk(path)[0] or "/"
        return f"{self._top}{self._walk(folder)[0].rstrip('/')}/{name}"

    def _walk(self, path: str) -> tuple[str, str]:
        """Follow every link of `path` inside the root; twice the absolute path in it, the second without a trailing slash.

        Folders already followed are remembered. Raises OSError (ELOOP) after 40 links, as the kernel does.
        """
        folder, _, name = path.rstrip("/").rpartition("/")
        known_folder = self._folders.get(folder)
        if known_folder is None:
            known_folder = self._follow("", folder.split("/"))
            self._folders[folder] = known_folder
        found = self._follow(known_folder, [name])
        return found or "/", found

    def _follow(self, start: str, parts: list[str]) -> str:
        done, waiting, n_links = start, parts[::-1], 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            try:
                target = os.readlink(f"{self._top}{done}/{part}")
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                    raise
                done = f"{done}/{part}"  # not a link, or not there: the call that follows says so
                continue
            n_links += 1
            if n_links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith("/"):
                done = ""
            waiting.extend(target.split("/")[::-1])
        return done

    def _why(self, path: str, error: OSError | ValueError) -> str:
        if not isinstance(error, OSError):
            return f"not a path: {error}"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            self.touched.missing.add(path)
            return NO_SUCH_FILE
        if error.errno in (errno.EACCES, errno.EPERM):
            return "permission denied"
        return error.strerror or str(error)

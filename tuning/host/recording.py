"""A root that keeps what is read through it, so that a snapshot holds those very bytes and not a second look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hicachectl.tuning.host.aliases import Aliases
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.privacy import is_private, public, public_names, public_target
from hicachectl.tuning.host.root import HostRoot

__all__ = ["NOT_RECORDED", "RecordingRoot"]

NOT_RECORDED = "left out of a snapshot"


class RecordingRoot(HostRoot):
    """Reads through another root and remembers every answer; a path is read once and answers the same ever after.

    Private content is removed before a reader sees it: what is read here is what a replay reads.
    """

    def __init__(self, inner: HostRoot) -> None:
        super().__init__(inner.path, name=inner.name)
        self.inner = inner
        self.touched = inner.touched
        self.probes = inner.probes
        self.is_awake = inner.is_awake
        self.collected_at = inner.collected_at
        self.files: dict[str, bytes] = {}
        self.listings: dict[str, tuple[str, ...]] = {}
        self.targets: dict[str, str] = {}
        self.refused: dict[tuple[str, str], str] = {}
        """(file | piece at OFFSET | folder | link | there, path) -> why it could not be read.

        A file that is simply missing is not in it: it is not there in the replay either.
        """
        self.aliases = Aliases()
        """What stands for private names in what was read: readers ask by aliases, the inner root by the real names."""
        self._asked_bytes: dict[str, int] = {}
        self._whole: set[str] = set()
        self._pieces: dict[tuple[str, int, int], bytes] = {}
        self._there: dict[str, Fact[bool]] = {}

    def at(self, path: str) -> Path:
        """Return the real path under the inner root."""
        return self.inner.at(self.aliases.real(path))

    def newest_s(self) -> float | None:
        """Date of the inner root's files, seconds since 1970."""
        return self.inner.newest_s()

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        """Read a file once, and answer from memory afterwards unless more of it is asked for."""
        if is_private(path):
            self.refused["file", path] = NOT_RECORDED
            return unknown(path, NOT_RECORDED)
        if ("file", path) in self.refused:
            return self._again("file", path)
        if path in self.files and (n_bytes <= self._asked_bytes[path] or path in self._whole):
            return known(self.files[path][:n_bytes], path)
        found = self.inner.data(self.aliases.real(path), n_bytes)
        if found.value is None:
            return self._refused("file", path, found)
        if len(found.value) < n_bytes:
            self._whole.add(path)
        cleaned = public(path, found.value, self.aliases)
        self.files[path], self._asked_bytes[path] = cleaned, n_bytes
        return known(cleaned, path)

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        """Read a piece of a file once. Of what lies between pieces nothing is recorded: it reads as zero."""
        if (path, offset, n_bytes) in self._pieces:
            return known(self._pieces[path, offset, n_bytes], path)
        if (f"piece at {offset:#x}", path) in self.refused:
            return self._again(f"piece at {offset:#x}", path)
        found = self.inner.piece(self.aliases.real(path), offset, n_bytes)
        if found.value is None:
            return self._refused(f"piece at {offset:#x}", path, found)
        self._pieces[path, offset, n_bytes] = found.value
        return known(found.value, path)

    def contents(self) -> dict[str, bytes]:
        """Every recorded file, its pieces put in their places."""
        files = dict(self.files)
        for (path, offset, _), content in sorted(self._pieces.items()):
            whole = bytearray(files.get(path, b"")).ljust(offset, b"\0")
            whole[offset : offset + len(content)] = content
            files[path] = bytes(whole)
        return files

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        """List a folder once."""
        if path in self.listings:
            return known(self.listings[path], path)
        if ("folder", path) in self.refused:
            return self._again("folder", path)
        found = self.inner.names(self.aliases.real(path))
        if found.value is None:
            return self._refused("folder", path, found)
        self.listings[path] = public_names(found.value)
        return known(self.listings[path], path)

    def link(self, path: str) -> Fact[str]:
        """Read a link once."""
        if path in self.targets:
            return known(self.targets[path], path)
        if ("link", path) in self.refused:
            return self._again("link", path)
        found = self.inner.link(self.aliases.real(path))
        if found.value is None:
            return self._refused("link", path, found)
        self.targets[path] = public_target(path, found.value)
        return known(self.targets[path], path)

    def there(self, path: str) -> Fact[bool]:
        """Look once whether something is there."""
        if path not in self._there:
            found = self.inner.there(self.aliases.real(path))
            self._there[path] = self._refused("there", path, found) if found.value is None else known(found.value, path)
        return self._there[path]

    @property
    def present(self) -> tuple[str, ...]:
        """Paths that were only asked whether they exist, and do."""
        return tuple(sorted(path for path, there in self._there.items() if there.value))

    def _again(self, kind: str, path: str) -> Fact[Any]:
        return unknown(path, self.refused[kind, path])

    def _refused(self, kind: str, path: str, found: Fact[Any]) -> Fact[Any]:
        """Remember why something was not read; the answer speaks of `path`, not of the real one.

        What goes while it is read may be missing in one way and recorded in another, as a link whose files were still there.
        """
        missing = self.aliases.real(path) in self.inner.touched.missing
        if found.reason is not None and not (missing and kind in ("file", "there")):
            self.refused[kind, path] = found.reason
        return replace(found, source=path)

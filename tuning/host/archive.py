"""A recorded host in an archive, read into memory as untrusted data: nothing of it ever touches the file system.

Taken: regular files, folders, and relative links that stay inside. Left aside and counted: devices, pipes, hard links,
links that lead out. Refused as a whole: a member whose name leads out, and an archive over one of the bounds below.
"""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hicachectl.errors import UsageError
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import NO_SUCH_FILE, HostRoot
from hicachectl.tuning.host.unpacking import Counted, opened, refused

__all__ = ["Bounds", "MemoryRoot", "Tree", "read_archive", "stays_inside"]

_MAX_TIME_S = 1e11  # later than any clock's year
_MAX_LINKS = 40  # as the kernel allows in one path


@dataclass(frozen=True)
class Bounds:
    """How much an archive may hold: all of a 500-function host is a few MiB, so these are far away from any real one."""

    members: int = 200_000
    """Files, links and folders, those that are only in a name included."""
    file_bytes: int = 16 << 20
    total_bytes: int = 256 << 20
    """Unpacked, headers and padding included."""
    name_bytes: int = 4096
    """Of a name, and of a link's target."""
    depth: int = 64
    """Parts of a name; a link's target may have twice as many, to climb and to descend."""
    path_bytes: int = 16 << 20
    """All absolute names together: a folder's own is kept for each."""

    def against_name(self, path: str) -> str | None:
        """Say why a member's absolute name is not taken; None where it may be. Pure."""
        if len(path) > self.name_bytes:
            return f"a member's name has {len(path):,} characters"
        n_parts = path.count("/")
        return f"a name has {n_parts} parts, over {self.depth}: {path[:40]}" if n_parts > self.depth else None

    def against_target(self, target: str) -> str | None:
        """Say why a link's target is not taken; None where it may be. Pure."""
        if len(target) > self.name_bytes:
            return f"a link's target has {len(target):,} characters"
        n_parts = sum(part not in ("", ".") for part in target.split("/"))
        return f"a link's target has {n_parts} parts, over {2 * self.depth}" if n_parts > 2 * self.depth else None

    def against_tree(self, tree: Tree) -> str | None:
        """Say why no more is taken into a tree; None where more may be. Pure."""
        if tree.n_names > self.members:
            return f"it has more than {self.members:,} files, links and folders"
        if tree.path_bytes > self.path_bytes:
            return f"it has names of more than {self.path_bytes:,} bytes"
        return None


@dataclass
class Tree:
    """Files, links and folders by absolute path; `skipped` counts what was left aside, by what it was."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: dict[str, set[str]] = field(default_factory=lambda: {"/": set()})
    skipped: dict[str, int] = field(default_factory=dict)
    newest_s: float = 0.0
    """Newest modification time among the files, seconds since 1970."""
    n_names: int = 0
    path_bytes: int = 0
    """How many names were added, folders above them included, and how long they are as absolute names."""
    _followed: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Folder -> where it is with every link followed."""

    def add_folder(self, path: str) -> None:
        """Add a folder and those above it. Changes the tree."""
        while path not in self.folders:
            self.folders[path] = set()
            self._added(path)
            above, _, name = path.rpartition("/")
            above = above or "/"
            if above in self.folders:
                self.folders[above].add(name)
                return
            self.add_folder(above)
            self.folders[above].add(name)

    def add_file(self, path: str, content: bytes) -> None:
        """Add a file, replacing what had its name. Changes the tree."""
        self._add_name(path)
        self.files[path] = content

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link, replacing what had its name. Changes the tree."""
        self._add_name(path)
        self.links[path] = target

    def below(self, path: str) -> Tree:
        """Return the part under a folder, which becomes its root. Does not modify this tree."""
        if path == "/":
            return self
        part = Tree(skipped=self.skipped, newest_s=self.newest_s)
        start = len(path)
        part.files = {p[start:]: c for p, c in self.files.items() if p.startswith(path + "/")}
        part.links = {p[start:]: t for p, t in self.links.items() if p.startswith(path + "/")}
        part.folders = {p[start:] or "/": n for p, n in self.folders.items() if p == path or p.startswith(path + "/")}
        return part

    def skip(self, kind: str) -> None:
        """Count one member that is left aside. Changes the tree."""
        self.skipped[kind] = self.skipped.get(kind, 0) + 1

    def real(self, path: str, *, last: bool = True) -> str:
        """Follow the links in a path, the last part only when `last`. Raises OSError as the kernel would.

        Folders already followed are remembered.
        """
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._followed.get(above)
        if folder is None:
            folder = self._followed[above] = self._follow("/", above, last=True)
        return self._follow(folder, name, last=last)

    def _follow(self, here: str, path: str, *, last: bool) -> str:
        parts = [p for p in reversed(path.split("/")) if p and p != "."]
        followed = 0
        while parts:
            part = parts.pop()
            if part == "..":
                here = here.rpartition("/")[0] or "/"
                continue
            if part == ".":
                continue
            names = self.folders.get(here)
            if names is None:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if part not in names:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            there = f"{here}/{part}" if here != "/" else f"/{part}"
            target = self.links.get(there)
            if target is None or (not parts and not last):
                here = there
                continue
            followed += 1
            if followed > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            here = "/" if target.startswith("/") else here
            parts.extend(p for p in reversed(target.split("/")) if p)
        return here

    def made(self, path: str) -> str:
        """Follow the links above the last part of a path and make the folders that are not there. Changes the tree."""
        above, _, name = path.rpartition("/")
        here, waiting, followed = "/", [p for p in reversed(above.split("/")) if p], 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                here = here.rpartition("/")[0] or "/"
                continue
            there = f"{here}/{part}" if here != "/" else f"/{part}"
            if there in self.links and followed < _MAX_LINKS:
                followed += 1
                target = self.links[there]
                here = "/" if target.startswith("/") else here
                waiting.extend(p for p in reversed(target.split("/")) if p and p != ".")
            else:
                self.add_folder(there)
                here = there
        return f"{here}/{name}" if here != "/" else f"/{name}"

    def _add_name(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        self.add_folder(above or "/")
        self.folders[above or "/"].add(name)
        self.files.pop(path, None)
        self.links.pop(path, None)
        self._added(path)

    def _added(self, path: str) -> None:
        self.n_names += 1
        self.path_bytes += len(path)
        self._followed.clear()


class MemoryRoot(HostRoot):
    """A recorded host held in memory.

    `refused`: why a (file | piece at OFFSET | folder | link | there, path) could not be read when it was recorded. `listings`: the names of
    folders as they were, also of entries that were not recorded. `present`: paths that were there, no more known.
    `probes`: facts that no file holds, by their place in the model. `collected_at`: UTC, when it was recorded. `is_awake`:
    sleeping devices were read too.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        name: str,
        refused: Mapping[tuple[str, str], str] | None = None,
        listings: Mapping[str, tuple[str, ...]] | None = None,
        present: frozenset[str] = frozenset(),
        probes: Mapping[str, Fact[Any]] | None = None,
        collected_at: str | None = None,
        is_awake: bool = False,
    ) -> None:
        super().__init__(Path("/"), name=name)
        self.tree = tree
        self.refused = refused or {}
        self.listings = listings or {}
        self.present = present
        self.probes = probes or {}
        self.collected_at = collected_at
        self.is_awake = is_awake

    def newest_s(self) -> float | None:
        """Newest date among the recorded files, seconds since 1970; None where the archive has none."""
        return self.tree.newest_s if 0 < self.tree.newest_s < _MAX_TIME_S else None

    def _walk(self, path: str) -> tuple[str, str]:
        real = self.tree.real(path)
        return real, "" if real == "/" else real

    def at(self, path: str) -> Path:
        """Return the path inside the recording: there is no real one. Pure."""
        return Path(path)

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        """Read up to `n_bytes` from the start of a recorded file."""
        if ("file", path) in self.refused:
            return unknown(path, self.refused["file", path])
        try:
            real = self.tree.real(path)
            content = self.tree.files.get(real)
            if content is None:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            return unknown(path, self._why(path, error))
        found = content[:n_bytes]
        self.touched.files[path] = max(self.touched.files.get(path, 0), len(found))
        return known(found, path)

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        """Read up to `n_bytes` at an offset of a recorded file."""
        kind = f"piece at {offset:#x}"
        if (kind, path) in self.refused:
            return unknown(path, self.refused[kind, path])
        return self.data(path, offset + n_bytes).then(lambda found: found[offset:])

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        """List a recorded folder, sorted."""
        if ("folder", path) in self.refused:
            return unknown(path, self.refused["folder", path])
        if path in self.listings:
            return known(self.listings[path], path)
        try:
            there = self.tree.folders.get(self.tree.real(path))
            if there is None:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            return unknown(path, self._why(path, error))
        self.touched.folders.add(path)
        return known(tuple(sorted(there)), path)

    def link(self, path: str) -> Fact[str]:
        """Return where a recorded link points, as written in it."""
        if ("link", path) in self.refused:
            return unknown(path, self.refused["link", path])
        try:
            target = self.tree.links.get(self.tree.real(path, last=False))
            if target is None:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        except OSError as error:
            return unknown(path, self._why(path, error))
        self.touched.links.add(path)
        return known(target, path)

    def there(self, path: str) -> Fact[bool]:
        """Whether something was recorded there, or listed; unknown where it could not be looked at then."""
        if ("there", path) in self.refused:
            return unknown(path, self.refused["there", path])
        if path in self.present:
            return known(True, path)
        try:
            self.tree.real(path, last=False)
        except OSError as error:
            reason = self._why(path, error)
            return known(False, path) if reason == NO_SUCH_FILE else unknown(path, reason)
        return known(True, path)


def read_archive(path: Path, *, bounds: Bounds | None = None) -> Tree:
    """Read a tar archive (plain, .zst, .bz2, .gz, .xz by its first bytes) into memory.

    Raises UsageError naming the archive and the member when it is no archive, broken, over a bound, or leads out.
    """
    limits = bounds or Bounds()
    tree, members = Tree(), 0
    try:
        with opened(path, limits.total_bytes) as stream, tarfile.open(fileobj=cast(Any, stream), mode="r|") as tar:
            for member in tar:
                members += 1
                if members > limits.members:
                    raise refused(path, f"it has more than {limits.members:,} members")
                _take(tree, tar, member, path, limits)
                _refuse(limits.against_tree(tree), path)
                cast(Any, tar).members.clear()  # it keeps every header it read
            _check_end(tar, stream, path)
    except tarfile.ReadError as error:
        raise refused(path, f"it is no tar archive of a recorded host, or a broken one ({error})") from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise refused(path, f"it cannot be read: {error}") from error
    except OSError as error:
        raise UsageError(
            "cannot read it", where=str(path), why=error.strerror, hint="name a readable archive"
        ) from error
    return tree


def _check_end(tar: tarfile.TarFile, stream: Counted, path: Path) -> None:
    """Require the two zero blocks that end an archive (POSIX pax), and that what is packed around it ends too.

    Without them it was cut between two members, and would read as a smaller host. Raises UsageError, or ValueError of a
    decompressor whose data ends early.
    """
    rest = cast(Any, tar.fileobj)
    has_first = rest.tell() == tar.offset + tarfile.BLOCKSIZE  # the header it stopped at was there, and was zero
    if not has_first or rest.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise refused(path, f"it is cut short: it ends after {tar.offset:,} bytes unpacked, without an end marker")
    while stream.read(64 << 10):
        pass


def _take(tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, limits: Bounds) -> None:
    parts = [p for p in member.name.split("/") if p not in ("", ".")]
    if member.name.startswith("/") or ".." in parts or "\0" in member.name:
        raise refused(path, f"its member {member.name!r} leads out of it")
    name = "/" + "/".join(parts)
    _refuse(limits.against_name(name), path)
    if member.issym():
        _refuse(limits.against_target(member.linkname), path)
    if member.isdir():
        if name in tree.files:
            raise refused(path, f"its member {member.name!r} is a folder and a file")
        if parts:
            tree.add_folder(name)
    elif member.isreg() and not member.issparse():
        if member.size > limits.file_bytes:
            raise refused(path, f"its member {member.name!r} has {member.size:,} bytes, over {limits.file_bytes:,}")
        content = cast(IO[bytes], tar.extractfile(member)).read()
        if not parts or len(content) != member.size:
            raise refused(path, f"its member {member.name!r} is cut short")
        if name in tree.folders:
            raise refused(path, f"its member {member.name!r} is a folder and a file")
        tree.newest_s = max(tree.newest_s, float(member.mtime))
        tree.add_file(name, content)
    elif member.issym() and parts and stays_inside(name, member.linkname) and name not in tree.folders:
        tree.add_link(name, member.linkname)
    else:
        tree.skip("link that leads out" if member.issym() else "hard link" if member.islnk() else "special file")


def _refuse(why: str | None, path: Path) -> None:
    if why is not None:
        raise refused(path, why)


def stays_inside(name: str, target: str) -> bool:
    """Whether a relative link, read by its words alone, stays under the archive's top. Pure."""
    depth = name.count("/") - 1
    if target.startswith("/") or not target:
        return False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True

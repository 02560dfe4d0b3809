"""What of a file is in the kernel's page cache, and putting it out: which of both a read was of, said and not assumed."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["FileSystem", "Look", "file_system", "put_out", "resident_share", "sampled_share"]

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")  # space, tab, newline and backslash, as seq_file writes them


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What a folder lies on: type, mount point and device as the kernel lists them; None with a reason where it does not."""

    kind: str | None
    mount: str | None
    device: str | None
    reason: str | None = None

    @property
    def in_memory(self) -> bool:
        """Whether its files live in the page cache itself, so that no read is cold. Pure."""
        return self.kind in _IN_MEMORY


def file_system(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> FileSystem:
    """Return what `folder` lies on: the longest mount point above it.

    Source: Linux Documentation/filesystems/proc.rst, "/proc/<pid>/mountinfo".
    """
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        return FileSystem(None, None, None, f"{mountinfo}: {error.strerror or error}")
    where = os.path.realpath(folder)
    best: FileSystem | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, after = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(after) < 2:
            continue
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        below = where == mount or where.startswith(mount.rstrip("/") + "/")
        if below and (best is None or best.mount is None or len(mount) >= len(best.mount)):
            best = FileSystem(after[0], mount, after[1])
    return best or FileSystem(None, None, None, f"{mountinfo} lists no mount above {where}")


Look = Callable[[Path], float]
"""Says how much of a file is in the page cache: `resident_share`, or what stands in for it in tests."""


def put_out(path: str | os.PathLike[str]) -> None:
    """Write a file's dirty pages to its device and ask the kernel to drop it from the page cache.

    A request: `resident_share` tells what became of it. Source: posix_fadvise(2), POSIX_FADV_DONTNEED, which leaves dirty pages.
    Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def resident_share(path: str | os.PathLike[str]) -> float:
    """Return how much of a file is in the page cache, 0 to 1; an empty file is all there.

    Maps the file and touches nothing of it. Source: mincore(2); since Linux 5.2 it tells of files that the caller may write.
    Raises OSError.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return 1.0
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, dtype=np.uint8)
            address = view.ctypes.data
            del view
            n_pages = -(-size // mmap.PAGESIZE)
            found = (ctypes.c_ubyte * n_pages)()
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), os.fspath(path))
    return int((np.frombuffer(bytes(found), dtype=np.uint8) & 1).sum()) / n_pages


def sampled_share(paths: Sequence[Path], most: int, look: Look = resident_share) -> float | None:
    """Return how much of some files is in the page cache, from a sample of about `most` of them.

    None where the kernel does not tell: some network and FUSE file systems map no file. Raises FileNotFoundError.
    """
    try:
        return float(np.mean([look(path) for path in paths[:: max(1, len(paths) // most)]]))
    except FileNotFoundError:
        raise
    except OSError:
        return None

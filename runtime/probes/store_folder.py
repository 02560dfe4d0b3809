"""A new folder for one probe, or for the temporary storage tier of a run, removed at its end with what was written and nothing else.

PARENT/                     there before, or made and removed again if it is empty then
  hicachectl-bench-XXXXXX/  made by us, mode 0700; hicachectl-l3-XXXXXX of a run
    .hicachectl-bench       the marker: locked as long as its process lives, gone last
    hicache1-.../abc/KEY_... .page   known by their names: removed
    whatever else           of others: stays, with the folders above it, and is told

A killed process leaves the folder, and the kernel drops its lock: `clear_left` removes such folders. Not every mount that
several hosts share tells the others of a lock, so the marker names its host, and what another host left stays.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from hicachectl.errors import StorageError
from hicachectl.held_signals import held_signals
from hicachectl.runtime.storage.file_format import TEMP_PREFIX, fault_of, lock_abandoned, remove_if_abandoned

__all__ = ["MARKER", "PREFIX", "RUN_PREFIX", "StoreFolder", "clear_left"]

PREFIX, RUN_PREFIX = "hicachectl-bench-", "hicachectl-l3-"
MARKER = ".hicachectl-bench"
_MOST_BYTES = 4096
_OBJECT = re.compile(r"[0-9a-f]{64}.*\.page", re.DOTALL)
_FOLDER = re.compile(r"hicache1-[0-9a-f]{32}|[0-9a-f]{3}|round")


class StoreFolder:
    """A folder below `parent` that nobody else uses; a context manager that removes it. `flag` names another place in the error.

    `path` is the folder. After the end, `left` lists what could not be removed or was not ours. Raises StorageError when the
    folder cannot be made.
    """

    def __init__(self, parent: Path, *, prefix: str = PREFIX, flag: str = "--path") -> None:
        self._made: list[Path] = []
        self.left: tuple[str, ...] = ()
        missing = parent.absolute()
        try:
            while not os.path.lexists(missing):
                self._made.append(missing)
                missing = missing.parent
            for folder in reversed(self._made):
                folder.mkdir(mode=0o700)
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent.absolute()))
            self._lock = _marked(self.path)
        except OSError as error:
            self._remove_parents()
            raise StorageError(
                f"no temporary folder can be made: {error.strerror or error}",
                fault=fault_of(error),
                where=str(parent),
                hint=f"name a folder this user can write with {flag}",
            ) from error

    def __enter__(self) -> StoreFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with held_signals(at_once=True):  # Ctrl-C comes through behind it
            self.left = tuple(self.clear())
            try:
                (self.path / MARKER).unlink(missing_ok=True)
                self.path.rmdir()
            except OSError as refused:
                self.left += (f"{self.path}: {refused.strerror or refused}",) if not self.left else ()
            finally:
                os.close(self._lock)
            self._remove_parents()

    def clear(self) -> list[str]:
        """Remove the objects and folders of the store from the folder, and return what is left: paths, with the reason."""
        return list(_clear(self.path))

    def _remove_parents(self) -> None:
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # somebody uses it by now, or it was never made: not ours to remove
                return


def clear_left(parent: Path) -> tuple[str, ...]:
    """Remove the folders below `parent` that killed processes of this user left; those at work keep theirs. Changes the disk.

    Files of others stay. Returns a sentence for each folder that was left, and for a `parent` that cannot be looked through.
    """
    try:
        with os.scandir(parent) as entries:
            found = sorted(
                entry.path for entry in entries if entry.name.startswith((PREFIX, RUN_PREFIX)) and _is_own_folder(entry)
            )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        return (f"whether killed processes left folders in {parent} is not known: {error.strerror or error}",)
    return tuple(said for path in found if (said := _cleared(Path(path))) is not None)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _cleared(folder: Path) -> str | None:
    """Remove one folder if its process is gone, and say so; None where it was not left, or has no marker."""
    try:
        lock = lock_abandoned(str(folder / MARKER))
        if lock is None:
            return None
        try:
            marker = os.fstat(lock)
            if not marker.st_size or not marker.st_nlink:  # its process is about to lock it, or has just removed it
                return None
            host = _other_host(os.pread(lock, _MOST_BYTES, 0))
            if host is not None:
                return (
                    f"left {folder} alone: it was made on {host}, and only there it is known whether its process ended"
                )
            left = list(_clear(folder))
            (folder / MARKER).unlink()
            if left:
                return f"removed the pages in {folder} that a killed process left; not removed: {', '.join(left)}"
            folder.rmdir()
        finally:
            os.close(lock)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder}, which a killed process left, cannot be removed: {error.strerror or error}"
    return f"removed {folder}, which a killed process left"


def _marked(folder: Path) -> int:
    """Make the marker in a new folder and return the descriptor that holds its lock. Raises OSError, with the folder gone.

    It is empty until it is locked: an empty one is not taken for left.
    """
    path = folder / MARKER
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.write(fd, f"{os.getpid()} {_boot()} {os.uname().nodename}\n".encode())
        except BaseException:
            os.close(fd)
            raise
    except BaseException:
        path.unlink(missing_ok=True)
        folder.rmdir()
        raise
    return fd


def _boot() -> str:
    """The id of this boot, the same in every container of a host; a dash where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or "-"
    except OSError:
        return "-"


def _other_host(marker: bytes) -> str | None:
    """The host that a marker names, where that is another one: neither this boot nor this name. None also where it names none."""
    words = marker.decode(errors="replace").split()
    if len(words) != 3 or words[1] == _boot() or words[2] == os.uname().nodename:
        return None
    return words[2]


def _clear(folder: Path) -> Iterator[str]:
    """Empty a folder of what the store wrote, bottom up. The marker stays."""
    for name in sorted(os.listdir(folder)):
        path = folder / name
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) and _FOLDER.fullmatch(name):
                left = list(_clear(path))
                yield from left
                if not left:
                    path.rmdir()
            elif stat.S_ISREG(mode) and _OBJECT.fullmatch(name):
                path.unlink()
            elif stat.S_ISREG(mode) and name.startswith(TEMP_PREFIX):
                if not remove_if_abandoned(str(path)):
                    yield f"{path}: a process is writing it"
            elif name != MARKER:
                yield f"{path}: not written by the store"
        except OSError as error:
            yield f"{path}: {error.strerror or error}"

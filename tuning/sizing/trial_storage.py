"""A storage tier for the steps: one folder, empty when a step begins and gone when it ends, so that no step finds another's pages.

    DIR/hicachectl-5d1e07ab93c2f418-l3/.hicachectl-step   the marker, as recorded in the run's journal
    DIR/hicachectl-5d1e07ab93c2f418-l3/pages/             what the step writes

The name is random and recorded before the folder is made. Only a folder of that name with that marker is ever removed, so
nobody else's files are; signals wait until the removal is over.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hicachectl.errors import CapacityError, HicacheError, HostError
from hicachectl.held_signals import held_signals
from hicachectl.runtime.storage.file import disk_bytes

__all__ = ["MARKER", "StorageFolder", "TrialStorage", "remove_folder"]

MARKER = ".hicachectl-step"


@dataclass(frozen=True, slots=True)
class StorageFolder:
    """A step's folder for pages. `hold()`: from now on signals wait until the folder is gone."""

    path: Path
    hold: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TrialStorage:
    """Room for `n_pages` pages of `page_bytes` in `parent`, in a folder called `name` that holds `marker`.

    `tell` says what is left where another error is on its way already.
    """

    parent: Path
    name: str
    marker: str
    n_pages: int
    page_bytes: int
    tell: Callable[[str], None] = lambda text: None

    @classmethod
    def named(
        cls, parent: Path, n_pages: int, page_bytes: int, *, tell: Callable[[str], None] = lambda text: None
    ) -> TrialStorage:
        """Return one with a name and a marker that nobody else has. Makes nothing."""
        return cls(parent, f"hicachectl-{secrets.token_hex(8)}-l3", secrets.token_hex(16), n_pages, page_bytes, tell)

    @property
    def folder(self) -> Path:
        """The folder that a step makes and removes. Pure."""
        return self.parent / self.name

    @property
    def n_bytes(self) -> int:
        """What the pages take on the disk. Pure."""
        return self.n_pages * disk_bytes(self.page_bytes)

    @contextmanager
    def emptied(self) -> Iterator[StorageFolder]:
        """Make the folder, and remove it afterwards whatever happens. Changes the disk.

        Raises CapacityError when the disk has less room than all pages take, HostError when the folder cannot be made, is
        there already, or cannot be removed.
        """
        with held_signals() as hold:
            try:
                yield StorageFolder(self._made(), hold)
            except BaseException as error:
                hold()
                self._removed(error)
                raise
            hold()
            self._removed(None)

    def _made(self) -> Path:
        try:
            disk = shutil.disk_usage(self.parent)
            free = disk.free
            if disk.total and free < self.n_bytes:  # a tmpfs without a limit (size=0) has a total of 0
                raise CapacityError(
                    f"a storage tier of {self.n_bytes} bytes, the disk has {free} left",
                    where=str(self.parent),
                    terms=(("storage tier of the steps", self.n_bytes), ("free on its disk", free)),
                    hint="give a smaller --l3, another --l3-path, or none: storage is predicted then, not measured",
                )
            self.folder.mkdir(mode=0o700)
            (self.folder / MARKER).write_text(self.marker)
            pages = self.folder / "pages"
            pages.mkdir(mode=0o700)
        except OSError as error:
            raise HostError(
                f"the folder of the steps' storage tier cannot be made: {error.strerror}",
                where=str(self.folder),
                hint="name a folder this user can write with --l3-path",
            ) from error
        return pages

    def _removed(self, coming: BaseException | None) -> None:
        """Remove the folder. Says what is left in the error that is on its way, or raises HostError."""
        try:
            remove_folder(self.folder, self.marker)
        except OSError as error:
            left = f"is left: {error.strerror}"
            if coming is None:
                raise HostError(
                    f"the storage tier of a step {left}",
                    where=str(self.folder),
                    hint="the next tune size on this state folder removes it; or do so by hand",
                ) from error
            words = f"{self.folder} {left}"
            if isinstance(coming, HicacheError):
                coming.why = words if coming.why is None else f"{coming.why}; {words}"
            else:
                self.tell(words)


def remove_folder(folder: Path, marker: str) -> bool:
    """Remove a folder that holds the marker, or nothing at all; the marker goes last. Changes the disk. Raises OSError.

    Returns whether it is gone: False where it is somebody else's, which is left as it is.
    """
    if not os.path.lexists(folder):
        return True
    if folder.is_symlink() or not folder.is_dir():
        return False
    entries = list(folder.iterdir())
    if entries and not _is_marked(folder / MARKER, marker):
        return False
    for entry in entries:
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmdir()
    return True


def _is_marked(path: Path, marker: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    with open(handle, "rb") as file:
        return file.read(len(marker) + 1) == marker.encode()

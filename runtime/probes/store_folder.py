"""A new folder for one probe, removed at its end with what the probe wrote and nothing else.

PARENT/                     there before, or made and removed again if it is empty then
  hicachectl-bench-XXXXXX/  made by us, mode 0700
    hicache1-.../abc/KEY_... .page   known by their names: removed
    whatever else           of others: stays, with the folders above it, and is told
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from hicachectl.errors import StorageError
from hicachectl.runtime.storage.file_format import TEMP_PREFIX, fault_of

__all__ = ["PREFIX", "StoreFolder"]

PREFIX = "hicachectl-bench-"
_OBJECT = re.compile(r"[0-9a-f]{64}.*\.page", re.DOTALL)
_FOLDER = re.compile(r"hicache1-[0-9a-f]{32}|[0-9a-f]{3}|round")


class StoreFolder:
    """A folder below `parent` that nobody else uses; a context manager that removes it.

    `path` is the folder. After the end, `left` lists what could not be removed or was not ours. Raises StorageError when the
    folder cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        self._made: list[Path] = []
        self.left: tuple[str, ...] = ()
        missing = parent.absolute()
        try:
            while not os.path.lexists(missing):
                self._made.append(missing)
                missing = missing.parent
            for folder in reversed(self._made):
                folder.mkdir(mode=0o700)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent.absolute()))
        except OSError as error:
            self._remove_parents()
            raise StorageError(
                f"no folder for the measurement can be made: {error.strerror or error}",
                fault=fault_of(error),
                where=str(parent),
                hint="name a folder this user can write with --path",
            ) from error

    def __enter__(self) -> StoreFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left = tuple(self.clear())
        try:
            self.path.rmdir()
        except OSError as refused:
            self.left += (f"{self.path}: {refused.strerror or refused}",) if not self.left else ()
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


def _clear(folder: Path) -> Iterator[str]:
    """Empty a folder of what the store wrote, bottom up."""
    ours = f"{TEMP_PREFIX}{os.getpid()}-"
    for name in sorted(os.listdir(folder)):
        path = folder / name
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) and _FOLDER.fullmatch(name):
                left = list(_clear(path))
                yield from left
                if not left:
                    path.rmdir()
            elif stat.S_ISREG(mode) and (_OBJECT.fullmatch(name) or name.startswith(ours)):
                path.unlink()
            else:
                yield f"{path}: not written by this measurement"
        except OSError as error:
            yield f"{path}: {error.strerror or error}"

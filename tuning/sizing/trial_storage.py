"""A storage tier for the steps: one folder, empty when a step begins and gone when it ends, so that no step finds another's pages.

The folder has the name of the sizing run, so a run that was killed leaves one that the same run, continued, clears away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hicachectl.errors import CapacityError, HostError
from hicachectl.runtime.storage.file import disk_bytes

__all__ = ["TrialStorage"]


@dataclass(frozen=True, slots=True)
class TrialStorage:
    """Room for `n_pages` pages of `page_bytes` in `parent`, in a folder called `name` that nobody else uses."""

    parent: Path
    name: str
    n_pages: int
    page_bytes: int

    @property
    def n_bytes(self) -> int:
        """What the pages take on the disk. Pure."""
        return self.n_pages * disk_bytes(self.page_bytes)

    @contextmanager
    def emptied(self) -> Iterator[Path]:
        """Make the folder anew, and remove it afterwards whatever happens. Changes the disk.

        Raises CapacityError when the disk has less room than all pages take, HostError when the folder cannot be made.
        """
        folder = self.parent / self.name
        try:
            if folder.exists():
                shutil.rmtree(folder)
            free = shutil.disk_usage(self.parent).free
            if free < self.n_bytes:
                raise CapacityError(
                    f"a storage tier of {self.n_bytes} bytes, the disk has {free} left",
                    where=str(self.parent),
                    terms=(("storage tier of the steps", self.n_bytes), ("free on its disk", free)),
                    hint="give a smaller --l3, another --l3-path, or none: storage is predicted then, not measured",
                )
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise HostError(
                f"the folder of the steps' storage tier cannot be made: {error.strerror}",
                where=str(folder),
                hint="name a folder this user can write with --l3-path",
            ) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

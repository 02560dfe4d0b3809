"""Whether the disk has the room that the storage tier is allowed to take: told before a run, never a reason to refuse it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hicachectl.config_models import RunConfig
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.units import format_bytes

__all__ = ["disk_warnings"]


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def disk_warnings(run: RunConfig, *, free_bytes: Callable[[Path], int] = _free) -> tuple[Diagnostic, ...]:
    """Warn when the disk has fewer free bytes than `storage_bytes`; empty without a storage tier. Looks, writes nothing.

    `free_bytes` says how much is free where a folder lies. What the folder holds already counts as not free, so a folder
    that is nearly full of pages is warned of too, and the text says so.
    """
    if run.storage_path is None:
        return ()
    folder = Path(tempfile.gettempdir() if run.storage_path == "auto" else run.storage_path).absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    free = free_bytes(folder)
    if free >= run.storage_bytes:
        return ()
    return (
        Diagnostic(
            "HC-L3-DISK",
            Severity.WARN,
            f"the storage tier may take {format_bytes(run.storage_bytes)} ({run.storage_bytes} B), {folder} has {format_bytes(free)} "
            f"({free} B) free beside what it holds: when the disk is full, pages are not stored",
            subject="storage_bytes",
            hint=f"give --storage-bytes {free} or less, or a --storage-path on another disk",
        ),
    )

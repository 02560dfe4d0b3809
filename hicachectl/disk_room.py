"""Whether the disk has the room: of a storage tier it is told before a run, what a benchmark writes is refused before it is written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hicachectl.config_models import RunConfig
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import CapacityError
from hicachectl.units import format_bytes

__all__ = ["disk_warnings", "require_disk_room", "storage_folder"]


def _free(folder: Path) -> int | None:
    disk = shutil.disk_usage(folder)
    return disk.free if disk.total else None  # a tmpfs without a limit (size=0) has no blocks at all


def storage_folder(run: RunConfig) -> Path | None:
    """Return the folder of the storage tier, or the one that a temporary folder is made in; None without the tier. Pure."""
    if run.storage_path is None:
        return None
    return Path(tempfile.gettempdir() if run.storage_path == "auto" else run.storage_path)


def disk_warnings(run: RunConfig, *, free_bytes: Callable[[Path], int | None] = _free) -> tuple[Diagnostic, ...]:
    """Warn when the disk has fewer free bytes than `storage_bytes`; empty without a storage tier. Looks, writes nothing.

    `free_bytes` says how much is free where a folder lies, None where there is no limit. What the folder holds already counts as not free, so a folder
    that is nearly full of pages is warned of too, and the text says so.
    """
    tier = storage_folder(run)
    if tier is None:
        return ()
    folder = _nearest(tier)
    free = free_bytes(folder)
    if free is None or free >= run.storage_bytes:
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


def require_disk_room(
    folder: Path, terms: Sequence[tuple[str, int]], hint: str, *, free_bytes: Callable[[Path], int | None] = _free
) -> None:
    """Refuse what would not fit on the disk of `folder` (there or not yet), with every term. Looks, writes nothing.

    A twentieth of what is free stays free, so that nobody else on the disk runs out while this is going on. Raises CapacityError.
    """
    nearest = _nearest(folder)
    free = free_bytes(nearest)
    if free is None:
        return
    room, wanted = free - free // 20, sum(amount for _, amount in terms)
    if wanted <= room:
        return
    raise CapacityError(
        f"{format_bytes(wanted)} ({wanted} B) are to be written, {nearest} has room for {format_bytes(room)} ({room} B)",
        where=str(folder),
        terms=(*terms, ("free", free), ("left to others, a twentieth", -(free // 20))),
        why=" + ".join(f"{name}: {amount} B" for name, amount in terms),
        hint=hint,
    )


def _nearest(folder: Path) -> Path:
    """Return the folder itself or the nearest one above that is there."""
    folder = folder.absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder

"""Clears the storage tiers that killed sizing runs left on the disk: those that their journals name, and nothing else."""

from __future__ import annotations

from pathlib import Path

from hicachectl.errors import PlanStale, UsageError
from hicachectl.tuning.sizing.size_journal import LeftFolder, SizeJournal, run_ids, storage_records
from hicachectl.tuning.sizing.trial_storage import remove_folder

__all__ = ["clear_left"]


def clear_left(state: Path, own: str) -> list[str]:
    """Remove what the runs recorded in `state` left, `own` among them, which the caller holds; those at work keep theirs.

    Changes the disk. Returns a sentence for each folder that was there.
    """
    said: list[str] = []
    for run_id in run_ids(state):
        try:
            folders = [f for f in storage_records(state / run_id) if f.path.exists()]
        except UsageError as error:
            said.append(f"what {run_id} left on a disk, if anything, is not looked for: {error} ({error.where})")
            continue
        if not folders:
            continue
        if run_id == own:
            said += _cleared(run_id, folders)
            continue
        try:
            held = SizeJournal.held(state / run_id)
        except PlanStale:
            continue
        try:
            said += _cleared(run_id, folders)
        finally:
            held.close()
    return said


def _cleared(run_id: str, folders: list[LeftFolder]) -> list[str]:
    said = []
    for folder in folders:
        try:
            gone = remove_folder(folder.path, folder.marker)
        except OSError as error:
            said.append(f"{folder.path}, the storage tier that {run_id} left, cannot be removed: {error.strerror}")
            continue
        said.append(
            f"removed {folder.path}, the storage tier that {run_id} left" if gone
            else f"{folder.path} is left as it is: not the one that {run_id} made, its marker is missing or another's"
        )  # fmt: skip
    return said

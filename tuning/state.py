"""The state folder: one folder a run, each with its plan and its journal. /var/lib/hicachectl, or --state-dir.

    /var/lib/hicachectl/lock                 held while something is written
    /var/lib/hicachectl/journal/j-0191/      records.jsonl, plan.json

Rollback writes what a journal says, as root: so the folder must belong to root or to us, and nobody else may write there.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from hicachectl.errors import ExitCode, HostError, PermissionDenied, UsageError

__all__ = ["DEFAULT_STATE_DIR", "StateDir", "check_trusted", "fsync_folder", "no_room", "write_durably"]

DEFAULT_STATE_DIR = Path("/var/lib/hicachectl")
_RUN = re.compile(r"j-([0-9]{4,9})")


class StateDir:
    """Where runs are recorded. Nothing is made until `new_run`."""

    def __init__(self, path: Path = DEFAULT_STATE_DIR) -> None:
        self.path = path
        self.journal = path / "journal"

    def runs(self) -> list[str]:
        """List the run ids, oldest first; empty where there is no state folder. Raises PermissionDenied, UsageError."""
        try:
            self._trusted(self.path)
            self._trusted(self.journal)
            names = os.listdir(self.journal)
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise _denied(self.journal) from error
        return sorted((name for name in names if _RUN.fullmatch(name)), key=_number)

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run. Raises UsageError for an id that is not there, with the ids that are."""
        runs = self.runs()
        if run_id not in runs:
            last = ", ".join(runs[-5:]) or "none"
            raise UsageError(
                f"there is no run {run_id!r}",
                where=str(self.journal),
                why=f"runs recorded here: {last}",
                hint="hicachectl tune history",
            )
        folder = self.journal / run_id
        self._trusted(folder)
        return folder

    def prepare(self) -> None:
        """Make the state folder, 0700, where it is missing, durable before it returns. Changes the state folder.

        Raises PermissionDenied, UsageError for a folder others may write, and HostError when it cannot be made.
        """
        try:
            for folder in (self.path, self.journal):
                folder.mkdir(mode=0o700, parents=folder is self.path, exist_ok=True)
                self._trusted(folder)
                fsync_folder(folder.parent)
        except PermissionError as error:
            raise _denied(self.path) from error
        except OSError as error:
            raise no_room("the state folder", self.path, error) from error

    def new_run(self) -> tuple[str, Path]:
        """Make the next run's folder, 0700, durable before it is returned; `prepare` came first. Changes the state folder.

        Raises PermissionDenied, UsageError, and HostError when the folder cannot be made.
        """
        try:
            number = max((_number(name) for name in self.runs()), default=0)
            while True:
                number += 1
                run_id = f"j-{number:04d}"
                try:
                    (self.journal / run_id).mkdir(mode=0o700)
                except FileExistsError:
                    continue
                fsync_folder(self.journal)
                return run_id, self.journal / run_id
        except PermissionError as error:
            raise _denied(self.path) from error
        except OSError as error:
            raise no_room("the state folder", self.path, error) from error

    def _trusted(self, folder: Path) -> None:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError("not a folder", where=str(folder), why="links are not followed", hint="--state-dir DIR")
        check_trusted(folder, found)
        for above in folder.resolve().parents:
            there = above.stat()
            if not there.st_mode & stat.S_ISVTX:  # in a sticky folder nobody moves what is not theirs
                check_trusted(above, there)


def check_trusted(path: Path, found: os.stat_result) -> None:
    """Raise UsageError (HC-STATE) unless a file or folder belongs to root or the caller, and nobody else may write it. Pure."""
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise UsageError(
            f"owned by uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}: others could write a journal there",
            where=str(path),
            why="rollback writes what a journal says",
            hint=f"chown root {path} && chmod go-w {path}, or --state-dir DIR",
            code="HC-STATE",
        )


def fsync_folder(folder: Path) -> None:
    """Make a folder's entries durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, value: Any) -> None:
    """Write a JSON file as a whole, 0600, durable before it returns. Raises HostError; nothing half-written stays."""
    temporary = path.with_name(f".{path.name}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # the first error says more
            temporary.unlink()
        raise no_room("the state folder", path, error) from error


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 0


def no_room(what: str, path: Path, error: OSError) -> HostError:
    """Return the error of a record that cannot be made durable. Pure. It exits with 10: the host is as it was, and not ready."""
    refused = HostError(
        f"{what} cannot be written: {error.strerror or error}",
        where=str(path),
        why="a change is recorded before it is made",
        hint="make room there, or name another folder: --state-dir DIR",
        code="HC-STATE",
    )
    refused.exit_code = ExitCode.NOT_READY
    return refused


def _denied(path: Path) -> PermissionDenied:
    return PermissionDenied(
        "the state folder may not be used",
        where=str(path),
        why="it belongs to root",
        hint="sudo, or --state-dir DIR for a folder of your own",
        code="HC-STATE",
    )

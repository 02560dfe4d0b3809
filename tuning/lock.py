"""One writer at a time: a lock that the kernel drops when its holder dies, so a killed apply never blocks the next."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicachectl.errors import PlanStale
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.state import StateDir

__all__ = ["HOST_LOCK", "hold_lock", "lock_holder"]

HOST_LOCK = "/run/hicachectl.lock"
"""Held too where the host has /run, so that two applies with different state folders still exclude each other."""


@contextmanager
def hold_lock(state: StateDir, root: HostRoot, *, who: str, clock_text: str) -> Iterator[None]:
    """Hold the locks of a state folder and of the host. Changes: makes the lock files, 0600, and writes the holder into them.

    The folder must exist. Raises PlanStale (HC-LOCKED) naming the holder when someone else has one.
    """
    paths = [state.path / "lock"]
    if Path(root.at("/run")).is_dir():
        paths.append(root.at(HOST_LOCK))
    handles: list[int] = []
    try:
        for path in paths:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            handles.append(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PlanStale(
                    "another apply or rollback is at work",
                    where=str(path),
                    why=_holder(handle),
                    hint="wait for it, then: hicachectl tune status",
                    code="HC-LOCKED",
                ) from error
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "who": who, "since": clock_text}).encode(), 0)
        yield
    finally:
        for handle in reversed(handles):
            os.close(handle)


def lock_holder(state: StateDir) -> str | None:
    """Return who is at work with this state folder now, None when nobody is. Takes the lock for a moment, writes nothing."""
    try:
        handle = os.open(state.path / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(handle)
    finally:
        os.close(handle)
    return None


def _holder(handle: int) -> str:
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return f"held by pid {found['pid']} ({found['who']}) since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "held by a process that did not write its name yet"

"""One writer at a time: a lock that the kernel drops when its holder dies, so a killed apply never blocks the next."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hicachectl.errors import PermissionDenied, PlanStale
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.state import StateDir, no_room

__all__ = ["HOST_LOCK", "LockHolder", "hold_lock", "lock_holder", "locked"]

_TRIES, _WAIT_S = 5, 0.1

HOST_LOCK = "/run/hicachectl.lock"
"""Held too where the host has /run, so that two applies with different state folders still exclude each other."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who is at work: process number, None where it did not write it yet; `text` says it to people."""

    pid: int | None
    text: str


@contextmanager
def hold_lock(
    state: StateDir, root: HostRoot, *, who: str, pid: int, clock_text: str, sleep: Callable[[float], None]
) -> Iterator[None]:
    """Hold the locks of a state folder and of the host. Changes: makes the lock files, 0600, and writes the holder into them.

    The folder must exist. Waits half a second at most: `tune status` takes the lock for a moment to look. Raises
    PlanStale (HC-LOCKED) naming the holder when someone else has one, PermissionDenied when it may not be used.
    """
    paths = [state.path / "lock"]
    if Path(root.at("/run")).is_dir():
        paths.append(root.at(HOST_LOCK))
    handles: list[int] = []
    try:
        for path in paths:
            handles.append(
                locked(path, who=who, pid=pid, clock_text=clock_text, what="another apply or rollback is at work",
                       hint="wait for it, then: hicachectl tune status", sleep=sleep)
            )  # fmt: skip
        yield
    finally:
        for handle in reversed(handles):
            os.close(handle)


def locked(
    path: Path, *, who: str, pid: int, clock_text: str, what: str, hint: str, sleep: Callable[[float], None]
) -> int:
    """Return a handle that holds the lock of a file until it is closed. Changes: makes the file, 0600, and writes the holder into it.

    Raises PlanStale (HC-LOCKED) saying `what` and naming the holder when someone else has it for longer than half a second.
    """
    handle = _opened(path)
    try:
        _taken(handle, path, what, hint, sleep)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": pid, "who": who, "since": clock_text}).encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise PermissionDenied(
            "the lock may not be used", where=str(path), why="changing a host needs root", hint="sudo", code="HC-STATE"
        ) from error
    except OSError as error:
        raise no_room("the lock", path, error) from error


def _taken(handle: int, path: Path, what: str, hint: str, sleep: Callable[[float], None]) -> None:
    for left in range(_TRIES, -1, -1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if left:
                sleep(_WAIT_S)
                continue
            raise PlanStale(
                what, where=str(path), why=f"held by {_holder(handle).text}", hint=hint, code="HC-LOCKED"
            ) from error
        return


def lock_holder(state: StateDir) -> LockHolder | None:
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


def _holder(handle: int) -> LockHolder:
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return LockHolder(int(found["pid"]), f"pid {found['pid']} ({found['who']}) since {found['since']}")
    except (OSError, ValueError, KeyError, TypeError):
        return LockHolder(None, "a process that did not write its name yet")

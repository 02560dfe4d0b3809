"""Open a shared pool that another process made: its label compared, its owner looked for. Nothing of it is changed."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace

from hicachectl.errors import HicacheError, HostError, PermissionDenied, UsageError
from hicachectl.runtime.memory.address_range import AddressRange
from hicachectl.runtime.memory.kinds import Kind, huge_page_bytes
from hicachectl.runtime.memory.making import Obtained
from hicachectl.runtime.memory.refusals import not_obtained
from hicachectl.runtime.memory.shared_file import Label, lock_as_user, owner_holds, read_label
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import Step, StepState
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.units import format_bytes

__all__ = ["Source", "obtain_shared"]

Source = str | int
"""The path of a tmpfs file, or a descriptor of a memfd that was handed over; the descriptor stays the caller's."""


_NOT_OPENED: dict[int, tuple[type[HicacheError], str]] = {
    errno.EACCES: (PermissionDenied, "attach as the user who made it"),
    errno.EPERM: (PermissionDenied, "attach as the user who made it"),
    errno.ELOOP: (UsageError, "name the file itself, not a link to it"),
    errno.EISDIR: (UsageError, "name the file of the pool, not its folder"),
    errno.EMFILE: (HostError, "close files, or raise the limit of open files (ulimit -n)"),
    errno.ENFILE: (HostError, "close files, or raise the limit of open files of all processes (fs.file-max)"),
}


def obtain_shared(calls: MemoryCalls, source: Source, n_bytes: int, spec: MappingSpec) -> tuple[Obtained, MappingSpec]:
    """Map what another process made, as it is: it is not cut, not filled, and its name is not touched, now or later.

    `spec.label` is what the pool must say of itself. Returns the range, and `spec` with the kind it turned out to be. Raises
    UsageError when there is no pool, or another one than wanted (with both values), HostError when its owner is gone
    or it cannot be opened, PermissionDenied, also for a pool of another user; then nothing is left.
    """
    fd = _opened(source)
    try:
        label = _checked(source, fd, n_bytes, spec)
        held = AddressRange(calls, int(label["mapped_bytes"]), huge_page_bytes(calls))
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise not_obtained(error, n_bytes, spec) from error
        raise
    kind = Kind.TMPFS if isinstance(source, str) else Kind.MEMFD
    try:
        held.place(fd)
    except OSError as error:
        held.release()
        raise not_obtained(error, n_bytes, spec) from error
    except BaseException:
        held.release()
        raise
    mapped = held.mapped_bytes
    text = f"{format_bytes(mapped)} of {kind.value} memory that process {label.get('pid')} made, at a multiple of {format_bytes(held.align_bytes)}"
    step = Step("reserve", StepState.DONE, text, n_bytes=mapped)
    return Obtained(held, n_bytes, mapped, held.align_bytes, step, attached=True), _as(spec, kind, source)


def _opened(source: Source) -> int:
    """Open it anew, for locks are of the open file: one handed over would have its owner's."""
    path = source if isinstance(source, str) else f"/proc/self/fd/{source}"
    follow = os.O_NOFOLLOW if isinstance(source, str) else 0
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | follow)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no shared pool at {source}", why="its owner has not made it yet, or has closed it",
            hint="start the process that makes the pool, and attach when it is ready",
        ) from error  # fmt: skip
    except OSError as error:
        refused, hint = _NOT_OPENED.get(error.errno or 0, (HostError, "look at it: ls -l, and the kernel's log"))
        what = f"the shared pool {_name(source)} cannot be opened"
        raise refused(what, where=_name(source), why=error.strerror, hint=hint) from error


def _checked(source: Source, fd: int, n_bytes: int, spec: MappingSpec) -> Label:
    """Return the label of a pool that is held by its owner and is the one that is wanted; hold it as one who maps it."""
    name = _name(source)
    seen = os.fstat(fd)
    label = read_label(fd) if stat.S_ISREG(seen.st_mode) else None
    if label is None:
        raise UsageError(
            f"{name} is no pool of hicachectl",
            where=name,
            why="it has no label behind its memory",
            hint="name the file of a shared pool, or the descriptor that its process handed over",
        )
    if seen.st_uid != os.geteuid():
        raise PermissionDenied(
            f"the shared pool {name} belongs to user {seen.st_uid}, this is user {os.geteuid()}",
            where=name,
            why="its owner can cut it, which kills whoever reads it, and may write what it likes",
            hint="attach as the user who made it",
        )
    try:
        lock_as_user(fd)
    except BlockingIOError as error:
        raise _gone(name, label, "it is being removed") from error
    if not owner_holds(fd):
        raise _gone(name, label, "its owner holds it no more; what is in it may be half written")
    if isinstance(source, str) and os.fstat(fd).st_nlink == 0:
        raise _gone(name, label, "its owner has closed it")
    wanted: dict[str, str | int] = {**dict(spec.label), "n_bytes": n_bytes}
    wrong = [
        f"{key} {label.get(key)} there, {value} wanted" for key, value in wanted.items() if label.get(key) != value
    ]
    if wrong:
        raise UsageError(
            f"the shared pool {name} is another one: {'; '.join(wrong)}",
            where=name,
            why=f"process {label.get('pid')} made it so",
            hint="give every process of a group the same model, page size, dtype, layout and slots",
        )
    held_bytes = min(int(label["mapped_bytes"]), os.fstat(fd).st_size)
    if held_bytes < n_bytes:
        raise UsageError(
            f"the shared pool {name} holds {held_bytes} bytes of memory, {n_bytes} wanted",
            where=name,
            why="its label says more than there is",
            hint="start its owner again, then attach",
        )
    return label


def _gone(name: str, label: Label, why: str) -> HicacheError:
    return HostError(
        f"the shared pool {name} is stale: process {label.get('pid')} made it",
        where=name,
        why=why,
        hint="start its owner again, which removes what is left there, then attach",
    )


def _as(spec: MappingSpec, kind: Kind, source: Source) -> MappingSpec:
    return replace(spec, kind=kind, path=source if isinstance(source, str) else None, named=False, placed=None)


def _name(source: Source) -> str:
    return source if isinstance(source, str) else f"descriptor {source}"

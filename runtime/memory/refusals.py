"""From the kernel's and the driver's refusals to errors of this program. Pure, but for one limit of this process."""

from __future__ import annotations

import errno
import resource

from hicachectl.errors import CapacityError, HicacheError, HostError, PermissionDenied, Unsupported, UsageError
from hicachectl.linux_calls import why
from hicachectl.runtime.memory.register import Refusal
from hicachectl.runtime.memory.shared_file import FoundFile, Standing
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.units import format_bytes

__all__ = ["limit_words", "name_taken", "not_obtained", "not_populated"]

_EHWPOISON = 133
"""include/uapi/asm-generic/errno.h; Python has no name for it."""


def not_obtained(error: OSError, n_bytes: int, spec: MappingSpec) -> HicacheError:
    """Describe why there is no range, or no file or memfd behind it, by the call that was refused and its errno. Pure."""
    of_range = str(error.filename or "").startswith("mmap")
    what = f"no {'address range' if of_range else f'{spec.kind.value} memory'} of {n_bytes} bytes for a pool"
    if error.errno == errno.EEXIST:
        return name_taken(str(spec.path), FoundFile(Standing.FOREIGN, "it was made meanwhile"))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = (
            "name a place this user may write"
            if spec.path
            else "use another kind of memory, or allow this process the call"
        )
        return PermissionDenied(what, where=spec.path, why=why(error), hint=hint)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return UsageError(what, where=spec.path, why=why(error), hint="name a folder that is there")
    if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSYS, errno.EINVAL):
        return Unsupported(what, where=spec.path, why=why(error), hint="use another kind of memory")
    return CapacityError(
        what,
        terms=(("pool bytes", n_bytes),),
        where=spec.path,
        why=why(error),
        hint=_shortage_hint(error.errno, of_range=of_range),
    )


def _shortage_hint(number: int | None, *, of_range: bool) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        return "close files, or raise the limit of open files (ulimit -n; of all processes fs.file-max)"
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make the pool smaller, or the mount larger (remount with size=)"
    if of_range:
        return "make the pool smaller, or raise the address-space limit (ulimit -v)"
    return "make the pool smaller, or free memory"


def name_taken(path: str, found: FoundFile) -> UsageError:
    """Describe a file that a pool may not replace. Pure."""
    if found.standing is Standing.IN_USE:
        hint = "end the processes that use it (fuser shows them), or name another file"
    else:
        hint = "remove it when nothing needs it, or name another file"
    return UsageError(f"the file {path} is there already", where=path, why=found.words, hint=hint)


def not_populated(
    error: OSError, done_bytes: int, *, n_bytes: int, mapped_bytes: int, spec: MappingSpec
) -> HicacheError:
    """Describe why a page could not be had. Pure."""
    if error.errno == _EHWPOISON:
        return HostError(
            f"a page of the pool is broken memory, after {format_bytes(done_bytes)} of {format_bytes(mapped_bytes)}",
            why=why(error),
            hint="see the kernel's log for the machine check, and replace the module",
        )
    nodes = "" if spec.placed is None else f", from nodes {', '.join(map(str, spec.placed.nodes))} only"
    return CapacityError(
        f"the memory of a pool of {format_bytes(n_bytes)} cannot be had: {format_bytes(done_bytes)} were touched{nodes}",
        terms=(("pool bytes", n_bytes), ("mapped bytes", mapped_bytes), ("touched bytes", done_bytes)),
        where=spec.path,
        why=why(error),
        hint="make the pool smaller; what was touched is given back",
    )


def limit_words(answer: Refusal | str, mapped_bytes: int) -> str:
    """Name a limit of this process that a refused registration may have run into."""
    if isinstance(answer, str):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit in (resource.RLIM_INFINITY, -1) or limit >= mapped_bytes:
        return ""
    return f"; RLIMIT_MEMLOCK is {format_bytes(limit)} (it binds some drivers)"

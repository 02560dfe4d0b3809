"""What host memory asks of the kernel: one method a call, and the seam at which tests play kernels that refuse.

Every refusal is an OSError whose `filename` is the name of the call, or the path that was read or looked at. Nothing here sets anything of the host.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hicachectl.linux_calls import LinuxCalls, as_long, refused_as
from hicachectl.runtime.memory.shared_file import lock_as_owner

__all__ = ["FileIdentity", "MemoryCalls", "PoolCalls"]


FileIdentity = tuple[int, int]
"""Device and inode number: which file it is, whatever its name."""


class MemoryCalls(Protocol):
    """What a mapping asks of the kernel. Addresses are whole numbers, lengths bytes; every method raises OSError when refused."""

    def reserve(self, n_bytes: int) -> int:
        """Return the start of a range of addresses that nothing else gets and that holds no memory."""

    def place(self, address: int, n_bytes: int, fd: int | None, hugetlb_bytes: int | None) -> None:
        """Put writable memory inside a reserved range: private anonymous, pages of the hugetlb pool, or the file `fd`, shared."""

    def release(self, address: int, n_bytes: int) -> None:
        """Give back a reserved range with all that lies in it."""

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        """madvise(2)."""

    def touch(self, address: int, n_bytes: int) -> None:
        """Write zeros to every page, in a way that is refused and not killed where a page cannot be had."""

    def bind(self, address: int, n_bytes: int, policy: int, nodes: Sequence[int]) -> None:
        """Set the memory policy of a range (mbind): `policy` is an MPOL_ number."""

    def policy_of(self, address: int) -> tuple[int, tuple[int, ...]]:
        """Return the MPOL_ number and the nodes of the policy at an address (get_mempolicy with MPOL_F_ADDR)."""

    def own_policy(self) -> int:
        """Return the MPOL_ number of this thread's own policy (get_mempolicy without flags), which memory without one follows."""

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the node each page lies on, or minus an errno (move_pages without a target)."""

    def shared_memory(self, n_bytes: int) -> int:
        """Return a descriptor of anonymous shared memory (memfd_create), as long as asked."""

    def file(self, folder: str, n_bytes: int) -> int:
        """Return a descriptor of a new file in `folder`, as long as asked, that has no name."""

    def write(self, fd: int, data: bytes, at: int) -> None:
        """Write bytes into a file, at so many bytes from its start."""

    def own(self, fd: int) -> None:
        """Hold a file as its owner (`shared_file.lock_as_owner`)."""

    def name(self, fd: int, path: str) -> FileIdentity:
        """Give a file without a name one that nothing has yet, and return which file it is."""

    def free_bytes(self, at: int | str) -> int | None:
        """Return what the file system of a descriptor or a path has left; None where it has no limit of its own."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def unlink(self, path: str, identity: FileIdentity) -> None:
        """Remove a file's name, where that file still has it."""

    def read(self, path: str) -> str:
        """Return the text of a file of /proc or /sys."""

    def device_of(self, path: str) -> tuple[int, int]:
        """Return major and minor number of the file system a path lies on."""


class PoolCalls(LinuxCalls):
    """The real calls. `root` is where /proc and /sys are read; calls always go to this kernel. `machine` as in LinuxCalls."""

    def __init__(self, root: Path = Path("/"), *, machine: str | None = None) -> None:
        super().__init__(machine=machine)
        self._root = root

    def shared_memory(self, n_bytes: int) -> int:
        """memfd_create(2), sealed: nobody who maps it can cut it, which would kill the others where they read."""
        with refused_as("memfd_create"):
            fd = as_long(os.memfd_create("hicachectl-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), n_bytes)
        try:
            with refused_as("fcntl F_ADD_SEALS"):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except OSError:
            os.close(fd)
            raise
        return fd

    def file(self, folder: str, n_bytes: int) -> int:
        """open(2) with O_TMPFILE, and without O_EXCL, for it may get a name later."""
        with refused_as(f"open {folder}"):
            fd = os.open(folder, os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, 0o600)
        with refused_as(f"ftruncate in {folder}"):
            return as_long(fd, n_bytes)

    def write(self, fd: int, data: bytes, at: int) -> None:
        """pwrite(2)."""
        with refused_as("pwrite"):
            if os.pwrite(fd, data, at) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def own(self, fd: int) -> None:
        """fcntl(2) with F_OFD_SETLK."""
        with refused_as("fcntl F_OFD_SETLK"):
            lock_as_owner(fd)

    def name(self, fd: int, path: str) -> FileIdentity:
        """linkat(2) with AT_SYMLINK_FOLLOW of /proc/self/fd, as open(2) says of O_TMPFILE. EEXIST where the name is taken."""
        with refused_as(f"linkat {path}"):  # with a dir_fd Python calls it
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def unlink(self, path: str, identity: FileIdentity) -> None:
        """unlink(2), after a look at what has the name now."""
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == identity:
            os.unlink(path)

    def read(self, path: str) -> str:
        """Read under the root."""
        return (self._root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")

    def device_of(self, path: str) -> tuple[int, int]:
        """stat(2)."""
        found = os.stat(path).st_dev
        return os.major(found), os.minor(found)

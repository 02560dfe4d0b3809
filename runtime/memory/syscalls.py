"""What host memory asks of the kernel: one method a call, and the seam at which tests play kernels that refuse.

Every refusal is an OSError whose `filename` is the name of the call. Nothing here sets anything of the host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hicachectl.linux_calls import LinuxCalls, as_long

__all__ = ["MemoryCalls", "PoolCalls"]


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

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the node each page lies on, or minus an errno (move_pages without a target)."""

    def shared_memory(self, n_bytes: int) -> int:
        """Return a descriptor of anonymous shared memory (memfd_create), as long as asked."""

    def file(self, path: str, n_bytes: int, named: bool) -> int:
        """Return a descriptor of a new file as long as asked: `path` itself, or one in the folder `path` that has no name."""

    def free_bytes(self, at: int | str) -> int:
        """Return what the file system of a descriptor or a path has left."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def unlink(self, path: str) -> None:
        """Remove a file's name."""

    def read(self, path: str) -> str:
        """Return the text of a file of /proc or /sys."""

    def device_of(self, path: str) -> tuple[int, int]:
        """Return major and minor number of the file system a path lies on."""


class PoolCalls(LinuxCalls):
    """The real calls. `root` is where /proc and /sys are read; calls always go to this kernel. `machine` as in LinuxCalls."""

    def __init__(self, root: Path = Path("/"), *, machine: str | None = None) -> None:
        super().__init__(machine=machine)
        self._root = root

    def file(self, path: str, n_bytes: int, named: bool) -> int:
        """open(2) with O_EXCL, or with O_TMPFILE."""
        if not named:
            return self.nameless_file(path, n_bytes)
        try:
            fd = os.open(path, os.O_EXCL | os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"open {path}") from error
        try:
            return as_long(fd, n_bytes)
        except OSError as error:
            os.unlink(path)
            raise OSError(error.errno, error.strerror, f"ftruncate {path}") from error

    def unlink(self, path: str) -> None:
        """unlink(2)."""
        os.unlink(path)

    def read(self, path: str) -> str:
        """Read under the root."""
        return (self._root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")

    def device_of(self, path: str) -> tuple[int, int]:
        """stat(2)."""
        found = os.stat(path).st_dev
        return os.major(found), os.minor(found)

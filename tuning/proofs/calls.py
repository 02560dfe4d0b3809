"""The system calls of the proofs, one method a call: the seam at which tests play kernels that refuse.

They map memory of this process and give it back; nothing of the host is set. Every refusal is an OSError whose `filename` is
the name of the call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Protocol

__all__ = ["MADV_HUGEPAGE", "MADV_POPULATE_WRITE", "Calls", "LinuxCalls", "node_mask"]

MADV_HUGEPAGE = 14  # include/uapi/asm-generic/mman-common.h
MADV_POPULATE_WRITE = 23
"""Linux 5.14 and newer; older kernels answer EINVAL. Python 3.11 has no name for it."""

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_MPOL_BIND = 2  # include/uapi/linux/mempolicy.h
_FAILED = ctypes.c_void_p(-1).value

# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h: mbind, move_pages
_GENERIC = (235, 239)
_NUMBERS = {"x86_64": (237, 279), "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


class Calls(Protocol):
    """What a proof asks of the kernel. Addresses are whole numbers, lengths bytes; every method raises OSError when refused."""

    def reserve(self, n_bytes: int) -> int:
        """Return the start of a range of addresses that nothing else gets and that holds no memory."""

    def place(self, address: int, n_bytes: int, fd: int | None) -> None:
        """Put writable memory inside a reserved range: private anonymous, or the start of the file `fd`, shared."""

    def release(self, address: int, n_bytes: int) -> None:
        """Give back a reserved range with all that lies in it."""

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        """madvise(2)."""

    def touch(self, address: int, n_bytes: int) -> None:
        """Write every page, in a way that is refused and not killed where a page cannot be had."""

    def shared_memory(self, n_bytes: int) -> int:
        """Return a descriptor of anonymous shared memory (memfd_create), as long as asked."""

    def nameless_file(self, folder: str, n_bytes: int) -> int:
        """Return a descriptor of a file in `folder` that has no name and is gone when it is closed, as long as asked."""

    def free_bytes(self, fd: int) -> int:
        """Return what the file system of `fd` has left."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def bind(self, address: int, n_bytes: int, node: int) -> None:
        """Let pages of a range come from one node only (mbind, MPOL_BIND)."""

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the node each page lies on, or minus an errno (move_pages without a target)."""


class LinuxCalls:
    """The real calls. `machine` is the architecture, of uname; on an unknown one the NUMA calls are refused, not guessed."""

    def __init__(self, machine: str | None = None) -> None:
        self._machine = machine or os.uname().machine
        self._libc = ctypes.CDLL(None, use_errno=True)
        pointer, length, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._libc.mmap.restype = pointer
        self._libc.mmap.argtypes = [pointer, length, number, number, number, ctypes.c_long]
        self._libc.munmap.argtypes = [pointer, length]
        self._libc.madvise.argtypes = [pointer, length, number]
        self._libc.syscall.restype = ctypes.c_long

    def reserve(self, n_bytes: int) -> int:
        """Reserve addresses with mmap(PROT_NONE)."""
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        return self._mmap(None, n_bytes, _PROT_NONE, flags, -1)

    def place(self, address: int, n_bytes: int, fd: int | None) -> None:
        """Map over a part of a reserved range (MAP_FIXED)."""
        kind = _MAP_PRIVATE | _MAP_ANONYMOUS if fd is None else _MAP_SHARED
        self._mmap(address, n_bytes, _PROT_READ | _PROT_WRITE, kind | _MAP_FIXED, -1 if fd is None else fd)

    def release(self, address: int, n_bytes: int) -> None:
        """munmap(2)."""
        if self._libc.munmap(address, n_bytes) != 0:
            raise _refused("munmap")

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        """madvise(2)."""
        if self._libc.madvise(address, n_bytes, advice) != 0:
            raise _refused(f"madvise {advice}")

    def touch(self, address: int, n_bytes: int) -> None:
        """Read zeros into the range: a page the kernel cannot give ends the read with EFAULT, where a store would raise SIGBUS."""
        zeros = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < n_bytes:
                part = (ctypes.c_char * (n_bytes - done)).from_address(address + done)
                done += os.readv(zeros, [part])
        except OSError as error:
            raise OSError(error.errno, error.strerror, "read into the mapping") from error
        finally:
            os.close(zeros)

    def shared_memory(self, n_bytes: int) -> int:
        """memfd_create(2)."""
        try:
            return _as_long(os.memfd_create("hicachectl-proof", os.MFD_CLOEXEC), n_bytes)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "memfd_create") from error

    def nameless_file(self, folder: str, n_bytes: int) -> int:
        """open(2) with O_TMPFILE: there is no moment at which a name could be left behind."""
        flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        try:
            return _as_long(os.open(folder, flags, 0o600), n_bytes)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"open a nameless file in {folder}") from error

    def free_bytes(self, fd: int) -> int:
        """fstatvfs(3)."""
        found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize

    def close(self, fd: int) -> None:
        """close(2)."""
        os.close(fd)

    def bind(self, address: int, n_bytes: int, node: int) -> None:
        """mbind(2)."""
        number, _ = self._numa_numbers("mbind")
        words, max_node = node_mask(node)
        mask = (ctypes.c_ulong * len(words))(*words)
        answer = self._libc.syscall(
            ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(n_bytes), ctypes.c_ulong(_MPOL_BIND), mask,
            ctypes.c_ulong(max_node), ctypes.c_ulong(0),
        )  # fmt: skip
        if answer != 0:
            raise _refused("mbind")

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """move_pages(2) with nodes = NULL, which only reports."""
        _, number = self._numa_numbers("move_pages")
        count = len(addresses)
        pages = (ctypes.c_void_p * count)(*addresses)
        status = (ctypes.c_int * count)()
        answer = self._libc.syscall(
            ctypes.c_long(number), ctypes.c_long(0), ctypes.c_ulong(count), pages, ctypes.c_void_p(None), status, ctypes.c_long(0)
        )  # fmt: skip
        if answer < 0:
            raise _refused("move_pages")
        return list(status)

    def _mmap(self, address: int | None, n_bytes: int, protection: int, flags: int, fd: int) -> int:
        found = self._libc.mmap(address, n_bytes, protection, flags, fd, 0)
        if found is None or found == _FAILED:
            raise _refused("mmap")
        return int(found)

    def _numa_numbers(self, call: str) -> tuple[int, int]:
        if self._machine not in _NUMBERS:
            raise OSError(38, f"the number of this call on {self._machine} is not known here", call)
        return _NUMBERS[self._machine]


def node_mask(node: int) -> tuple[tuple[int, ...], int]:
    """Return the words of a mask of one node, and its maxnode. Pure.

    The kernel uses maxnode - 1 bits (get_nodes, mm/mempolicy.c), hence the mask's bits + 1: never less than node + 2.

    >>> node_mask(7)
    ((128,), 65)
    """
    words = [0] * (node // _WORD_BITS + 1)
    words[-1] = 1 << node % _WORD_BITS
    return tuple(words), len(words) * _WORD_BITS + 1


def _as_long(fd: int, n_bytes: int) -> int:
    try:
        os.ftruncate(fd, n_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def _refused(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), call)

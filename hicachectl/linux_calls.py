"""Linux system calls on memory, through ctypes: what both the runtime's pools and the proofs of `tune` ask of the kernel.

A leaf, because the runtime may not import tuning nor tuning the runtime. Every refusal is an OSError whose `filename` is the
name of the call. Nothing here sets anything of the host: ranges, files on a tmpfs and policies of this process's own ranges only.
Calls go through ctypes.CDLL, which lets other threads run meanwhile (`mmap.madvise` of Python 3.11 does not, so threads that
populate with it wait for each other).

Sources: mmap(2), madvise(2), mbind(2), get_mempolicy(2), move_pages(2), memfd_create(2); numbers of system calls from
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h, of flags from include/uapi/asm-generic/mman*.h
and include/uapi/linux/mempolicy.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = [
    "MADV_DONTFORK",
    "MADV_HUGEPAGE",
    "MADV_NOHUGEPAGE",
    "MADV_POPULATE_WRITE",
    "MPOL_BIND",
    "MPOL_DEFAULT",
    "MPOL_LOCAL",
    "LinuxCalls",
    "as_long",
    "node_mask",
    "nodes_in_mask",
    "refused_as",
    "syscall_number",
    "why",
]

MADV_DONTFORK = 10
MADV_HUGEPAGE = 14
MADV_NOHUGEPAGE = 15
MADV_POPULATE_WRITE = 23
"""Linux 5.14 and newer; older kernels answer EINVAL. Python 3.11 has no name for it."""
MPOL_DEFAULT = 0
MPOL_BIND = 2
MPOL_LOCAL = 4

_GENERIC = {"mbind": 235, "get_mempolicy": 236, "move_pages": 239}
_NUMBERS = {
    "x86_64": {"mbind": 237, "get_mempolicy": 239, "move_pages": 279},
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
}
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26
_MODE = 0xFFF  # above are the mode flags, MPOL_F_STATIC_NODES and others
_MPOL_F_ADDR = 2  # include/uapi/linux/mempolicy.h
_FAILED = ctypes.c_void_p(-1).value
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_MOST_NODES = 1024
"""NODES_SHIFT is at most 10: the mask that every kernel's answer fits into."""


class LinuxCalls:
    """The real calls. `machine` is the architecture, of uname; on an unknown one the NUMA calls are refused, not guessed.

    Addresses are whole numbers, lengths bytes.
    """

    def __init__(self, *, machine: str | None = None) -> None:
        self._machine = machine or platform.machine()
        self._libc = ctypes.CDLL(None, use_errno=True)
        pointer, length, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._libc.mmap.restype = pointer
        self._libc.mmap.argtypes = [pointer, length, number, number, number, ctypes.c_long]
        self._libc.munmap.argtypes = [pointer, length]
        self._libc.madvise.argtypes = [pointer, length, number]
        self._libc.syscall.restype = ctypes.c_long

    def reserve(self, n_bytes: int) -> int:
        """Reserve addresses with mmap(PROT_NONE)."""
        return self._mmap(None, n_bytes, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)

    def place(self, address: int, n_bytes: int, fd: int | None, hugetlb_bytes: int | None = None) -> None:
        """Map over a part of a reserved range (MAP_FIXED)."""
        flags = _MAP_FIXED | (_MAP_PRIVATE | _MAP_ANONYMOUS if fd is None else _MAP_SHARED)
        if hugetlb_bytes is not None:
            flags |= _MAP_HUGETLB | (hugetlb_bytes.bit_length() - 1) << _MAP_HUGE_SHIFT
        self._mmap(address, n_bytes, _PROT_READ | _PROT_WRITE, flags, -1 if fd is None else fd)

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
            with refused_as("touch"):
                done = 0
                while done < n_bytes:
                    part = (ctypes.c_char * (n_bytes - done)).from_address(address + done)
                    done += os.readv(zeros, [part])
        finally:
            os.close(zeros)

    def bind(self, address: int, n_bytes: int, policy: int, nodes: Sequence[int]) -> None:
        """mbind(2), without flags: it decides for pages that do not exist yet."""
        words, max_node = node_mask(nodes)
        mask = (ctypes.c_ulong * len(words))(*words)
        self._syscall(
            "mbind", ctypes.c_void_p(address), ctypes.c_ulong(n_bytes), ctypes.c_ulong(policy), mask,
            ctypes.c_ulong(max_node), ctypes.c_ulong(0),
        )  # fmt: skip

    def policy_of(self, address: int) -> tuple[int, tuple[int, ...]]:
        """get_mempolicy(2) of an address."""
        policy, mask = ctypes.c_int(), (ctypes.c_ulong * (_MOST_NODES // _WORD_BITS))()
        self._syscall(
            "get_mempolicy", ctypes.byref(policy), mask, ctypes.c_ulong(_MOST_NODES + 1), ctypes.c_void_p(address),
            ctypes.c_ulong(_MPOL_F_ADDR),
        )  # fmt: skip
        return policy.value, nodes_in_mask(list(mask))

    def own_policy(self) -> int:
        """get_mempolicy(2) of this thread: the MPOL_ number without mode flags. Of an address without a policy of its own the kernel tells the default, whatever this is."""
        policy = ctypes.c_int()
        self._syscall(
            "get_mempolicy", ctypes.byref(policy), ctypes.c_void_p(None), ctypes.c_ulong(0), ctypes.c_void_p(None),
            ctypes.c_ulong(0),
        )  # fmt: skip
        return policy.value & _MODE

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """move_pages(2) with nodes = NULL, which only reports."""
        n = len(addresses)
        pages, status = (ctypes.c_void_p * n)(*addresses), (ctypes.c_int * n)()
        self._syscall(
            "move_pages", ctypes.c_long(0), ctypes.c_ulong(n), pages, ctypes.c_void_p(None), status, ctypes.c_long(0)
        )
        return list(status)

    def shared_memory(self, n_bytes: int) -> int:
        """memfd_create(2)."""
        with refused_as("memfd_create"):
            return as_long(os.memfd_create("hicachectl", os.MFD_CLOEXEC), n_bytes)

    def nameless_file(self, folder: str, n_bytes: int) -> int:
        """open(2) with O_TMPFILE: there is no moment at which a name could be left behind."""
        flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        with refused_as(f"open {folder}"):
            fd = os.open(folder, flags, 0o600)
        with refused_as(f"ftruncate in {folder}"):
            return as_long(fd, n_bytes)

    def free_bytes(self, at: int | str) -> int | None:
        """statvfs(3). None: a tmpfs without a limit, which says that it has no blocks at all (docs/facts.md#tmpfs-size)."""
        with refused_as("statvfs" if isinstance(at, int) else f"statvfs {at}"):
            found = os.statvfs(at)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def close(self, fd: int) -> None:
        """close(2)."""
        os.close(fd)

    def _mmap(self, address: int | None, n_bytes: int, protection: int, flags: int, fd: int) -> int:
        found = self._libc.mmap(address, n_bytes, protection, flags, fd, 0)
        if found is None or found == _FAILED:
            raise _refused("mmap")
        return int(found)

    def _syscall(self, call: str, *arguments: object) -> int:
        number = syscall_number(call, self._machine)
        if number is None:
            raise OSError(errno.ENOSYS, f"its number on {self._machine} is not known here", call)
        answer = self._libc.syscall(ctypes.c_long(number), *arguments)
        if answer < 0:
            raise _refused(call)
        return int(answer)


def syscall_number(call: str, machine: str) -> int | None:
    """Return the number of mbind, get_mempolicy or move_pages on an architecture, None where it is not known. Pure.

    >>> syscall_number("mbind", "x86_64"), syscall_number("mbind", "aarch64"), syscall_number("mbind", "m68k")
    (237, 235, None)
    """
    return _NUMBERS.get(machine, {}).get(call)


def node_mask(nodes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the words of a node mask, and its maxnode. Pure.

    The kernel uses maxnode - 1 bits (get_nodes, mm/mempolicy.c), hence the mask's bits + 1: never less than the highest node + 2.

    >>> node_mask([0, 7]), node_mask([])
    (((129,), 65), ((0,), 65))
    """
    words = [0] * (max(nodes, default=0) // _WORD_BITS + 1)
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return tuple(words), len(words) * _WORD_BITS + 1


def nodes_in_mask(words: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of a mask. Pure.

    >>> nodes_in_mask(node_mask([3, 70])[0])
    (3, 70)
    """
    return tuple(at * _WORD_BITS + bit for at, word in enumerate(words) for bit in range(_WORD_BITS) if word >> bit & 1)


def why(error: OSError) -> str:
    """Return a refused call for people: "mbind: EPERM (Operation not permitted)". Pure."""
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    return f"{error.filename or 'a call'}: {code} ({error.strerror})"


@contextmanager
def refused_as(call: str) -> Iterator[None]:
    """Let an OSError of the block name the call that was refused, whatever Python names in it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, call) from error


def as_long(fd: int, n_bytes: int) -> int:
    """Make a new file as long as asked and return it; where that is refused, close it. Raises OSError."""
    try:
        os.ftruncate(fd, n_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def _refused(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), call)

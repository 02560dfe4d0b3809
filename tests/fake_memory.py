"""A kernel and a driver made of bookkeeping: what is mapped, open, named and registered can be asked at any time."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence

from hicachectl.linux_calls import MADV_HUGEPAGE, MADV_POPULATE_WRITE
from hicachectl.runtime.memory.register import Refusal

__all__ = ["MIB", "FakeDriver", "FakeKernel"]

MIB = 1 << 20
TMPFS = (0, 27)
DISK = (8, 1)


class FakeKernel:
    """Plays the calls of a host with two nodes and a huge page of 2 MiB.

    `refuse` is asked before each call, by its name, and may raise. `huge` says whether advised memory gets huge pages. `hidden` is
    what move_pages answers of each page while NUMA balancing samples it, as on Linux 6.1: EFAULT of huge ones, which smaps has not
    either, ENOENT of small ones.
    """

    def __init__(self, refuse: Callable[[str], None] = lambda call: None, *, huge: bool = True) -> None:
        self.refuse = refuse
        self.huge = huge
        self.calls: list[str] = []
        self.reserved: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.populated: dict[int, int] = {}
        self.policies: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.advised: set[int] = set()
        self.hidden = 0
        self.thread_policy = 0
        self.fds: set[int] = set()
        self.names: set[str] = set()
        self.free: int | None = 1 << 40
        self.files = {
            "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size": f"{2 * MIB}\n",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
            "/sys/devices/system/node/online": "0-1\n",
            "/proc/self/status": "Name:\tx\nMems_allowed_list:\t0-1\n",
            "/proc/self/mountinfo": (
                "1 0 8:1 / / rw - ext4 /dev/x rw\n30 1 0:27 / /dev/shm rw shared:4 - tmpfs tmpfs rw,size=1g,huge=never\n"
            ),
            "/proc/meminfo": "MemTotal: 1 kB\nHugepagesize:       2048 kB\n",
        }
        self._base = 1 << 40
        self._lock = threading.Lock()

    @property
    def holds_nothing(self) -> bool:
        return not (self.reserved or self.fds or self.names)

    def reserve(self, n_bytes: int) -> int:
        self._called("reserve")
        base, self._base = self._base, self._base + n_bytes + 4096
        self.reserved[base] = n_bytes
        return base

    def place(self, address: int, n_bytes: int, fd: int | None, hugetlb_bytes: int | None) -> None:
        self._called("place")
        assert any(base <= address and address + n_bytes <= base + size for base, size in self.reserved.items())
        self.placed[address] = n_bytes
        self.populated[address] = 0

    def release(self, address: int, n_bytes: int) -> None:
        self.calls.append("release")
        assert self.reserved.pop(address) == n_bytes
        for at in [at for at in self.placed if address <= at < address + n_bytes]:
            del self.placed[at], self.populated[at]

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        self._called("populate" if advice == MADV_POPULATE_WRITE else f"advise {advice}")
        if advice == MADV_HUGEPAGE:
            self.advised.add(address)
        elif advice == MADV_POPULATE_WRITE:
            self._populate(address, n_bytes)

    def touch(self, address: int, n_bytes: int) -> None:
        self._called("touch")
        self._populate(address, n_bytes)

    def bind(self, address: int, n_bytes: int, policy: int, nodes: Sequence[int]) -> None:
        self._called("bind")
        self.policies[address] = (policy, tuple(nodes))

    def policy_of(self, address: int) -> tuple[int, tuple[int, ...]]:
        self._called("policy_of")
        return self.policies.get(address, (0, ()))

    def own_policy(self) -> int:
        self._called("own_policy")
        return self.thread_policy

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        self._called("nodes_of")
        if self.hidden:
            return [-self.hidden] * len(addresses)
        nodes = next((nodes for _, nodes in self.policies.values() if nodes), (0,))
        return [nodes[i % len(nodes)] for i in range(len(addresses))]

    def shared_memory(self, n_bytes: int) -> int:
        self._called("shared_memory")
        return self._open()

    def file(self, folder: str, n_bytes: int) -> int:
        self._called("file")
        return self._open()

    def write(self, fd: int, data: bytes, at: int) -> None:
        self._called("write")

    def own(self, fd: int) -> None:
        self._called("own")

    def name(self, fd: int, path: str) -> tuple[int, int]:
        self._called("name")
        if path in self.names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), f"link {path}")
        self.names.add(path)
        return (0, fd)

    def free_bytes(self, at: int | str) -> int | None:
        self._called("free_bytes")
        return self.free

    def close(self, fd: int) -> None:
        self.calls.append("close")
        self.fds.remove(fd)

    def unlink(self, path: str, identity: tuple[int, int]) -> None:
        self.calls.append("unlink")
        self.names.remove(path)

    def read(self, path: str) -> str:
        self._called(f"read {path}")
        if path == "/proc/self/smaps":
            return "".join(self._smaps(at, n) for at, n in self.placed.items())
        if path == "/proc/self/numa_maps" and path not in self.files:
            pages = {at: n >> 12 for at, n in self.populated.items()}
            return "".join(f"{at:x} default anon={n} dirty={n} N1={n} kernelpagesize_kB=4\n" for at, n in pages.items())
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.files[path]

    def device_of(self, path: str) -> tuple[int, int]:
        return TMPFS if path.startswith("/dev/shm") else DISK

    def _called(self, call: str) -> None:
        with self._lock:
            self.calls.append(call)
            self.refuse(call)

    def _open(self) -> int:
        fd = 1000 + len(self.calls)
        self.fds.add(fd)
        return fd

    def _populate(self, address: int, n_bytes: int) -> None:
        with self._lock:
            at = next(at for at, size in self.placed.items() if at <= address and address + n_bytes <= at + size)
            self.populated[at] = min(self.placed[at], self.populated[at] + n_bytes)

    def _smaps(self, at: int, n_bytes: int) -> str:
        rss = 0 if self.hidden == errno.EFAULT else self.populated[at]
        huge = rss if self.huge and at in self.advised else 0
        return (
            f"{at:x}-{at + n_bytes:x} rw-p 00000000 00:00 0 \nSize: {n_bytes >> 10} kB\nRss: {rss >> 10} kB\n"
            f"AnonHugePages: {huge >> 10} kB\nShmemPmdMapped: {huge >> 10} kB\nPrivate_Hugetlb: {n_bytes >> 10} kB\n"
        )


class FakeDriver:
    """A driver that remembers what is registered, and what it was asked in which order."""

    name = "a driver of the tests"

    def __init__(self, refuse: Callable[[str, int], Refusal | None] = lambda call, n: None) -> None:
        self.refuse = refuse
        self.registered: dict[int, int] = {}
        self.log: list[tuple[str, int]] = []

    def prepare(self) -> Refusal | None:
        return self._ask("prepare", 0)

    def register(self, address: int, n_bytes: int) -> Refusal | None:
        refused = self._ask("register", address)
        if refused is None:
            assert address not in self.registered
            self.registered[address] = n_bytes
        return refused

    def unregister(self, address: int) -> Refusal | None:
        refused = self._ask("unregister", address)
        del self.registered[address]
        return refused

    def _ask(self, call: str, address: int) -> Refusal | None:
        self.log.append((call, address))
        return self.refuse(call, sum(1 for made, _ in self.log if made == call))

"""A kernel for the proofs: it keeps account of what is mapped, gives huge pages as told, and refuses calls by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hicachectl.linux_calls import MADV_HUGEPAGE, MADV_POPULATE_WRITE, MPOL_BIND

MIB = 1 << 20


@dataclass
class FakeCalls:
    """`huge_mib` says how much of a mapping comes in huge pages, by whether it was advised; populating adds `fallbacks` to vmstat.

    `hidden` is how often smaps leaves our mapping out after it was populated, as Linux 6.1 does with pages that NUMA balancing samples.
    `refuse` maps a method's name (advise-huge and populate for the two advices) to the errno it answers. `lies_on` says where
    a page lies that was bound to a node.
    """

    root: Path
    huge_mib: Callable[[bool], int] = lambda advised: 64 if advised else 0
    resident_mib: int = 64
    hidden: int = 0
    fallbacks: int = 0
    refuse: dict[str, int] = field(default_factory=dict)
    lies_on: Callable[[int], int] = lambda node: node
    mount_free_bytes: int | None = 1 << 30
    calls: list[str] = field(default_factory=list)
    reserved: dict[int, int] = field(default_factory=dict)
    open_files: set[int] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._advised = False
        self._node: int | None = None
        self._fields = ("AnonHugePages", "ShmemPmdMapped")

    def reserve(self, n_bytes: int) -> int:
        self._call("reserve")
        base = 0x7F00_0000_1000 + (len(self.calls) << 32)  # never on a huge page
        self.reserved[base] = n_bytes
        self._advised = False
        return base

    def place(self, address: int, n_bytes: int, fd: int | None) -> None:
        self._call("place")
        ((base, length),) = self.reserved.items()
        assert base < address and address + n_bytes < base + length, "the mapping touches its neighbours"
        assert fd is None or fd in self.open_files
        self._fields = ("AnonHugePages", "ShmemPmdMapped") if fd is None else ("ShmemPmdMapped", "AnonHugePages")

    def release(self, address: int, n_bytes: int) -> None:
        self.calls.append("release")
        assert self.reserved.pop(address) == n_bytes

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        self._call({MADV_HUGEPAGE: "advise-huge", MADV_POPULATE_WRITE: "populate"}[advice])
        if advice == MADV_HUGEPAGE:
            self._advised = True
        else:
            self._fill(address, n_bytes)

    def touch(self, address: int, n_bytes: int) -> None:
        self._call("touch")
        self._fill(address, n_bytes)

    def shared_memory(self, n_bytes: int) -> int:
        self._call("shared_memory")
        return self._open()

    def nameless_file(self, folder: str, n_bytes: int) -> int:
        self._call("nameless_file")
        self.folders.append(folder)
        return self._open()

    def free_bytes(self, at: int | str) -> int | None:
        self._call("free_bytes")
        return self.mount_free_bytes

    def close(self, fd: int) -> None:
        self.calls.append("close")
        self.open_files.remove(fd)

    def bind(self, address: int, n_bytes: int, policy: int, nodes: Sequence[int]) -> None:
        self._call("bind")
        assert policy == MPOL_BIND
        (self._node,) = nodes

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        self._call("nodes_of")
        assert self._node is not None
        return [self.lies_on(self._node) for _ in addresses]

    @property
    def all_given_back(self) -> bool:
        """Whether nothing is mapped and no file open."""
        return not self.reserved and not self.open_files

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.refuse:
            code = self.refuse[name]
            raise OSError(code, os.strerror(code), name)

    def _open(self) -> int:
        fd = 100 + len(self.calls)
        self.open_files.add(fd)
        return fd

    def _fill(self, address: int, n_bytes: int) -> None:
        """Write what the kernel would show: huge neighbours on both sides that are not ours, and ours."""
        ours, other = self._fields
        huge = {ours: self.huge_mib(self._advised) * MIB >> 10, other: 0}
        resident = self.resident_mib << 10
        if self.hidden > 0:
            self.hidden -= 1
            huge, resident = {ours: 0, other: 0}, 0
        entries = [
            _entry(address - n_bytes, address - 4096, n_bytes >> 10, {ours: n_bytes >> 10, other: 0}),
            _entry(address, address + n_bytes, resident, huge),
            _entry(address + n_bytes + 4096, address + 2 * n_bytes, n_bytes >> 10, {ours: n_bytes >> 10, other: 0}),
        ]
        (self.root / "proc/self").mkdir(parents=True, exist_ok=True)
        (self.root / "proc/self/smaps").write_text("".join(entries))
        self._count()

    def _count(self) -> None:
        path = self.root / "proc/vmstat"
        if not path.exists():
            return
        lines = []
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            lines.append(f"{name} {int(value) + self.fallbacks}" if name.endswith("_fallback") else line)
        path.write_text("\n".join(lines) + "\n")


def _entry(start: int, end: int, rss_kb: int, fields: dict[str, int]) -> str:
    lines = [f"{start:x}-{end:x} rw-p 00000000 00:00 0 ", f"Rss: {rss_kb:>15} kB"]
    lines += [f"{name}: {value:>8} kB" for name, value in fields.items()]
    return "\n".join([*lines, "VmFlags: rd wr mr mw me ac hg "]) + "\n"


REFUSALS = (errno.EPERM, errno.EINVAL, errno.ENOMEM, errno.ENOSYS)

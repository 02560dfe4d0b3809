"""A range of addresses that starts on a huge page, stands alone in smaps, and is given back when nobody looks at it any more."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicachectl.held_signals import run_in_finalizer
from hicachectl.runtime.memory.syscalls import FileIdentity, MemoryCalls

__all__ = ["AddressRange", "FileName"]


class AddressRange:
    """Addresses reserved for `mapped_bytes` at a multiple of `align_bytes`; `place` puts memory there.

        base        address           address + mapped_bytes      base + mapped_bytes + 2 align_bytes
        | no access |   the mapping   | no access                 |

    Unusable addresses stay on both sides, so that the kernel merges the mapping with no neighbour and smaps shows it alone,
    and a copy that runs out of the pool faults instead of changing something else.

    Who owns it: this object owns [base, end) and the descriptor until `release`. A view (`view`) keeps the object alive, so
    the memory goes when the last view does; unmapping under a view would crash its reader. Raises OSError when refused.
    """

    def __init__(self, calls: MemoryCalls, mapped_bytes: int, align_bytes: int) -> None:
        whole = mapped_bytes + 2 * align_bytes
        base = calls.reserve(whole)
        self._held = _Held(calls, base, whole)
        self.mapped_bytes = mapped_bytes
        self.align_bytes = align_bytes
        self.address = (base // align_bytes + 1) * align_bytes
        self._finalizer = weakref.finalize(self, run_in_finalizer, self._held.release)
        self._finalizer.atexit = False  # a daemon thread may still read a view while the process ends

    @property
    def fd(self) -> int | None:
        """The descriptor of shared memory, for another process to map; None for private memory and after `release`."""
        return self._held.fd

    def place(self, fd: int | None, *, hugetlb_bytes: int | None = None) -> None:
        """Put memory there; takes over `fd`, also when the kernel refuses. Raises OSError."""
        self._held.fd = fd
        self._held.calls.place(self.address, self.mapped_bytes, fd, hugetlb_bytes)

    def before_release(self, act: Callable[[], bool]) -> None:
        """Do `act` before the memory goes, whichever way it goes: once, and again if it is asked to (it must be idempotent).

        It returns whether the memory may go: what a driver holds still stays mapped until the process ends.
        """
        self._held.first = act

    def view(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return the first `n_bytes` as a 1-D array of uint8. The memory stays as long as this array or a part of it does."""
        found: NDArray[np.uint8] = np.asarray(_Exporter(self, n_bytes))
        return found

    def give_name(self, path: str, on_drop: Callable[[FileName], None]) -> FileName:
        """Give the file behind the memory a name, which goes with `drop_name` or the memory. Raises OSError (EEXIST)."""
        assert self._held.fd is not None
        self._held.name = FileName(self._held.calls, path, self._held.calls.name(self._held.fd, path), on_drop)
        return self._held.name

    def drop_name(self) -> None:
        """Remove the file's name, if it has one; the memory stays. May be called twice."""
        self._held.drop_name()

    def release(self) -> None:
        """Give everything back at once. Only while there is no view: a reader of one would crash. May be called twice."""
        self._finalizer()


class FileName:
    """The name of a file that is this process's own: removed once, by whoever comes first, if that file still has it."""

    def __init__(
        self, calls: MemoryCalls, path: str, identity: FileIdentity, on_drop: Callable[[FileName], None]
    ) -> None:
        self.path = path
        self._calls, self._identity, self._on_drop = calls, identity, on_drop
        self._process = os.getpid()
        self._there = True

    def close(self) -> None:
        """Remove the name. Does nothing in a forked child: the file is the parent's. May be called twice, also from a signal."""
        if not self._there or os.getpid() != self._process:
            return
        self._there = False
        try:
            self._calls.unlink(self.path, self._identity)
        except FileNotFoundError:
            pass
        finally:
            self._on_drop(self)


class _Exporter:
    """What numpy keeps as the owner of a view: it holds the range."""

    def __init__(self, held: AddressRange, n_bytes: int) -> None:
        self._range = held
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "data": (held.address, False),
            "shape": (n_bytes,),
            "typestr": "|u1",
        }


class _Held:
    """What must be given back. Apart from the range, so that giving it back holds no reference to the range."""

    def __init__(self, calls: MemoryCalls, base: int, whole: int) -> None:
        self.calls = calls
        self.base = base
        self.whole = whole
        self.fd: int | None = None
        self.name: FileName | None = None
        self.first: Callable[[], bool] | None = None
        self.mapped = True
        self.process = os.getpid()

    def release(self) -> None:
        """Unregister, unmap if that went well, close, unlink: each is tried whatever became of the one before. A forked child only unmaps."""
        free = False
        try:
            free = self.first is None or os.getpid() != self.process or self.first()
        finally:
            try:
                if self.mapped and free:
                    self.calls.release(self.base, self.whole)
                    self.mapped = False
            finally:
                fd, self.fd = self.fd, None
                try:
                    if fd is not None:
                        self.calls.close(fd)
                finally:
                    self.drop_name()

    def drop_name(self) -> None:
        name, self.name = self.name, None
        if name is not None:
            name.close()

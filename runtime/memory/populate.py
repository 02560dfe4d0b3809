"""Fault a range in, by threads on the right nodes' CPUs.

MADV_POPULATE_WRITE faults pages in without changing what they hold, and reports what a store would be killed for. Kernels before
5.14 do not know it (EINVAL): there zeros are written, which only a range that nobody filled yet can take.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hicachectl.linux_calls import MADV_POPULATE_WRITE
from hicachectl.runtime.memory.numa import narrow_thread
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.runtime.threads import run_threads

__all__ = ["MOST_THREADS", "Populated", "populate", "threads_for"]

MOST_THREADS = 16
_SLICE_BYTES = 64 << 20
"""What a thread takes at a time: small enough that all end together, large enough that taking one costs nothing."""


@dataclass(frozen=True, slots=True)
class Populated:
    """What populating got: bytes faulted in, by how many threads, by which call, and why it stopped or ran elsewhere."""

    n_bytes: int
    n_threads: int
    method: str
    error: OSError | None = None
    """The refusal that ended it early."""
    unbound: str | None = None
    """Why threads did not run on the CPUs of the wanted nodes."""


def threads_for(mapped_bytes: int, n_cpus: int | None = None) -> int:
    """Return how many threads populate a range when nobody says: a CPU each, at most one a slice, at most MOST_THREADS. Pure with `n_cpus`.

    >>> threads_for(16 << 30, n_cpus=96), threads_for(100 << 20, n_cpus=8)
    (16, 2)
    """
    cpus = len(os.sched_getaffinity(0)) if n_cpus is None else n_cpus
    return max(1, min(cpus, MOST_THREADS, -(-mapped_bytes // _SLICE_BYTES)))


def populate(
    calls: MemoryCalls,
    address: int,
    mapped_bytes: int,
    huge_bytes: int,
    *,
    n_threads: int,
    nodes: Sequence[int] = (),
    filled: bool = False,
    narrow: Callable[[int], str | None] = narrow_thread,
) -> Populated:
    """Fault in `[address, address + mapped_bytes)`, slice by slice, and return what was got. Never raises OSError.

    `nodes` are those the memory comes from: thread i runs on the CPUs of `nodes[i % len]` (the calling thread's affinity is
    not touched). `filled`: the range holds something, so nothing is written where the kernel does not know MADV_POPULATE_WRITE,
    and nothing is populated. When this returns or raises, no thread is left that could touch the range: it may be unmapped.
    """
    work = _Work(calls, address, mapped_bytes, _slice_bytes(huge_bytes))
    if not work.find_method(may_write=not filled):
        return work.result(1, None)
    reasons: list[str] = []

    def run(node: int | None) -> None:
        if node is not None and (reason := narrow(node)) is not None:
            reasons.append(reason)
        work.run()

    targets = [partial(run, nodes[i % len(nodes)] if nodes else None) for i in range(n_threads)]
    run_threads(targets, "hicache-populate", stop=work.end)
    if work.failure is not None:
        raise work.failure
    return work.result(n_threads, "; ".join(sorted(set(reasons))) or None)


class _Work:
    """Slices handed out in order, whoever asks."""

    def __init__(self, calls: MemoryCalls, address: int, mapped_bytes: int, slice_bytes: int) -> None:
        self._calls = calls
        self._address = address
        self._end = address + mapped_bytes
        self._slice = slice_bytes
        self._next = itertools.count(address, slice_bytes)  # next() of it is one step under the interpreter lock
        self._done: list[int] = []
        self._touch = False
        self.stop = False
        self.error: OSError | None = None
        self.failure: BaseException | None = None

    def find_method(self, *, may_write: bool) -> bool:
        """Try the first page: whether the kernel knows the advice, and whether there is anything to be had at all."""
        first = min(self._slice, self._end - self._address, os.sysconf("SC_PAGE_SIZE"))
        try:
            self._calls.advise(self._address, first, MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                self.error = error
                return False
            self._touch = True
            return may_write
        return True

    def end(self) -> None:
        """Let every thread end after its slice."""
        self.stop = True

    def run(self) -> None:
        """Take slices until there are none, or one was refused."""
        try:
            while not self.stop:
                at = next(self._next)
                n_bytes = min(self._slice, self._end - at)
                if n_bytes <= 0:
                    return
                if self._touch:
                    self._calls.touch(at, n_bytes)
                else:
                    self._calls.advise(at, n_bytes, MADV_POPULATE_WRITE)
                self._done.append(n_bytes)
        except OSError as error:
            self.stop = True
            self.error = self.error or error
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            self.stop = True
            self.failure = error

    def result(self, n_threads: int, unbound: str | None) -> Populated:
        if self._touch and not self._done:
            method = "nothing written (no MADV_POPULATE_WRITE before Linux 5.14)"
            return Populated(0, n_threads, method, self.error, unbound)
        method = "zeros written (no MADV_POPULATE_WRITE before Linux 5.14)" if self._touch else "MADV_POPULATE_WRITE"
        return Populated(sum(self._done), n_threads, method, self.error, unbound)


def _slice_bytes(huge_bytes: int) -> int:
    return -(-_SLICE_BYTES // huge_bytes) * huge_bytes

"""Memory bandwidth between nodes: the processors of one node copy memory of another. What a host without accelerator can tell.

Threads stay on the CPUs of node i, both sides of the copy are bound to node j. A byte copied is read once and written once, and is
counted once. It bounds what any accelerator could do with that node's memory from there, and shows what lies between sockets.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.memory.mapping import map_memory
from hicachectl.runtime.memory.numa import narrow_thread
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.runtime.probes.flows import run_together

__all__ = ["NODE_METHOD", "NodeRow", "run_node_probe"]

NODE_METHOD = (
    "numpy copies by threads kept to the CPUs of one node, between memory bound to the other; bytes copied, each read and written "
    "once; all threads start behind one barrier, and only the time in which all run counts"
)
_STEP_BYTES = 8 << 20
_REGION_BYTES = 256 << 20
"""Of all threads together, each side: more than the caches of most processors hold."""
_MOST_THREADS = 32
"""Fewer saturate the memory channels of a node of any server known."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What the CPUs of one node copied within the memory of another: bytes/s, one a run. `refused` says why there are none."""

    cpu_node: int | None
    memory_node: int | None
    n_threads: int
    samples: tuple[float, ...] = ()
    pages_by_node: Mapping[int, int] | None = None
    reasons: tuple[str, ...] = ()
    """Why threads or memory are not where they should be."""
    refused: str | None = None
    fewer: str | None = None
    """Why there are fewer samples than asked for."""
    region_bytes: int = _REGION_BYTES
    """What all threads together copy, again and again."""

    @property
    def bytes_per_s(self) -> float | None:
        """The median of the samples; None where there are none. Pure."""
        return statistics.median(self.samples) if self.samples else None


def run_node_probe(
    cpus_of: Mapping[int, Sequence[int]],
    memory_nodes: Sequence[int],
    *,
    seconds: float,
    rounds: int,
    calls: MemoryCalls | None = None,
    narrow: Callable[[int], str | None] = narrow_thread,
    told: Callable[[int, int | None, int | None], None] = lambda number, cpu_node, memory_node: None,
    stop: Callable[[], str | None] = lambda: None,
    region_bytes: int = _REGION_BYTES,
) -> tuple[NodeRow, ...]:
    """Measure each node's CPUs (`cpus_of`: those this process may use) against the memory of each node, `rounds` times `seconds`.

    Without nodes, as where the kernel tells none, one row of all processors with memory from anywhere. `told` hears each pair before it
    is measured, `stop` is asked before each pair and each sample, and ends it early. A pair that lacks memory is refused with its reason. Takes memory and gives it back; binds
    only threads and memory of its own. Raises UsageError for no time or rounds.
    """
    if rounds < 1 or seconds <= 0:
        raise UsageError(
            f"a memory probe of {rounds} rounds of {seconds:g} s", hint="give at least 1 round and some time"
        )
    pairs: list[tuple[int | None, int | None]] = [(i, j) for j in memory_nodes for i in sorted(cpus_of) if cpus_of[i]]
    rows = []
    for number, (cpu_node, memory_node) in enumerate(pairs or [(None, None)]):
        if stop() is not None:
            break
        told(number, cpu_node, memory_node)
        cpus = [cpu for some in cpus_of.values() for cpu in some] if cpu_node is None else cpus_of[cpu_node]
        n_threads = max(1, min(len(cpus), _MOST_THREADS))
        try:
            rows.append(_pair(cpu_node, memory_node, n_threads, seconds, rounds, calls, narrow, region_bytes, stop))
        except CapacityError as error:
            rows.append(NodeRow(cpu_node, memory_node, n_threads, refused=str(error), region_bytes=region_bytes))
    return tuple(sorted(rows, key=lambda row: (row.cpu_node or 0, row.memory_node or 0)))


def _pair(
    cpu_node: int | None,
    memory_node: int | None,
    n_threads: int,
    seconds: float,
    rounds: int,
    calls: MemoryCalls | None,
    narrow: Callable[[int], str | None],
    region_bytes: int,
    stop: Callable[[], str | None],
) -> NodeRow:
    placed = None if memory_node is None else Placed(PlacementMode.LOCAL, (memory_node,))
    with map_memory(2 * region_bytes, MappingSpec(placed=placed), calls=calls) as mapping:
        report = mapping.report
        reasons = list(report.reasons(without=("register", "bind") if memory_node is None else ("register",)))
        to, fro = mapping.buffer[:region_bytes], mapping.buffer[region_bytes:]
        part = region_bytes // n_threads
        threads = [
            _CopyThread(to[at * part : (at + 1) * part], fro[at * part : (at + 1) * part], cpu_node, narrow)
            for at in range(n_threads)
        ]
        samples: list[float] = []
        why = None
        for _ in range(rounds + 1):  # the first does not count
            why = stop()
            if why is not None:
                break
            samples.append(sum(rate.bytes_per_s for rate in run_together(threads, seconds)))
        kept = tuple(samples[1:])
        reasons += sorted({thread.unbound for thread in threads if thread.unbound is not None})
        return NodeRow(
            cpu_node, memory_node, n_threads, kept, dict(report.pages_by_node), tuple(reasons),
            refused=None if kept else why,
            fewer=None if why is None or not kept else f"{len(kept)} of {rounds} samples: {why}",
            region_bytes=region_bytes,
        )  # fmt: skip


class _CopyThread:
    """A flow of copies by the thread that runs it, which it keeps to the CPUs of a node."""

    def __init__(
        self, to: NDArray[np.uint8], fro: NDArray[np.uint8], node: int | None, narrow: Callable[[int], str | None]
    ) -> None:
        self.step_bytes = min(_STEP_BYTES, to.size)
        self.unbound: str | None = None
        """Why the thread does not run where it should."""
        self._to, self._fro, self._node, self._narrow = to, fro, node, narrow
        self._at = 0
        self._is_new = True

    def submit(self) -> None:
        """Keep the calling thread to the node, when it is new; the copy is made by `wait`."""
        if self._is_new and self._node is not None:
            self.unbound = self._narrow(self._node) or self.unbound
        self._is_new = False

    def wait(self) -> float:
        """Copy one step and return when it was done."""
        if self._at + self.step_bytes > self._to.size:
            self._at = 0
        piece = slice(self._at, self._at + self.step_bytes)
        np.copyto(self._to[piece], self._fro[piece])
        self._at += self.step_bytes
        return perf_counter()

    def drain(self) -> None:
        """Let the next thread bind itself anew: nothing is under way after `wait`."""
        self._is_new = True

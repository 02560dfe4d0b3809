"""The links between accelerators and host memory: what each carries, by accelerator, node, way and size, alone and together.

    link_cases  ->  each case, some seconds, several times  ->  rows: a rate beside what the link should carry  ->  judge_links

Memory is bound to the node and registered before the first copy, as the runtime's pools are. The rates are those of copies that
run back to back (`flows.run_together`); the first run of a case does not count, it wakes the link.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hicachectl.errors import CapacityError, HicacheError, UsageError
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.probes.flows import Flow, FlowRate, run_together
from hicachectl.runtime.probes.link_cases import Busy, LinkCase, Scenario
from hicachectl.runtime.probes.link_math import Expected, LinkTarget, Way, expect

__all__ = ["METHOD", "LinkMemory", "LinkProbe", "LinkRow", "Rig", "link_memory", "run_link_probe"]

METHOD = (
    "copies back to back on a stream of their own a direction, at least two steps ahead; the end of each step by its device event "
    "on the host's clock; all start behind one barrier, and only the time in which all run counts"
)
_WARM_UP_S = 0.1


class Rig(Protocol):
    """Memory on both sides and flows between them (`transfer.link_rig.TorchRig`)."""

    def flow(self, device: str, node: int | None, size_bytes: int, *, up: bool) -> Flow:
        """Return a flow of copies of a size between a device (torch name) and memory of a node, host to device when `up`."""

    def memory(self, device: str, node: int | None) -> MappingReport:
        """Say what the host memory of a device and node is."""

    def release(self) -> None:
        """Give back all host memory."""

    def close(self) -> None:
        """Give back the memory of both sides."""


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """The host memory of one accelerator and node: what was got, and why it is not all that was asked for."""

    address: str
    node: int | None
    placement: str | None
    """The policy as the kernel reads it back; None where there is none."""
    pages_by_node: dict[int, int]
    """Sampled pages by the node they lie on."""
    registered_with: str | None
    reasons: tuple[str, ...]

    @property
    def is_placed(self) -> bool:
        """Whether it lies on its node, by its policy or by where its pages were seen; always where none is named. Pure."""
        return self.node is None or self.placement is not None or set(self.pages_by_node) == {self.node}

    @property
    def is_registered(self) -> bool:
        """Whether the driver knows it: otherwise copies go through buffers of the driver and say nothing of the link. Pure."""
        return self.registered_with is not None


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One accelerator in one case: its rates in bytes/s, one a run, of both ways the sum. `refused` says why there are none."""

    target: LinkTarget
    node: int | None
    scenario: Scenario
    way: Way
    size_bytes: int
    beside: tuple[str, ...]
    """Addresses of the accelerators that were busy at the same time."""
    expected: Expected
    samples: tuple[float, ...] = ()
    by_way: dict[Way, tuple[float, ...]] | None = None
    """The samples of each way, where it is both."""
    refused: str | None = None
    fewer: str | None = None
    """Why there are fewer samples than asked for."""

    @property
    def bytes_per_s(self) -> float | None:
        """The median of the samples; None where there are none. Pure."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def share(self) -> float | None:
        """The rate over link math; None where either is not known. Pure."""
        rate, math = self.bytes_per_s, self.expected.math_bytes_per_s
        return None if rate is None or not math else rate / math

    @property
    def is_low(self) -> bool:
        """Whether the rate is far below what the link should carry. Pure."""
        rate, low = self.bytes_per_s, self.expected.low_bytes_per_s
        return rate is not None and low is not None and rate < low


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """What the probe found. `stopped` says why cases are missing at the end."""

    rows: tuple[LinkRow, ...]
    memory: tuple[LinkMemory, ...]
    seconds: float
    rounds: int
    stopped: str | None = None

    @property
    def sound_rows(self) -> tuple[LinkRow, ...]:
        """The rows whose memory is known to lie where it should and is registered: only they say something of a link or node. Pure."""
        unsound = {(one.address, one.node) for one in self.memory if not (one.is_placed and one.is_registered)}
        return tuple(row for row in self.rows if (row.target.address, row.node) not in unsound)


def run_link_probe(
    cases: Sequence[LinkCase],
    rig: Rig,
    *,
    seconds: float,
    rounds: int,
    told: Callable[[int, LinkCase], None] = lambda number, case: None,
    under_load: Callable[[LinkCase], None] = lambda case: None,
    stop: Callable[[], str | None] = lambda: None,
) -> LinkProbe:
    """Run every case `rounds` times for `seconds` behind a run that does not count, and return the rates.

    `told` hears each case before it begins, `under_load` is called once a case while its copies run, `stop` is asked
    before each case and each run that counts, and ends the probe with its word in the result. A case that lacks memory is refused with its reason and the others go on.
    Takes memory of host and devices and gives it back; changes nothing of the host. Raises UsageError for no time or rounds, and
    Vanished when a device is gone.
    """
    if rounds < 1 or seconds <= 0:
        raise UsageError(
            f"a link probe of {rounds} rounds of {seconds:g} s", hint="give at least 1 round and some time"
        )
    rows: list[LinkRow] = []
    memory: dict[tuple[str, int | None], LinkMemory] = {}
    places: frozenset[int | None] = frozenset()
    stopped: str | None = None

    def asked() -> str | None:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    try:
        for number, case in enumerate(cases):
            if asked() is not None:
                break
            told(number, case)
            here = frozenset(one.node for one in case.busy)
            if here != places:
                rig.release()  # what other nodes held: the memory of one case at a time
                places = here
            rows += _measured(case, rig, memory, seconds, rounds, under_load, asked)
    finally:
        rig.release()
    return LinkProbe(tuple(rows), tuple(memory.values()), seconds, rounds, stopped)


def _measured(
    case: LinkCase,
    rig: Rig,
    memory: dict[tuple[str, int | None], LinkMemory],
    seconds: float,
    rounds: int,
    under_load: Callable[[LinkCase], None],
    stop: Callable[[], str | None],
) -> list[LinkRow]:
    try:
        flows = [(one, way, _flow(rig, case, one, way)) for one in case.busy for way in one.way.flows]
        for one in case.busy:
            key = (one.target.address, one.node)
            if key not in memory:
                memory[key] = link_memory(*key, rig.memory(one.target.device, one.node))
        copies = [flow for _, _, flow in flows]
        run_together(copies, min(_WARM_UP_S, seconds))
        runs: list[tuple[FlowRate, ...]] = []
        while len(runs) < rounds and stop() is None:
            look = (lambda: under_load(case)) if not runs else (lambda: None)
            runs.append(run_together(copies, seconds, under_load=look))
    except CapacityError as error:
        return [_row(case, one, memory, refused=str(error)) for one in case.rows]
    except HicacheError as error:
        error.where = error.where or f"{case.scenario.value}, {', '.join(one.target.name for one in case.busy)}"
        raise
    if not runs:
        return [_row(case, one, memory, refused=stop()) for one in case.rows]
    fewer = None if len(runs) == rounds else f"{len(runs)} of {rounds} samples: {stop()}"
    found = []
    for one in case.rows:
        by_way = {
            way: tuple(run[at].bytes_per_s for run in runs) for at, (who, way, _) in enumerate(flows) if who is one
        }
        samples = tuple(sum(parts) for parts in zip(*by_way.values(), strict=True))
        made = _row(case, one, memory, samples, by_way if one.way is Way.BOTH else None)
        found.append(replace(made, fewer=fewer))
    return found


def _flow(rig: Rig, case: LinkCase, one: Busy, way: Way) -> Flow:
    return rig.flow(one.target.device, one.node, case.size_bytes, up=way is Way.H2D)


def _row(
    case: LinkCase,
    one: Busy,
    memory: Mapping[tuple[str, int | None], LinkMemory],
    samples: tuple[float, ...] = (),
    by_way: dict[Way, tuple[float, ...]] | None = None,
    refused: str | None = None,
) -> LinkRow:
    others = tuple(other.target.address for other in case.busy if other is not one)
    same = {other.target.address for other in case.busy if other.way is one.way}
    n_busy = len(same & {one.target.address, *one.target.neighbours})
    expected = _fair(expect(one.target, one.way, case.size_bytes, n_busy), case, memory)
    return LinkRow(
        one.target, one.node, case.scenario, one.way, case.size_bytes, others, expected, samples, by_way, refused
    )


def _fair(expected: Expected, case: LinkCase, memory: Mapping[tuple[str, int | None], LinkMemory]) -> Expected:
    """Take the lower end back where memory of the case is not registered: what is expected was measured with registered memory."""
    keys = [(one, memory.get((one.target.address, one.node))) for one in case.busy]
    bare = [
        f"host memory of {one.target.name} is not registered ({'; '.join(held.reasons) or 'no reason is known'})"
        for one, held in keys
        if held is not None and not held.is_registered
    ]
    if not bare or expected.low_bytes_per_s is None:
        return expected
    return replace(expected, low_bytes_per_s=None, reason=", ".join(bare))


def link_memory(address: str, node: int | None, report: MappingReport) -> LinkMemory:
    """Say what the host memory of an accelerator and node came to be. Pure."""
    reasons = report.reasons(without=("bind",) if node is None else ())
    return LinkMemory(address, node, report.placement, dict(report.pages_by_node), report.registered_with, reasons)

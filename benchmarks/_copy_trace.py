"""Where the time of a transfer goes: host times from the engine, time in the calls, and the device's own times of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from hicachectl.runtime.layout import Backend
from hicachectl.runtime.probes.copy_rig import Rig, finish
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.cuda_runtime import CudaRuntime, find_cuda_runtime
from hicachectl.runtime.transfer.device import DeviceOrder
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.movers import make_mover
from hicachectl.runtime.transfer.options import StagingOptions
from hicachectl.runtime.transfer.strided import StridedBackend

Spans = list[tuple[str, Any, Any, float]]
"""What, its first and last event on the device, and the host seconds in the call."""


class _Timed:
    """Calls `inner`'s methods of these names between two device events and notes their time; the rest goes through."""

    def __init__(self, inner: Any, names: Sequence[str], stream_of: Callable[[tuple[Any, ...], dict[str, Any]], int]):
        self._inner, self._names, self._stream_of = inner, frozenset(names), stream_of
        self.spans: Spans | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names or self.spans is None:
            return found

        def call(*given: Any, **named: Any) -> Any:
            stream = torch.cuda.ExternalStream(self._stream_of(given, named))
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            began = perf_counter()
            result = found(*given, **named)
            took = perf_counter() - began
            end.record(stream)
            if self.spans is not None:
                self.spans.append((name, start, end, took))
            return result

        return call


class _Host:
    """Host times of the engine's stages, a list a transfer."""

    def __init__(self) -> None:
        self.stages: dict[int, list[tuple[str, float]]] = {}

    def watch(self, transfer: Transfer, what: str) -> None:
        self.stages.setdefault(id(transfer), []).append((what, perf_counter()))


def trace_transfer(
    rig: Rig,
    kind: Backend,
    groups: tuple[int, ...],
    options: StagingOptions,
    orders: Callable[[torch.device], DeviceOrder],
    rounds: int,
) -> None:
    """Print the host's times of loads, backups, both and small loads, then one of each with the device's times."""
    host = _Host()
    timed: list[_Timed] = []
    backend = _timed_backend(options, timed) if rig.device.type == "cuda" and kind is Backend.STRIDED else None
    with rig.engine(kind, groups, options, orders=orders, watch=host.watch, backend=backend) as (engine, _):
        print(f"== {rig.case.name}, groups {groups}")
        for title, ask in _asks(rig):
            for label, stages in _host_medians(host, engine, ask, rounds + 1):
                print(f"{title}, {label}: {stages}")
            if timed:
                _device_times(title, timed, engine, ask)


Ask = Callable[[TransferEngine], list[Transfer]]


def _asks(rig: Rig) -> list[tuple[str, Ask]]:
    asks: list[tuple[str, Ask]] = [
        ("load", lambda engine: [rig.load(engine)]),
        ("backup", lambda engine: [rig.backup(engine)]),
        ("both", lambda engine: [rig.load(engine), rig.backup(engine)]),
    ]
    for n in (1, 4, 16):
        asks.append((f"load of {n}", lambda engine, n=n: [rig.load(engine, n)]))  # type: ignore[misc]
    return asks


def _host_medians(host: _Host, engine: TransferEngine, ask: Ask, rounds: int) -> list[tuple[str, str]]:
    """Return for each transfer of an ask its stages in us since the call, as medians, and the time between its steps."""
    seen: dict[Direction, list[dict[str, float]]] = {}
    for turn in range(rounds):
        host.stages.clear()
        began = perf_counter()
        transfers = ask(engine)
        returned = perf_counter()
        for transfer in transfers:
            finish(transfer)
        ended = perf_counter()
        if not turn:
            continue
        for transfer in transfers:
            stages = host.stages[id(transfer)]
            times = {"returned": returned, "wait over": ended}
            steps = [at for what, at in stages if what == "step"]
            times |= {what: at for what, at in stages if what != "step"}
            row = {what: 1e6 * (at - began) for what, at in times.items()}
            if steps:
                row |= {"first step": 1e6 * (steps[0] - began), "last step": 1e6 * (steps[-1] - began)}
                gaps = sorted(b - a for a, b in pairwise(steps)) or [0.0]
                row |= {"step p50": 1e6 * median(gaps), "step max": 1e6 * gaps[-1], "steps": float(len(steps))}
            seen.setdefault(transfer.direction, []).append(row)
    found = []
    for direction, rows in seen.items():
        names = [name for name in rows[0] if all(name in row for row in rows)]  # a stage may come behind the wait
        medians = sorted(((name, median(row[name] for row in rows)) for name in names), key=lambda item: item[1])
        found.append((direction.value, ", ".join(f"{name} {value:.0f}" for name, value in medians) + " us"))
    return found


def _timed_backend(options: StagingOptions, timed: list[_Timed]) -> StridedBackend:
    runtime = _Timed(find_cuda_runtime(), ("copy_batch", "copy_rows", "copy"), lambda given, named: int(given[-1]))
    mover = _Timed(make_mover(options.kernel)[0], ("move",), lambda given, named: int(named["stream"]))
    timed += [runtime, mover]
    as_runtime: CudaRuntime = runtime  # type: ignore[assignment]
    return StridedBackend(
        as_runtime, mover, torch.cuda, options,
        allocate=lambda n, device: torch.zeros(n, dtype=torch.uint8, device=device),
        allocate_pinned=lambda n: torch.zeros(n, dtype=torch.uint8, pin_memory=True),
    )  # fmt: skip


def _device_times(title: str, timed: list[_Timed], engine: TransferEngine, ask: Ask) -> None:
    """Print one run's device times in us since an event before the call: what each copy and kernel took, and the gaps."""
    origin = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    for one in timed:
        one.spans = []
    origin.record()
    for transfer in ask(engine):
        finish(transfer)
    torch.cuda.synchronize()
    for one in timed:
        spans, one.spans = one.spans or [], None
        times = [(name, *(1e3 * origin.elapsed_time(e) for e in (a, b)), 1e6 * took) for name, a, b, took in spans]
        if not times:
            continue
        busy = sum(end - start for _, start, end, _ in times)
        print(
            f"  {title} on the device: {len(times)} x {times[0][0]}, first begins {min(t[1] for t in times):.0f}, last "
            f"ends {max(t[2] for t in times):.0f}, sum {busy:.0f}, calls {sum(t[3] for t in times):.0f} us in all"
        )
        shown = times if len(times) <= 8 else [*times[:5], *times[-3:]]
        print(
            "    " + "; ".join(f"{name} [{start:.0f}, {end:.0f}) call {took:.0f}" for name, start, end, took in shown)
        )
        if title != "both":
            gaps = sorted(b[1] - a[2] for a, b in pairwise(times))
            if gaps:
                print(f"    gaps p50 {median(gaps):.1f}, max {gaps[-1]:.1f}, sum {sum(gaps):.0f} us")

"""Copy backends: how close page transfers come to the link, what they cost the caller, and what they cost compute.

Run: python benchmarks/bench_copy.py [--device cuda|cpu] [--json FILE] [--quick] [--rounds N] [--only WORD,WORD]
     [--staging-mib N] [--buffers N] [--groups FIRST+OTHERS] [--kernel triton|torch] [--scatter-programs N]
     [--beside-programs N] [--first-pieces N] [--ahead] [--trace] [--commit SHA]

`--device cpu` runs a tiny version of every part: it shows that the code works, and measures nothing of interest.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _bench import Row, arguments, report
from _copy_rig import Case, Products, Rig, SideStreams, WrongBytes, backends_here, finish
from _copy_trace import trace_transfer

from hicachectl.runtime.geometry import KVGeometry, KVKind, preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.device import AcceleratorOrder, DeviceOrder, device_order
from hicachectl.runtime.transfer.groups import layer_groups
from hicachectl.runtime.transfer.options import StagingOptions

METHOD = (
    "one process; wall on the host clock from the call to the end of wait(); peak: one contiguous copy of the same bytes "
    "between the same registered host memory and the device, measured in turn with the transfers; products on device events, "
    "alone and beside a load in turn; slots scattered on both sides, every byte of every page compared before measuring"
)
SMALL = (1, 4, 16)


@dataclass(frozen=True)
class Setup:
    """What to run on, and how often."""

    device: torch.device
    rounds: int
    options: StagingOptions
    first: int
    others: int | None
    quick: bool
    ahead: bool = False

    def orders(self, device: torch.device) -> DeviceOrder:
        """The streams of an engine: kernels with the priority of compute, or ahead of it."""
        return AcceleratorOrder(device, ahead=True) if self.ahead and self.measures else device_order(device)

    @property
    def measures(self) -> bool:
        """Whether targets apply: on an accelerator."""
        return self.device.type != "cpu"

    def target(self, value: float) -> float | None:
        """A target, where targets apply."""
        return value if self.measures else None

    def groups(self, geometry: KVGeometry) -> tuple[int, ...]:
        """The layer groups of a load."""
        return layer_groups(geometry.n_layers, self.first, self.others)

    @property
    def main_backend(self) -> Backend:
        """The backend that has the targets."""
        return Backend.STRIDED if self.measures else Backend.CPU


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0], _add)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    first, _, others = options.groups.partition("+")
    setup = Setup(
        device,
        options.rounds or (3 if options.quick or device.type == "cpu" else 9),
        StagingOptions(
            options.staging_mib << 20,
            options.buffers,
            options.kernel,
            scatter_programs=options.scatter_programs,
            first_pieces=options.first_pieces,
            beside_programs=options.beside_programs,
        ),
        int(first),
        int(others) if others else None,
        options.quick,
        options.ahead,
    )
    if options.trace:
        trace(setup)
        return
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "reference": lambda: reference(setup),
        "gqa": lambda: gqa(setup),
        "backends": lambda: other_backends(setup),
    }
    wanted = options.only.split(",") if options.only else list(parts)
    rows: list[Row] = []
    gc.collect()
    gc.disable()
    try:
        for name in wanted:
            rows += parts[name]()
    finally:
        gc.enable()
    more: dict[str, Any] = {"operands": operands(setup), **accelerator(device)}
    report("bench_copy", METHOD, rows, options, more)


def reference_case(setup: Setup) -> Case:
    """The case of the targets; on a processor a tiny one of the same kind."""
    if setup.measures:
        return Case(preset("mla-78", 64), 64 if setup.quick else 512, Layout.PAGE_FIRST_DIRECT)
    return Case(KVGeometry("mla-tiny", KVKind.MLA, 6, 64, 4), 16, Layout.PAGE_FIRST_DIRECT)


def gqa_cases(setup: Setup) -> list[Case]:
    """GQA pages of 16 and 64 tokens, chunk by chunk and token by token; about 1 GiB each."""
    found = []
    for layout in (Layout.PAGE_FIRST_DIRECT, Layout.PAGE_FIRST):
        for page_tokens in (16, 64):
            if setup.measures:
                geometry = preset("qwen3-8b", page_tokens)
                found.append(Case(geometry, (1 << (28 if setup.quick else 30)) // geometry.page_bytes, layout))
            else:
                found.append(Case(KVGeometry("gqa-tiny", KVKind.GQA, 3, 16, page_tokens), 8, layout))
    return found


def reference(setup: Setup) -> Iterator[Row]:
    """Every row of the target table that the reference case has."""
    case = reference_case(setup)
    rig = Rig(case, setup.device)
    try:
        with rig.engine(setup.main_backend, setup.groups(case.geometry), setup.options, orders=setup.orders) as (
            engine,
            backend,
        ):
            name = f"{case.name}, {setup.main_backend.value}"
            yield from against_peak(setup, rig, engine, name, 0.985)
            yield from both_ways(setup, rig, engine, name)
            yield from products(setup, rig, engine, name)
            yield from small_loads(setup, rig, engine, name)
            staging = getattr(backend, "staging_bytes", 0)
            yield Row(f"{name}: staging memory, both directions", "MiB", (staging / 2**20,), setup.target(256))
    finally:
        rig.close()


def gqa(setup: Setup) -> Iterator[Row]:
    """Share of the peak of the GQA cases."""
    for case in gqa_cases(setup):
        rig = Rig(case, setup.device)
        try:
            with rig.engine(setup.main_backend, setup.groups(case.geometry), setup.options, orders=setup.orders) as (
                engine,
                _,
            ):
                yield from against_peak(
                    setup, rig, engine, f"{case.name}, {setup.main_backend.value}", 0.95, brief=True
                )
        finally:
            rig.close()


def other_backends(setup: Setup) -> Iterator[Row]:
    """Every layout with every backend, without targets: what autotune chooses from."""
    base = reference_case(setup)
    n_pages = min(base.n_pages, 128)
    for layout in Layout:
        case = Case(base.geometry, n_pages, layout)
        rig = Rig(case, setup.device)
        try:
            for kind, missing in backends_here(layout, setup.device, setup.options).items():
                if missing is not None:
                    print(f"not measured: {layout.value} with {kind.value}: {missing}")
                    continue
                with rig.engine(kind, None, setup.options) as (engine, _):
                    for direction in Direction:
                        name = f"{case.name}, {kind.value}: {direction.value}"
                        yield Row(name, "GB/s", tuple(_rate(rig, engine, direction, setup.rounds)), None, "no target")
        finally:
            rig.close()


def against_peak(setup: Setup, rig: Rig, engine: Any, name: str, share: float, *, brief: bool = False) -> Iterator[Row]:
    """Loads and backups, each in turn with a plain copy of the same bytes."""
    streams, n_bytes = SideStreams(setup.device), rig.case.n_bytes
    for direction in Direction:
        plain = rig.plain(n_bytes, up=direction is Direction.LOAD)
        walls, peaks, held, submit, first = [], [], [], [], []
        for turn in range(setup.rounds + 1):
            peak = streams.seconds(plain)
            began = perf_counter()
            transfer = rig.load(engine) if direction is Direction.LOAD else rig.backup(engine)
            returned = perf_counter()
            transfer.wait_layer(0)
            layer = perf_counter()
            finish(transfer)
            wall = perf_counter() - began
            if turn:
                walls.append(wall)
                peaks.append(peak)
                held.append(returned - began)
                submit.append(transfer.submit_s)
                first.append((layer - began) / wall)
        way = direction.value
        best = n_bytes / median(peaks)
        yield Row(
            f"{name}: pinned peak, {way}", "GB/s", tuple(n_bytes / s / 1e9 for s in peaks), None, "one contiguous copy"
        )
        yield Row(
            f"{name}: {way}",
            "GB/s",
            tuple(n_bytes / s / 1e9 for s in walls),
            None,
            f"{transfer.n_submissions} submissions",
        )
        yield Row(
            f"{name}: {way}, share of the pinned peak", "ratio", tuple(n_bytes / s / best for s in walls), setup.target(share),
            f"peak {best / 1e9:.2f} GB/s of this run", at_least=True,
        )  # fmt: skip
        if brief:
            continue
        yield Row(f"{name}: {way}, caller held", "ms", tuple(1e3 * s for s in held), setup.target(0.2))
        yield Row(f"{name}: {way}, submission thread", "ms", tuple(1e3 * s for s in submit), setup.target(6.0))
        if direction is Direction.LOAD:
            yield Row(f"{name}: first layer group ready", "share of the whole", tuple(first), setup.target(0.05))


def both_ways(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """A load and a backup at the same time, in turn with two plain copies."""
    streams, n_bytes = SideStreams(setup.device), rig.case.n_bytes
    host, device = rig.host_pool.tensor.view(-1), rig.device_pool.tensor.view(-1)

    def up() -> None:
        device[:n_bytes].copy_(host[:n_bytes], non_blocking=True)

    def down() -> None:
        host[-n_bytes:].copy_(device[-n_bytes:], non_blocking=True)

    walls, peaks = [], []
    for turn in range(setup.rounds + 1):
        peak = streams.seconds(up, down)
        began = perf_counter()
        transfers = (rig.load(engine), rig.backup(engine))
        for transfer in transfers:
            finish(transfer)
        wall = perf_counter() - began
        if turn:
            walls.append(wall)
            peaks.append(peak)
    best = 2 * n_bytes / median(peaks)
    yield Row(
        f"{name}: bidirectional peak",
        "GB/s",
        tuple(2 * n_bytes / s / 1e9 for s in peaks),
        None,
        "two contiguous copies",
    )
    yield Row(f"{name}: load and backup at once", "GB/s", tuple(2 * n_bytes / s / 1e9 for s in walls))
    yield Row(
        f"{name}: at once, share of the bidirectional peak", "ratio", tuple(2 * n_bytes / s / best for s in walls),
        setup.target(0.95), f"peak {best / 1e9:.2f} GB/s of this run", at_least=True,
    )  # fmt: skip


def products(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """Matrix products beside a load or a backup that lasts longer than they do, between as many alone.

    The device never idles in a round, so that all have the same clock: some products first, those before, those beside,
    some while the transfer ends, those after.
    """
    n = 30 if setup.measures and not setup.quick else 3
    compute = Products(setup.device, 8192 if setup.measures else 64)
    for direction in Direction:
        alone: list[float] = []
        beside, shares, covered = [], [], []
        moved = _Beside(rig, engine, direction)
        for _ in range(setup.rounds):
            _, before, with_it, _, after = compute.in_a_row((n // 2, n, n, n, n), moved.stages)
            alone += [before, after]
            beside.append(with_it)
            shares.append(2 * with_it / (before + after))
            covered.append(moved.outlasted)
        title = f"{n} products {compute.size}^3"
        note = f"the transfer outlasted them in {sum(covered)} of {len(covered)} rounds"
        yield Row(f"{name}: {title} alone", "ms", tuple(1e3 * s for s in alone))
        yield Row(
            f"{name}: {title} beside a {direction.value}", "times alone", tuple(shares),
            setup.target(1.03), note,
        )  # fmt: skip


class _Beside:
    """A transfer that begins with the products beside it, and is over before those after it."""

    def __init__(self, rig: Rig, engine: Any, direction: Direction) -> None:
        self._ask = partial(rig.load if direction is Direction.LOAD else rig.backup, engine)
        self.outlasted = False
        self.stages = {2: self._begin, 3: self._look, 4: self._finish}

    def _begin(self) -> None:
        self._transfer = self._ask()

    def _look(self) -> None:
        self.outlasted = not self._transfer.done

    def _finish(self) -> None:
        finish(self._transfer)


def small_loads(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """Loads of a few pages, in turn with one contiguous copy of the same bytes."""
    streams = SideStreams(setup.device)
    for n_pages in SMALL:
        n_pages = min(n_pages, rig.case.n_pages)
        plain = rig.plain(n_pages * rig.case.geometry.page_bytes, up=True)
        walls, peaks = [], []
        for turn in range((20 if setup.quick or not setup.measures else 200) + 1):
            peak = streams.seconds(plain)
            began = perf_counter()
            finish(rig.load(engine, n_pages))
            wall = perf_counter() - began
            if turn:
                walls.append(wall)
                peaks.append(peak)
        base = median(peaks)
        yield Row(f"{name}: {n_pages} pages, one contiguous copy", "us", tuple(1e6 * s for s in peaks))
        yield Row(
            f"{name}: load of {n_pages} pages", "times the copy", tuple(s / base for s in walls), setup.target(1.5),
            f"p50 {1e6 * median(walls):.0f} us",
        )  # fmt: skip


def trace(setup: Setup) -> None:
    """Print where the time of loads and backups goes: each alone, both at once, and loads of a few pages."""
    for case in (reference_case(setup), *gqa_cases(setup)):
        rig = Rig(case, setup.device)
        try:
            trace_transfer(
                rig, setup.main_backend, setup.groups(case.geometry), setup.options, setup.orders, setup.rounds
            )
        finally:
            rig.close()


def _rate(rig: Rig, engine: Any, direction: Direction, rounds: int) -> Iterator[float]:
    for turn in range(rounds + 1):
        began = perf_counter()
        finish(rig.load(engine) if direction is Direction.LOAD else rig.backup(engine))
        if turn:
            yield rig.case.n_bytes / (perf_counter() - began) / 1e9


def operands(setup: Setup) -> dict[str, Any]:
    """Record what was moved and how."""
    case = reference_case(setup)
    return {
        "reference": {
            "geometry": case.geometry.name,
            "pages": case.n_pages,
            "planes": case.geometry.n_planes,
            "chunk_bytes": case.geometry.chunk_bytes,
            "bytes": case.n_bytes,
            "layer_groups": list(setup.groups(case.geometry)),
        },
        "options": asdict(setup.options),
        "rounds": setup.rounds,
    }


def accelerator(device: torch.device) -> dict[str, Any]:
    """Record the device, its driver and CUDA."""
    if device.type != "cuda":
        return {"accelerator": f"device {device}"}
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current",
        "--format=csv,noheader",
    ]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except OSError:
        found = ""
    name = torch.cuda.get_device_name(device)
    return {"accelerator": f"{name}, driver and link {found or 'unknown'}, CUDA {torch.version.cuda}"}


def _add(parser: argparse.ArgumentParser) -> None:
    usual = StagingOptions()
    parser.add_argument("--device", metavar="NAME", help="cuda, or cpu for a tiny run; cuda where there is one")
    parser.add_argument("--rounds", type=int, metavar="N", help="measured repeats a case, 9 by default")
    parser.add_argument("--only", metavar="PART,PART", help="some of reference, gqa, backends")
    parser.add_argument("--staging-mib", type=int, default=256, metavar="N", help="staging of both directions together")
    parser.add_argument("--buffers", type=int, default=2, metavar="N", help="staging buffers a direction")
    parser.add_argument(
        "--groups", default="1", metavar="FIRST[+OTHERS]", help="layers of the first group and the others"
    )
    parser.add_argument("--kernel", default="auto", metavar="NAME", help="gather kernel: triton or torch")
    parser.add_argument(
        "--scatter-programs",
        type=int,
        default=usual.scatter_programs,
        metavar="N",
        help="programs of a scatter kernel at most",
    )
    parser.add_argument(
        "--beside-programs",
        type=int,
        default=usual.beside_programs,
        metavar="N",
        help="programs of one that nothing waits for",
    )
    parser.add_argument(
        "--first-pieces", type=int, default=usual.first_pieces, metavar="N", help="pieces of a transfer's first call"
    )
    parser.add_argument("--ahead", action="store_true", help="scatter kernels go ahead of compute")
    parser.add_argument("--trace", action="store_true", help="no rows: where the time of a transfer goes")


if __name__ == "__main__":
    try:
        main()
    except WrongBytes as error:
        raise SystemExit(f"wrong bytes: {error}") from error

"""Copy backends: how close page transfers come to the link, what they cost the caller, and what they cost compute.

Run: python benchmarks/bench_copy.py [--device cuda|cpu] [--json FILE] [--quick] [--rounds N] [--only WORD,WORD]
     [--staging-mib N] [--buffers N] [--groups FIRST+OTHERS] [--kernel triton|torch] [--scatter-programs N]
     [--beside-programs N] [--first-pieces N] [--ahead] [--trace] [--commit SHA]

`--device cpu` runs a tiny version of every part: it shows that the code works, and measures nothing of interest.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _accelerator import accelerator
from _bench import Row, arguments, report
from _copy_trace import trace_transfer

from hicachectl.runtime.geometry import KVGeometry, KVKind, preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.probes.copy_rig import Case, Rig, WrongBytes, backends_here, finish
from hicachectl.runtime.probes.copy_times import against_copy, against_peak, beside_products, both_ways
from hicachectl.runtime.probes.products import Products
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
            yield from peak_rows(setup, rig, engine, name, 0.985)
            yield from both_rows(setup, rig, engine, name)
            yield from product_rows(setup, rig, engine, name)
            yield from small_rows(setup, rig, engine, name)
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
                yield from peak_rows(setup, rig, engine, f"{case.name}, {setup.main_backend.value}", 0.95, brief=True)
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


def peak_rows(setup: Setup, rig: Rig, engine: Any, name: str, share: float, *, brief: bool = False) -> Iterator[Row]:
    """Loads and backups, each in turn with a plain copy of the same bytes."""
    for direction in Direction:
        found = against_peak(rig, engine, direction, setup.rounds)
        way, n_bytes = direction.value, found.n_bytes
        yield Row(
            f"{name}: pinned peak, {way}",
            "GB/s",
            tuple(n_bytes / s / 1e9 for s in found.peak_s),
            None,
            "one contiguous copy",
        )
        yield Row(
            f"{name}: {way}",
            "GB/s",
            tuple(n_bytes / s / 1e9 for s in found.wall_s),
            None,
            f"{found.n_submissions} submissions",
        )
        yield Row(
            f"{name}: {way}, share of the pinned peak", "ratio", found.shares, setup.target(share),
            f"peak {found.peak_bytes_per_s / 1e9:.2f} GB/s of this run", at_least=True,
        )  # fmt: skip
        if brief:
            continue
        yield Row(f"{name}: {way}, caller held", "ms", tuple(1e3 * s for s in found.held_s), setup.target(0.2))
        yield Row(f"{name}: {way}, submission thread", "ms", tuple(1e3 * s for s in found.submit_s), setup.target(6.0))
        if direction is Direction.LOAD:
            first = tuple(layer / wall for layer, wall in zip(found.first_layer_s, found.wall_s, strict=True))
            yield Row(f"{name}: first layer group ready", "share of the whole", first, setup.target(0.05))


def both_rows(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """A load and a backup at the same time, in turn with two plain copies."""
    found = both_ways(rig, engine, setup.rounds)
    best = found.peak_bytes_per_s
    yield Row(
        f"{name}: bidirectional peak",
        "GB/s",
        tuple(found.n_bytes / s / 1e9 for s in found.peak_s),
        None,
        "two contiguous copies",
    )
    yield Row(f"{name}: load and backup at once", "GB/s", tuple(found.n_bytes / s / 1e9 for s in found.wall_s))
    yield Row(
        f"{name}: at once, share of the bidirectional peak", "ratio", tuple(found.n_bytes / s / best for s in found.wall_s),
        setup.target(0.95), f"peak {best / 1e9:.2f} GB/s of this run", at_least=True,
    )  # fmt: skip


def product_rows(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """Matrix products beside a load or a backup that lasts longer than they do, between as many alone."""
    n = 30 if setup.measures and not setup.quick else 3
    compute = Products(setup.device, 8192 if setup.measures else 64)
    for direction in Direction:
        found = beside_products(rig, engine, direction, compute, n, setup.rounds)
        title = f"{n} products {compute.size}^3"
        note = f"the transfer outlasted them in {sum(found.outlasted)} of {len(found.outlasted)} rounds"
        yield Row(f"{name}: {title} alone", "ms", tuple(1e3 * s for s in found.alone_s))
        yield Row(
            f"{name}: {title} beside a {direction.value}", "times alone", found.times_alone,
            setup.target(1.03), note,
        )  # fmt: skip


def small_rows(setup: Setup, rig: Rig, engine: Any, name: str) -> Iterator[Row]:
    """Loads of a few pages, in turn with one contiguous copy of the same bytes."""
    for n_pages in (min(n, rig.case.n_pages) for n in SMALL):
        found = against_copy(rig, engine, n_pages, 20 if setup.quick or not setup.measures else 200)
        base = median(found.copy_s)
        yield Row(f"{name}: {n_pages} pages, one contiguous copy", "us", tuple(1e6 * s for s in found.copy_s))
        yield Row(
            f"{name}: load of {n_pages} pages", "times the copy", tuple(s / base for s in found.wall_s), setup.target(1.5),
            f"p50 {1e6 * median(found.wall_s):.0f} us",
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
        finish(rig.ask(engine, direction))
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

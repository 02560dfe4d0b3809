"""Golden screens of bench. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_files import POOL_MEMORY, marked_lines
from fake_memory import FakeDriver, FakeKernel

from hicachectl.bench_copy_data import (
    copy_costs,
    copy_details,
    copy_measures,
    copy_reasons,
    is_best,
    method_words,
)
from hicachectl.bench_data import Setting, bench_result, measure
from hicachectl.bench_pool_data import METHOD, pool_costs, pool_details, pool_measures, pool_reasons
from hicachectl.envelope import plain, unexplained_nulls
from hicachectl.render.bench_copy import draw_copy
from hicachectl.render.bench_pool import draw_pool
from hicachectl.render.screen import Screen
from hicachectl.runtime.cost import LinearCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout, compatible
from hicachectl.runtime.memory.register import NoRegistrar
from hicachectl.runtime.probes.copy import CopyLines, CopyProbe, CopyRow
from hicachectl.runtime.probes.copy_times import AgainstPeak, BesideProducts
from hicachectl.runtime.probes.pool import default_cases, run_pool_probe
from hicachectl.runtime.transfer.backends import Direction
from hicachectl.runtime.transfer.groups import layer_groups
from hicachectl.units import GIB

FOLDER = Path(__file__).parent
H200 = Setting(
    METHOD, 3, "cuda:0", "auto: torch can use cuda here", "NVIDIA H200", "NVRM version: NVIDIA UNIX Open Kernel Module 580.95.05",
    "13.0", "2.11.0", "Linux 6.18.0", "Intel Xeon", "16 usable of 16", "125.0 GiB", {},
)  # fmt: skip
PROCESSOR = Setting(
    METHOD, 3, "cpu", "auto: torch has no accelerator it can use here", None, None, None, "2.11.0", "Linux 6.18.0", "AMD EPYC",
    "2 usable of 2", "23.5 GiB", {"accelerator": "none", "driver": "none", "cuda": "none"},
)  # fmt: skip


class Clock:
    """Passes unevenly, the same way every time."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += (0.05, 0.3, 0.11, 0.07, 0.02, 0.2, 0.13)[self.looks % 7]
        return self.now


def pool(*, accelerated: bool) -> dict[str, Any]:
    def refuse(call: str) -> None:
        if call == "file" and not accelerated:
            raise PermissionError(13, "Permission denied", "open /dev/shm")

    kernel = FakeKernel(refuse, huge=accelerated)
    probe = run_pool_probe(
        4 * GIB, default_cases((1, 16), tmpfs="/dev/shm"), rounds=3, calls=kernel, clock=Clock(),
        registrar=FakeDriver() if accelerated else NoRegistrar("the device is the CPU: there is no driver to register with"),
        baseline=(lambda n: (6.8, 1.9)) if accelerated else None,
        baseline_reason=None if accelerated else "device cpu: torch pins memory for CUDA devices",
    )  # fmt: skip
    measures = pool_measures(probe)
    setting = H200 if accelerated else PROCESSOR
    costs, no_costs = pool_costs(probe, measures, accelerated=accelerated)
    result = bench_result(
        "pool", setting, measures, costs, pool_details(probe, measures), reasons={**pool_reasons(probe), **no_costs}
    )
    document: dict[str, Any] = result.data
    assert unexplained_nulls(document) == []
    return document


def moved(direction: Direction, rate: float, share: float, n_bytes: int) -> AgainstPeak:
    walls = tuple(n_bytes / rate * part for part in (1.01, 1.0, 0.98))
    return AgainstPeak(
        direction, n_bytes, 49, walls, tuple(wall * share for wall in walls), (1.7e-4, 1.6e-4, 1.9e-4), (3.3e-3, 3.9e-3, 3.6e-3),
        tuple(wall * 0.19 for wall in walls),
    )  # fmt: skip


def copy(*, accelerated: bool) -> dict[str, Any]:
    geometry, n_pages = (preset("mla-78", 64), 512) if accelerated else (preset("tiny-512k", 512), 32)
    n_bytes, kind = n_pages * geometry.page_bytes, "cuda" if accelerated else "cpu"
    scale = 1.0 if accelerated else 0.04
    rates = {"torch": 0.13, "direct": 0.31, "batch": 0.83, "strided": 0.98, "uva": 0.89, "cpu": 0.7}
    rows = []
    for layout in Layout:
        for backend in Backend:
            why = compatible(layout, backend, kind)
            row = CopyRow(layout, backend, refused=why)
            if why is None:
                share = rates[backend.value]
                up, down = (moved(way, 55e9 * share * scale, share, n_bytes) for way in Direction)
                beside = BesideProducts(Direction.LOAD, (0.046,) * 6, (1.02, 1.04, 1.03), (True, True, accelerated))
                row = CopyRow(layout, backend, up, down, beside, beside, 256 << 20)
                if backend is Backend.DIRECT:
                    row = replace(row, cut="2 of 3 rounds: a load and a backup take 6.1 s")
            rows.append(row)
    best = Backend.STRIDED if accelerated else Backend.CPU
    cost = LinearCost(1.2e-4, 1.82e-11 / scale)
    sizes = [n * geometry.page_bytes for n in (1, 4, 16)]
    seen = tuple((n, cost.seconds(n) * part) for part in (1.02, 1.0, 0.99) for n in sizes)
    lines = [CopyLines(layout, best, seen, seen) for layout in Layout]
    probe = CopyProbe(
        geometry,
        n_pages,
        layer_groups(geometry.n_layers),
        3,
        8192,
        tuple(rows),
        tuple(lines),
        POOL_MEMORY if accelerated else replace(POOL_MEMORY, registered_with=None, placement=None),
    )
    measures = copy_measures(probe, accelerated=accelerated)
    setting = replace(H200 if accelerated else PROCESSOR, method=method_words(accelerated=accelerated))
    result = bench_result(
        "copy", setting, measures, copy_costs(probe, measures), copy_details(probe), reasons=copy_reasons(probe, measures)
    )  # fmt: skip
    document: dict[str, Any] = result.data
    assert unexplained_nulls(document) == []
    return document


DRAWN: dict[str, Callable[[Screen], None]] = {
    "bench-pool": lambda screen: draw_pool(screen, pool(accelerated=True)),
    "bench-copy": lambda screen: draw_copy(screen, copy(accelerated=True)),
    "bench-copy-cpu": lambda screen: draw_copy(screen, copy(accelerated=False)),
    "bench-pool-cpu": lambda screen: draw_pool(screen, pool(accelerated=False)),
}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    DRAWN[name](Screen(stream, width=width, ascii=True))
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_a_screen_of_bench_has_one_kind_of_unit() -> None:
    for name in DRAWN:
        stream = io.StringIO()
        DRAWN[name](Screen(stream, width=160, ascii=True, wide=True))
        assert "GB" not in stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_a_row_without_an_answer_has_a_mark_and_is_never_called_best(width: int) -> None:
    (line,) = marked_lines(draw_pool, pool(accelerated=True), "memfd huge, 1 thread", width)
    assert "memfd huge, 1 thread ?" in line
    data = pool(accelerated=True)
    assert "make ? " in "".join(marked_lines(draw_pool, data, data["make"]["case"], width))
    data = copy(accelerated=True)
    assert [row["backend"] for row in data["rows"] if row["best"]] == ["strided"] * 3
    (line,) = marked_lines(draw_copy, data, "layer_first strided", width)
    assert "layer_first ?" in line
    assert "*" not in line


def with_cold(document: dict[str, Any], samples: list[float], reason: str) -> dict[str, Any]:
    """A document of `bench pool` whose cold times are these, and whose cost of a start is missing for that reason."""
    case = document["make"]["case"]
    cold = plain(measure(case, "cold_total_s", samples))
    kept = [
        cold if (one["subject"], one["quantity"]) == (case, "cold_total_s") else one for one in document["measures"]
    ]
    facts = {
        **document["facts"],
        "/costs/make_s_per_gib": {
            "reason": reason.replace("NOISE", measure(case, "cold_total_s", samples).why_no_answer or "")
        },
    }
    make = {**document["make"], "cold_s_per_gib": cold["p50"] / 4}
    return {
        **document,
        "measures": kept,
        "facts": facts,
        "make": make,
        "costs": {**document["costs"], "make_s_per_gib": None},
    }


def make_lines(document: dict[str, Any], width: int) -> str:
    """What the screen says of making a pool, on one line."""
    stream = io.StringIO()
    draw_pool(Screen(stream, width=width, ascii=True), document)
    text = " ".join(stream.getvalue().split())
    return text[text.rindex("make ") :]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    ("samples", "why"),
    [([0.46, 0.46, 9.0], "the middle half of 3 samples spreads over 928 %"), ([0.46], "1 sample: spread unknown")],
)
def test_a_cold_time_without_an_answer_has_the_mark_and_its_reason_once(
    samples: list[float], why: str, width: int
) -> None:
    told = make_lines(with_cold(pool(accelerated=True), samples, "a case, cold_total_s: NOISE"), width)
    assert told.startswith("make ? cold ? 0.115 s a GiB, warm (made and given back right before) 0.428: ")
    assert told.count(why) == 1
    told = make_lines(with_cold(pool(accelerated=True), samples, "a pool of too few bytes"), width)
    assert told.startswith("make ? cold ? 0.115 s a GiB")
    assert f"? no answer: {why}" in told
    assert "no cost of a start: a pool of too few bytes" in told


def test_only_the_time_that_is_no_answer_has_a_mark() -> None:
    data = pool(accelerated=True)
    assert make_lines(data, 120).startswith("make cold 0.390 s a GiB, warm (made and given back right before) 0.428: ")
    warm = make_lines({**data, "no_answer": [data["make"]["case"]]}, 120)
    assert warm.startswith("make ? cold 0.390 s a GiB, warm (made and given back right before) ? 0.428: ")
    calm = make_lines(with_cold(data, [1.5, 1.6, 1.7], "not registered"), 120)
    assert calm.startswith("make cold 0.400 s a GiB")


def test_best_is_no_row_without_an_answer_and_none_that_another_beats_both_ways() -> None:
    def row(backend: Backend, load: float, backup: float, wobble: float = 1.0) -> CopyRow:
        def walls(seconds: float) -> AgainstPeak:
            return replace(
                moved(Direction.LOAD, 50e9, 0.9, 1 << 30), wall_s=(seconds, seconds, seconds * wobble, seconds * wobble)
            )

        return CopyRow(Layout.LAYER_FIRST, backend, load=walls(load), backup=walls(backup))

    fast, slow, mixed = row(Backend.DIRECT, 1.0, 1.0), row(Backend.TORCH, 2.0, 2.0), row(Backend.STRIDED, 0.5, 1.5)
    assert is_best(fast, (fast, slow, mixed))
    assert is_best(mixed, (fast, slow, mixed))
    assert not is_best(slow, (fast, slow))
    assert not is_best(row(Backend.DIRECT, 1.0, 1.0, wobble=3.0), (row(Backend.DIRECT, 1.0, 1.0, wobble=3.0), slow))
    assert is_best(slow, (row(Backend.DIRECT, 1.0, 1.0, wobble=3.0), slow))

"""Golden screens of bench model. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from pathlib import Path as FilePath
from typing import Any

import pytest
from bench_files import POOL_MEMORY, marked_lines

from hicachectl.bench_data import Setting, bench_result
from hicachectl.bench_model_data import (
    Prefill,
    method_of,
    model_costs,
    model_details,
    model_measures,
    model_of,
    model_reasons,
)
from hicachectl.envelope import unexplained_nulls
from hicachectl.render.bench_model import draw_model
from hicachectl.render.screen import Screen
from hicachectl.runtime.cost import Path, RecomputeCost
from hicachectl.runtime.probes.fits import QUADRATIC, Fit, Timing, fit
from hicachectl.runtime.probes.page_cache import FileSystem
from hicachectl.runtime.probes.restores import PathTiming, RestoreProbe

FOLDER = FilePath(__file__).parent
PAGE_TOKENS, PAGE_BYTES = 64, 9437184
TOKENS = (512, 2048, 8192, 32768)
WOBBLE = (1.0, 1.03, 0.98)
H200 = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)
KUNLUN = RecomputeCost(0.735, 2.82e-5, 0.0)


def probe(host: tuple[float, float], storage: tuple[float, float] | None) -> RestoreProbe:
    """Restores that take a + b n, with a little noise that is the same every time."""
    found = RestoreProbe(
        "cuda:0",
        "strided",
        "strided with triton 54.6 GB/s up, 54.5 down, compute 1.00x",
        None,
        verified_pages=8160,
        host_memory=POOL_MEMORY,
    )
    for turn, wobble in enumerate(WOBBLE):
        for at, n in enumerate(TOKENS):
            pages, noise = n // PAGE_TOKENS, wobble + 0.004 * ((at + turn) % 3)
            up = (host[0] + host[1] * n) * noise
            found.timings.append(PathTiming(Path.HOST_READ, pages, pages * PAGE_BYTES, up))
            found.timings.append(PathTiming(Path.HOST_WRITE, pages, pages * PAGE_BYTES, up * 1.01))
            if storage is not None:
                read = (storage[0] + storage[1] * n) * noise
                found.timings.append(PathTiming(Path.STORAGE_READ, pages, pages * PAGE_BYTES, read))
                found.storage_restores.append((pages, read + up))
    if storage is not None:
        found.timings += [
            PathTiming(Path.STORAGE_WRITE, n, n * PAGE_BYTES, 1e-3 + n * 4e-3) for n in (8, 24, 96, 384) for _ in WOBBLE
        ]
        found.storage_folder, found.storage_system = (
            "/data/l3/hicachectl-bench-a1b2",
            FileSystem("xfs", "/data", "/dev/nvme0n1"),
        )
        found.storage_resident_share = 0.0
    return found


def measured(cost: RecomputeCost, hardware: str) -> Prefill:
    timings = tuple(Timing(n, cost.seconds(0, n) * w) for n in (1000, 4000, 16000, 32000) for w in (1.0, 1.02, 0.99))
    return Prefill(
        "times in prefill.csv",
        fit(timings, QUADRATIC),
        timings,
        hardware,
        ((131072, "longer than one that was left out"),),
    )


def document(name: str) -> dict[str, Any]:
    if name == "bench-model":
        found, prefill, no_storage = (
            probe((4e-4, 2.72e-6), (2e-3, 6.1e-5)),
            measured(H200, "NVIDIA H200, my engine"),
            None,
        )
    elif name == "bench-model-kunlun":  # docs/facts.md#kunlun-break-even, above the floor that both share
        given = Fit.given(KUNLUN.a_s, KUNLUN.b_s, KUNLUN.c_s, "given by the configuration, not measured here")
        prefill = Prefill("run.compute of the configuration, the prefill of mla-78", given, (), "Kunlun P800")
        found, no_storage = probe((0.0441, 13.539e-6), None), "--path none"
    else:
        found, prefill, no_storage = probe((4e-4, 2.72e-6), None), None, "--path none"
    no_prefill = None if prefill else "no recompute was asked for: --prefill-file FILE or --prefill synthetic"
    model = model_of(found, PAGE_TOKENS, prefill, no_prefill, no_storage)
    measures = model_measures(found, model, PAGE_TOKENS, 0)
    costs, no_costs = model_costs(found, model, measures, "qwen3-8b")
    told = {
        "name": "qwen3-8b", "page_tokens": PAGE_TOKENS, "page_bytes": PAGE_BYTES, "bytes_per_token": 147456, "dtype": "bf16", "layout": "page_first_direct",
    }  # fmt: skip
    setting = Setting(
        method_of(prefill), 3, "cuda:0", "auto: torch can use cuda here", "NVIDIA H200", "NVRM version: 580.95.05", "13.0", "2.11.0",
        "Linux 6.18.0", "Intel Xeon", "16 usable of 16", "125.0 GiB", {},
    )  # fmt: skip
    result = bench_result(
        "model", setting, measures, costs, model_details(found, model, told, "asked for"),
        reasons={**model_reasons(model), **no_costs},
    )  # fmt: skip
    made: dict[str, Any] = result.data
    assert unexplained_nulls(made) == []
    return made


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["bench-model", "bench-model-kunlun", "bench-model-alone"])
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    draw_model(Screen(stream, width=width, ascii=True), document(name))
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_the_published_restore_breaks_even_at_about_3000_tokens_with_an_interval_around() -> None:
    (even,) = document("bench-model-kunlun")["break_even"]
    assert (even["tier"], even["verdict"]) == ("host", "from")
    assert even["n_tokens"] == pytest.approx(3000, rel=0.03)
    assert even["low_tokens"] < even["n_tokens"] < even["high_tokens"]


def test_on_an_accelerator_whose_restores_are_cheap_few_tokens_are_enough_and_storage_may_be_too_slow_for_all() -> None:
    host, storage = document("bench-model")["break_even"]
    assert host["verdict"] == "always"
    assert storage["verdict"] == "from"  # attention makes late tokens dearer than any read
    assert storage["beyond_measured"]
    assert storage["n_tokens"] > 32_768


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_a_curve_with_a_length_without_an_answer_has_a_mark(width: int) -> None:
    for subject, curve, column in (
        ("storage tier, 512 tokens", "restore L3 storage ?", "FROM L3 storage ?"), ("prefill, 1000 tokens", "recompute ?", "RECOMPUTE ?"),
    ):  # fmt: skip
        first, *saved = marked_lines(draw_model, document("bench-model"), subject, width)
        assert curve in first
        assert saved
        assert all(
            column in line for line in saved
        )  # the heads of what it would save: a line each where the table is vertical


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_curve_has_its_lengths_beside_it_and_what_lies_outside_them_a_mark(width: int) -> None:
    data, stream = document("bench-model"), io.StringIO()
    data["saved"] = []
    data["restore"] = [{**fit, "from_tokens": 512, "to_tokens": 2048} for fit in data["restore"]]
    draw_model(Screen(stream, width=width, ascii=True), data)
    text = stream.getvalue()
    assert "512 .. 2 048" in text
    assert "* outside the lengths measured (TOKENS)" in text
    wide = io.StringIO()
    draw_model(Screen(wide, width=200, ascii=True), data)
    rows = [line for line in wide.getvalue().splitlines() if line.startswith(("restore", "recompute"))]
    assert [" *" in line for line in rows] == [True, True, False]


def test_two_models_are_said_once_and_a_slope_of_0_is_said() -> None:
    data, stream = document("bench-model"), io.StringIO()
    none = {"verdict": "demo", "n_tokens": None, "low_tokens": None, "high_tokens": None, "reason": "two models"}
    data["break_even"] = [{**even, **none} for even in data["break_even"]]
    data["saved"] = []
    data["restore"][0]["b_interval_s"]["low"] = 0.0
    draw_model(Screen(stream, width=120, ascii=True), data)
    assert stream.getvalue().count("BREAK-EVEN") == 1
    assert "BREAK-EVEN  DEMO: no break-even for your machine: two models" in stream.getvalue()
    assert "b of restore L2 host is not told apart from 0" in stream.getvalue()

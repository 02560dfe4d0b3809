"""Golden screens of bench link. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fakes.link_rig import FakeFlow
from link_results import MIB, Host, Seen, ask, drawn, setting

from hicachectl.bench_data import Costs, bench_result, spread_of
from hicachectl.bench_link_data import node_details, node_measures, node_reasons
from hicachectl.render.bench_link import draw_link
from hicachectl.render.screen import Screen
from hicachectl.runtime.probes.link_math import Way
from hicachectl.runtime.probes.node_memory import NODE_METHOD, NodeRow

FOLDER = Path(__file__).parent
GB = 10**9
PROCESSOR = replace(
    setting(NODE_METHOD), device="cpu", device_reason="torch sees no accelerator in this process", accelerator=None,
    reasons={"accelerator": "none", "driver": "none", "cuda": "none"},
)  # fmt: skip


@cache
def links() -> dict[str, Any]:
    """Two behind one uplink whose writers wait for each other, one far node slow, one policy refused, one size small."""
    with TemporaryDirectory() as folder:
        host = Host(Path(folder) / "h")

        def speed(flow: FakeFlow, batch: list[FakeFlow]) -> float:
            writers = [one for one in batch if not one.up]
            slow = 4.1 if not flow.up and len(writers) > 1 else 2.5 if flow.node == 0 else 1
            return host.fair(flow, batch) / slow * (0.3 if flow.size_bytes < 16 * MIB else 1)

        return drawn(host.link(ask("U2", nodes=(0, 5), sizes=(MIB, 256 * MIB)), speed, unbound=(0,)))


@cache
def unregistered() -> dict[str, Any]:
    """Both behind one uplink, the memory of one of them not registered."""
    with TemporaryDirectory() as folder:
        host = Host(Path(folder) / "h")

        def speed(flow: FakeFlow, batch: list[FakeFlow]) -> float:
            return host.fair(flow, batch) * (0.3 if flow.device == "cuda:5" else 1)

        return drawn(host.link(ask("U2", ways=(Way.D2H,)), speed, unregistered=("cuda:5",)))


@cache
def unknown() -> dict[str, Any]:
    """One accelerator of a virtual machine: no port above it, no link files."""
    with TemporaryDirectory() as folder:
        host = Host(Path(folder) / "h", "1n0x-vm")
        seen = [Seen("cuda:0", "0000:09:00.0", "NVIDIA H200")]
        return drawn(host.link(ask(sizes=(256 * MIB,)), lambda flow, batch: 54.7e9 / len(batch) ** 0.2, devices=seen))


@cache
def nodes() -> dict[str, Any]:
    rows = tuple(
        NodeRow(i, j, 16, (180.0 * GB / (1 + abs(i - j)), 182.0 * GB / (1 + abs(i - j))), {j: 256})
        for i in (0, 1)
        for j in (0, 1)
    )
    rows = (*rows[:3], NodeRow(1, 1, 16, reasons=(), refused="node 1 has 12 MiB left of 512 MiB"))
    why = "torch sees no accelerator in this process (no driver)"
    details = node_details(rows, why, 0.25, "the time budget is used up", {(0, 0): 10, (0, 1): 21})
    return drawn(bench_result("link", PROCESSOR, node_measures(rows), Costs(), details, reasons=node_reasons()))


DRAWN: dict[str, Callable[[], dict[str, Any]]] = {
    "bench-link": links,
    "bench-link-nodes": nodes,
    "bench-link-unknown": unknown,
    "bench-link-unregistered": unregistered,
}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    draw_link(Screen(stream, width=width, ascii=True), DRAWN[name]())
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_a_screen_has_one_kind_of_unit() -> None:
    for made in DRAWN.values():
        stream = io.StringIO()
        draw_link(Screen(stream, width=160, ascii=True, wide=True), made())
        assert "GB" not in stream.getvalue()


@pytest.mark.parametrize(
    ("samples", "shown"),
    [((1.0 * GB, 3.0 * GB, 9.0 * GB), "?"), ((9.0 * GB, 9.0 * GB), "?"), ((9.0 * GB,) * 3, "")],
    ids=["far apart", "few", "an answer"],
)
def test_a_rate_between_nodes_without_an_answer_has_a_mark(samples: tuple[float, ...], shown: str) -> None:
    data, stream = nodes(), io.StringIO()
    first = {**data["measures"][0], "samples": list(samples), "spread": spread_of(samples)}
    told = {**data, "measures": [first, *data["measures"][1:]], "no_answer": [first["subject"]]}
    draw_link(Screen(stream, width=80, ascii=True), told)
    (row,) = [line for line in stream.getvalue().splitlines() if line.startswith("node 0")]
    assert row.count("?") == len(shown)

"""Golden screens of bench store. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from bench_files import marked_lines

from hicachectl.bench_data import Setting, bench_result
from hicachectl.bench_store_data import METHOD, store_costs, store_details, store_measures, store_reasons
from hicachectl.envelope import unexplained_nulls
from hicachectl.render.bench_store import draw_store
from hicachectl.render.screen import Screen
from hicachectl.runtime.probes.page_cache import FileSystem
from hicachectl.runtime.probes.store_rows import Call, StoreCase, StoreOp, StoreProbe, StoreRow, space_terms

FOLDER = Path(__file__).parent
SETTING = Setting(
    METHOD, 3, "cpu", "storage is read into host memory", None, None, None, "2.11.0", "Linux 6.18.0", "AMD EPYC", "64 usable of 64",
    "503.5 GiB", {"accelerator": "none", "driver": "none", "cuda": "none"},
)  # fmt: skip
PAGE_BYTES, N_PAGES = 9437184, 32
SECONDS_A_PAGE = {
    StoreOp.WRITE: 4e-3, StoreOp.WRITE_DURABLE: 9e-3, StoreOp.EXISTS_KNOWN: 4e-7, StoreOp.EXISTS_LOOKED: 6e-6,
    StoreOp.READ_WARM: 3e-3, StoreOp.READ_COLD: 5e-3,
}  # fmt: skip


def row(case: StoreCase, op: StoreOp, *, refused: str | None = None) -> StoreRow:
    n_bytes = N_PAGES * PAGE_BYTES
    if refused is not None:
        return StoreRow(case, op, N_PAGES, n_bytes, resident_share=1.0, refused=refused)
    calls = tuple(
        tuple(
            Call(case.batch_pages, (1e-4 + case.batch_pages * SECONDS_A_PAGE[op]) * (1 + 0.02 * turn + 0.001 * at))
            for at in range(N_PAGES // case.batch_pages)
        )
        for turn in range(3)
    )
    walls = tuple(sum(call.seconds for call in of) / case.n_threads * 1.01 for of in calls)
    share = 0.0 if op is StoreOp.READ_COLD else 1.0 if op is StoreOp.READ_WARM else None
    return StoreRow(case, op, N_PAGES, n_bytes, walls, calls, share)


def document(*, in_memory: bool) -> dict[str, Any]:
    cases = (StoreCase(1, 1), StoreCase(16, 1), *(() if in_memory else (StoreCase(16, 2),)))
    why = "100 % of the files stayed in the page cache after fsync and DONTNEED"
    rows = [
        row(case, op, refused=why if in_memory and op is StoreOp.READ_COLD else None)
        for case in cases
        for op in StoreOp
    ]
    system = FileSystem("tmpfs", "/dev/shm", "tmpfs") if in_memory else FileSystem("xfs", "/data", "/dev/nvme0n1")
    left = () if in_memory else ("/data/l3/hicachectl-bench-a1b2/notes.txt: not written by the store",)
    folder = "/dev/shm/hicachectl-bench-a1b2" if in_memory else "/data/l3/hicachectl-bench-a1b2"
    probe = StoreProbe(
        folder, system, PAGE_BYTES, PAGE_BYTES + 4096, N_PAGES, 3, 576, (2.1e-3, 2.0e-3, 2.4e-3), tuple(rows), left
    )
    measures = store_measures(probe)
    costs, no_costs = store_costs(probe, measures)
    told = {
        "name": "qwen3-8b",
        "page_tokens": 64,
        "page_bytes": PAGE_BYTES,
        "dtype": "bf16",
        "layout": "page_first_direct",
    }
    details = store_details(probe, told, "asked for", space_terms(PAGE_BYTES, N_PAGES))
    result = bench_result("store", SETTING, measures, costs, details, reasons={**store_reasons(probe), **no_costs})
    made: dict[str, Any] = result.data
    assert unexplained_nulls(made) == []
    return made


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["bench-store", "bench-store-tmpfs"])
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    draw_store(Screen(stream, width=width, ascii=True), document(in_memory=name.endswith("tmpfs")))
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width
    assert "GB" not in text


def test_the_costs_are_those_of_one_thread_cold_where_there_is_cold() -> None:
    costs, warm = document(in_memory=False)["costs"], document(in_memory=True)["costs"]
    assert costs["storage_read"]["per_byte_s"] * PAGE_BYTES == pytest.approx(5e-3, rel=0.05)
    assert warm["storage_read"]["per_byte_s"] * PAGE_BYTES == pytest.approx(3e-3, rel=0.05)
    assert document(in_memory=False)["costs_of"] == {"storage_read": "read cold", "storage_write": "write"}
    assert document(in_memory=True)["costs_of"]["storage_read"] == "read warm"
    assert costs["storage_write"]["per_byte_s"] * PAGE_BYTES == pytest.approx(4e-3, rel=0.05)
    assert costs["storage_read"]["n_samples"] == 3 * (32 + 2)


def test_what_fsync_adds_is_the_difference_of_both_writes() -> None:
    added = {one["subject"]: one for one in document(in_memory=True)["measures"] if one["quantity"] == "fsync_s"}
    assert added["fsync, 1 page a call, 1 thread"]["p50"] == pytest.approx(5e-3, rel=0.05)
    assert len(added) == 2


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_a_row_without_an_answer_has_a_mark(width: int) -> None:
    (line,) = marked_lines(draw_store, document(in_memory=False), "read cold, 16 pages a call, 2 threads", width)
    assert "read cold ?" in line


def test_a_cost_that_is_missing_has_its_reason_on_the_screen() -> None:
    data, stream = document(in_memory=False), io.StringIO()
    why = "read cold by one thread: calls of one size, a line needs two --batch sizes (and --threads 1)"
    data["costs"] = {**data["costs"], "storage_read": None}
    data["facts"] = {**data["facts"], "/costs/storage_read": {"reason": why}}
    draw_store(Screen(stream, width=200, ascii=True), data)
    assert f"  no costs.storage_read: {why}" in stream.getvalue()
    assert "costs.host_read" not in stream.getvalue()

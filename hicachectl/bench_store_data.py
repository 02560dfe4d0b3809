"""The document of `hicachectl bench store`: every operation by pages a call and threads, what was cold, and the cost of a transfer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.bench_costs import line_cost
from hicachectl.bench_data import NO_TIME, Costs, Expected, LineCost, Measure, fewer, measure

if TYPE_CHECKING:
    from hicachectl.runtime.probes.store_rows import StoreCase, StoreOp, StoreProbe, StoreRow

__all__ = ["METHOD", "store_costs", "store_details", "store_headline", "store_measures", "store_reasons", "subject_of"]

METHOD = (
    "a fresh set of page objects each round: written as run writes (into the page cache, renamed into place), read back warm, asked for "
    "from memory and by a stat each, put out of the page cache (fsync, POSIX_FADV_DONTNEED) and read cold, then a second set written with "
    "fsync; every byte read is compared, outside the times; a page takes its call's seconds over the call's pages; the file backend lets one "
    "write go on at a time and has no O_DIRECT path; cold is this kernel's page cache: names stay cached, a cache in the device or in a "
    "hypervisor is not emptied"
)
_SOURCE = "docs/facts.md#checksum"
# Bytes a second of the checksum that every read and write computes, on one core: docs/facts.md#checksum.
_CRC_SMALL, _CRC_LARGE, _LARGE_PAGE_BYTES = 2.7e9, 4.2e9, 64 << 10


def subject_of(case: StoreCase, op: StoreOp) -> str:
    """Name a row. Pure."""
    pages = "1 page" if case.batch_pages == 1 else f"{case.batch_pages} pages"
    threads = "1 thread" if case.n_threads == 1 else f"{case.n_threads} threads"
    return f"{op.value}, {pages} a call, {threads}"


def store_measures(probe: StoreProbe) -> tuple[Measure, ...]:
    """Return every number of the probe: rows in their order, then what fsync adds to a page, then start-up scans. Pure."""
    found = [one for row in probe.rows for one in _of_row(probe, row)]
    found += [one for case in dict.fromkeys(row.case for row in probe.rows) for one in _fsync(probe, case)]
    found.append(
        measure(
            f"start-up scan, {probe.n_pages} objects",
            "scan_s",
            probe.scan_s,
            reason=None if probe.scan_s else "no round ended",
        )
    )
    return tuple(found)


def store_headline(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: bytes a second. Pure."""
    return tuple(one for one in measures if one.quantity == "bytes_per_s")


def store_costs(probe: StoreProbe, measures: Sequence[Measure]) -> tuple[Costs, dict[str, str]]:
    """Return what a transfer from and to storage costs by its bytes, and why one is not known. Pure.

    From calls of one thread, as the runtime reads and writes: reads cold, warm ones where nothing could be read cold; writes
    without fsync. Rows whose samples are no answer are left out.
    """
    from hicachectl.runtime.probes.store_rows import StoreOp

    read, why_no_read = _line(probe, measures, StoreOp.READ_COLD if _any_cold(probe) else StoreOp.READ_WARM)
    write, why_no_write = _line(probe, measures, StoreOp.WRITE)
    reasons = {"/costs/storage_read": why_no_read, "/costs/storage_write": why_no_write}
    return Costs(storage_read=read, storage_write=write), {k: why for k, why in reasons.items() if why is not None}


def store_details(
    probe: StoreProbe, geometry: Mapping[str, Any], path_reason: str, space: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    """Return the fields that this document alone has. Pure."""
    system = probe.file_system
    return {
        "geometry": dict(geometry),
        "folder": probe.folder,
        "folder_reason": path_reason,
        "file_system": {"kind": system.kind, "mount": system.mount, "device": system.device},
        "n_pages": probe.n_pages,
        "object_bytes": probe.object_bytes,
        "space": [{"name": name, "n_bytes": n_bytes} for name, n_bytes in space],
        "verified_pages": probe.verified_pages,
        "o_direct": None,
        "costs_of": {"storage_read": "read cold" if _any_cold(probe) else "read warm", "storage_write": "write"},
        "rows": [
            {
                "subject": subject_of(row.case, row.op),
                "operation": row.op.value,
                "pages_a_call": row.case.batch_pages,
                "threads": row.case.n_threads,
                "resident_share": row.resident_share,
                "refused": row.refused,
            }
            for row in probe.rows
        ],
        "left": list(probe.left),
    }


def store_reasons(probe: StoreProbe) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    unknown = probe.file_system.reason or "the kernel does not list it"
    return {
        "/o_direct": "the file backend reads and writes through the page cache",
        "/file_system/kind": unknown,
        "/file_system/mount": unknown,
        "/file_system/device": unknown,
        "resident_share": "looked at before reads alone, where the kernel tells",
        "refused": "it ran",
    }


def _of_row(probe: StoreProbe, row: StoreRow) -> list[Measure]:
    name, why = subject_of(row.case, row.op), row.refused or NO_TIME
    reason = (row.refused or fewer(len(row.wall_s), probe.rounds)) if row.wall_s else why
    found = []
    if row.op.moves_bytes:
        found.append(measure(name, "bytes_per_s", row.bytes_per_s, expected=_expected(probe, row), reason=reason))
    found.append(measure(name, "pages_per_s", row.pages_per_s, reason=reason))
    found.append(measure(name, "page_p50_s", [statistics.median(pages) for pages in row.page_s], reason=reason))
    found.append(measure(name, "page_p99_s", [_p99(pages) for pages in row.page_s], reason=reason))
    return found


def _fsync(probe: StoreProbe, case: StoreCase) -> list[Measure]:
    """What fsync adds to a page's write, by rounds that have both."""
    from hicachectl.runtime.probes.store_rows import StoreOp

    rows = {row.op: row for row in probe.rows if row.case == case}
    if StoreOp.WRITE_DURABLE not in rows:
        return []
    plain, durable = (
        [statistics.median(pages) for pages in rows[op].page_s] for op in (StoreOp.WRITE, StoreOp.WRITE_DURABLE)
    )
    added = [with_it - without for without, with_it in zip(plain, durable, strict=False)]
    name = subject_of(case, StoreOp.WRITE_DURABLE).replace(StoreOp.WRITE_DURABLE.value, "fsync", 1)
    return [measure(name, "fsync_s", added, reason=None if added else "one of both writes was not measured")]


def _expected(probe: StoreProbe, row: StoreRow) -> Expected | None:
    """What the checksum allows at most: in memory it is the dearest step. Reads add up over threads, writes do not."""
    from hicachectl.runtime.probes.store_rows import StoreOp

    if row.op not in (StoreOp.WRITE, StoreOp.READ_WARM):
        return None
    rate = _CRC_SMALL if probe.page_bytes <= _LARGE_PAGE_BYTES else _CRC_LARGE
    return Expected(None, rate * (row.case.n_threads if row.op is StoreOp.READ_WARM else 1), _SOURCE)


def _any_cold(probe: StoreProbe) -> bool:
    from hicachectl.runtime.probes.store_rows import StoreOp

    return any(row.wall_s for row in probe.rows if row.op is StoreOp.READ_COLD)


def _line(probe: StoreProbe, measures: Sequence[Measure], op: StoreOp) -> tuple[LineCost | None, str | None]:
    rates = {one.subject: one for one in measures if one.quantity == "bytes_per_s"}
    rows = [row for row in probe.rows if row.op is op and row.case.n_threads == 1 and row.wall_s]
    calm = [row for row in rows if rates[subject_of(row.case, row.op)].why_no_answer is None]
    if len(calm) < len(rows) and len({row.case.batch_pages for row in calm}) < 2:
        first = next(row for row in rows if row not in calm)
        unsure = rates[subject_of(first.case, op)].why_no_answer
        return None, f"the samples of {op.value} by one thread are no answer: {unsure}"
    transfers = [(one.n_pages * probe.page_bytes, one.seconds) for row in calm for calls in row.calls for one in calls]
    if len({n_bytes for n_bytes, _ in transfers}) == 1:
        return None, f"{op.value} by one thread: calls of one size, a line needs two --batch sizes (and --threads 1)"
    cost, why = line_cost(transfers)
    return cost, None if why is None else f"{op.value} by one thread: {why}"


def _p99(values: Sequence[float]) -> float:
    """The smallest value that 99 of 100 do not pass."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]

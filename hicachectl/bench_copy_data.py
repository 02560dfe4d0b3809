"""The document of `hicachectl bench copy`: measures of every layout and backend, what one H200 host had, and the cost of a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.bench_costs import line_cost, transfer_measures, transfers_of, why_no_line
from hicachectl.bench_data import Costs, Expected, LineCost, Measure, measure
from hicachectl.bench_memory import NO_MEMORY, memory_data
from hicachectl.units import KIB, MIB

if TYPE_CHECKING:
    from hicachectl.runtime.probes.copy import CopyLines, CopyProbe, CopyRow

__all__ = [
    "HOST_ONLY",
    "copy_costs",
    "copy_details",
    "copy_doubts",
    "copy_headline",
    "copy_measures",
    "copy_reasons",
    "is_best",
    "method_words",
    "subject",
]

HOST_ONLY = "device memory is a range of host memory here: these are copies within host memory, not a link"
_BACKENDS, _LINK, _UVA = "docs/facts.md#h200-backends", "docs/facts.md#h200-link", "docs/facts.md#h200-uva"
# Rate over that of one contiguous copy in the same run, both directions, on one H200: docs/facts.md#h200-backends.
_SHARES: dict[str, tuple[float, float]] = {
    "torch": (0.08, 0.18), "direct": (0.25, 0.46), "batch": (0.73, 0.92), "strided": (0.79, 0.99), "uva": (0.87, 0.91),
}  # fmt: skip
_SHARES_BY_TOKEN: dict[str, tuple[float, float]] = {"strided": (0.94, 0.98), "uva": (0.69, 0.91)}
_PEAK_BYTES_PER_S = (53.7e9, 55.3e9)
_SLOWDOWN = {"strided": Expected(None, 1.03, _BACKENDS), "uva": Expected(None, 1.23, _UVA)}
_FIRST_LAYER = Expected(None, 0.05, _BACKENDS)
_MOST_SHARE = 1.1
"""Of the plain copy's rate: what is faster shows that the plain copy was held up, and is no answer (our choice)."""
_LEAST_CHUNK_BYTES, _LEAST_BYTES = 64 * KIB, 256 * MIB
"""Below these the call overhead decides, and the range of that host is no measure (docs/facts.md#h200-segments, #h200-link)."""


def subject(row: CopyRow | CopyLines) -> str:
    """Name a row, or what n bytes cost in one: layout and backend. Pure."""
    return f"{row.layout.value} {row.backend.value}"


def method_words(*, accelerated: bool) -> str:
    """Say how it is measured. Pure."""
    words = (
        "wall on the host clock from the call to the end of wait(); peak: one contiguous copy of the same bytes between the same host "
        "memory and the device, in turn with the transfers; slots scattered on both sides, every byte of every page compared before "
        "measuring and after; products: matrix products beside a transfer over as many alone, "
    )
    return words + ("device events" if accelerated else f"host clock; {HOST_ONLY}")


def copy_measures(probe: CopyProbe, *, accelerated: bool) -> tuple[Measure, ...]:
    """Return every number of the probe, row by row. Pure."""
    found = [one for row in probe.rows for one in _of_row(probe, row, accelerated=accelerated)]
    line = _main_lines(probe)
    if line is not None:
        for path, transfers in (("host read", line.read_transfers), ("host write", line.write_transfers)):
            found += transfer_measures(path, transfers)
    return tuple(found)


def copy_headline(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: the wall times. Pure."""
    return tuple(one for one in measures if one.quantity in ("load_s", "backup_s"))


def copy_doubts(measures: Sequence[Measure]) -> dict[tuple[str, str], str]:
    """Say of headline numbers, by subject and quantity, why what they are set against makes them no answer. Pure."""
    found, by_name = dict[tuple[str, str], str](), {(one.subject, one.quantity): one for one in measures}
    for one in copy_headline(measures):
        way = one.quantity.removesuffix("_s")
        peak, share = by_name.get((one.subject, f"{way}_peak_s")), by_name.get((one.subject, f"{way}_share_of_peak"))
        if peak is not None and peak.why_no_answer is not None:
            found[one.subject, one.quantity] = f"its peak ({way}_peak_s): {peak.why_no_answer}"
        elif share is not None and share.p50 is not None and share.p50 > _MOST_SHARE:
            found[one.subject, one.quantity] = (
                f"{100 * share.p50:.0f} % of the rate of one contiguous copy of the same bytes, {100 * _MOST_SHARE:.0f} % is the most that "
                "counts as an answer: the plain copy was held up"
            )
    return found


def copy_costs(probe: CopyProbe, measures: Sequence[Measure]) -> Costs:
    """Return what a transfer of n bytes costs in the layout that `run` uses unasked, else in the first that ran. Pure.

    A direction whose wall times, or transfers of any size, are no answer has no cost.
    """
    line = _main_lines(probe)
    if line is None:
        return Costs()
    why = _no_answer(line, measures)
    read, write = (None if name in why else cost for name, (cost, _) in _fitted(line).items())
    return Costs(host_read=read, host_write=write)


def copy_reasons(probe: CopyProbe, measures: Sequence[Measure]) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    line = _main_lines(probe)
    none = (
        "no layout with a backend was measured"
        if not any(row.load for row in probe.rows)
        else "no time was left to fit it"
    )
    why = {} if line is None else _no_answer(line, measures)
    no_line = {
        f"/lines/{at}/{name.removeprefix('host_')}": reason
        for at, one in enumerate(probe.lines)
        for name, (_, reason) in _fitted(one).items()
        if reason is not None
    }
    return no_line | {
        "/costs/host_read": why.get("host_read", none), "/costs/host_write": why.get("host_write", none), "refused": "it ran", "cut": "as many rounds as asked for",
        "costs_of": none, "submissions_load": "not measured", "submissions_backup": "not measured",
        "outlasted": "not measured", **NO_MEMORY,
    }  # fmt: skip


def copy_details(probe: CopyProbe) -> dict[str, Any]:
    """Return the fields that this document alone has. Pure."""
    geometry, main = probe.geometry, _main_lines(probe)
    best = {line.layout: line.backend for line in probe.lines}
    return {
        "geometry": geometry.name,
        "dtype": geometry.dtype,
        "page_tokens": geometry.page_tokens,
        "page_bytes": geometry.page_bytes,
        "planes": geometry.n_planes,
        "chunk_bytes": geometry.chunk_bytes,
        "pages": probe.n_pages,
        "bytes": probe.n_bytes,
        "layer_groups": list(probe.layer_groups),
        "products_size": probe.products_size,
        "host_memory": memory_data(probe.host_memory),
        "costs_of": None if main is None else {"layout": main.layout.value, "backend": main.backend.value},
        "rows": [
            {
                "subject": subject(row),
                "layout": row.layout.value,
                "backend": row.backend.value,
                "best": best.get(row.layout) is row.backend and is_best(row, probe.rows),
                "refused": row.refused,
                "cut": row.cut,
                "staging_bytes": row.staging_bytes,
                "submissions_load": None if row.load is None else row.load.n_submissions,
                "submissions_backup": None if row.backup is None else row.backup.n_submissions,
                "outlasted": None
                if row.beside_load is None or row.beside_backup is None
                else all((*row.beside_load.outlasted, *row.beside_backup.outlasted)),
            }
            for row in probe.rows
        ],
        "lines": [
            {
                "layout": line.layout.value,
                "backend": line.backend.value,
                **{name.removeprefix("host_"): _plain(cost) for name, (cost, _) in _fitted(line).items()},
                "samples": line.n_samples,
            }
            for line in probe.lines
        ],
    }


def is_best(row: CopyRow, rows: Sequence[CopyRow]) -> bool:
    """Whether a chosen row may be called best: its own times are an answer, and no other that is one is faster both ways."""
    walls = {one.backend: _walls(one) for one in rows if one.layout is row.layout}
    mine = walls[row.backend]
    others = [theirs for backend, theirs in walls.items() if theirs and backend is not row.backend]
    return bool(mine) and not any(all(a < b for a, b in zip(theirs, mine, strict=True)) for theirs in others)


def _walls(row: CopyRow) -> list[float]:
    """Median seconds each way; empty where a way was not measured or is no answer."""
    ways = [measure(subject(row), "wall_s", moved.wall_s) for moved in (row.load, row.backup) if moved is not None]
    found = [one.p50 for one in ways if one.p50 is not None and one.why_no_answer is None]
    return found if len(found) == 2 else []


def _of_row(probe: CopyProbe, row: CopyRow, *, accelerated: bool) -> list[Measure]:
    from hicachectl.runtime.transfer.backends import Direction

    name, found = subject(row), list[Measure]()
    for direction in Direction:
        moved, beside, way = row.moved(direction), row.beside(direction), direction.value
        if moved is None or beside is None:
            found.append(measure(name, f"{way}_s", [], reason=row.refused))
            continue
        share, peak = _expected_share(probe, row, accelerated), _expected_peak(probe, accelerated)
        slow = _SLOWDOWN.get(row.backend.value) if accelerated else None
        found += [
            measure(name, f"{way}_s", moved.wall_s, reason=row.cut),
            measure(name, f"{way}_peak_s", moved.peak_s, expected=peak),
            measure(name, f"{way}_share_of_peak", moved.shares, expected=share),
            measure(name, f"{way}_submit_s", moved.submit_s),
            measure(name, f"{way}_held_s", moved.held_s),
            measure(name, f"products_beside_{way}_times_alone", beside.times_alone, expected=slow),
        ]
        if direction is Direction.LOAD:
            shares = [layer / wall for layer, wall in zip(moved.first_layer_s, moved.wall_s, strict=True)]
            is_staged = accelerated and row.backend.value == "strided" and probe.n_bytes >= _LEAST_BYTES
            found.append(measure(name, "load_first_layer_s", moved.first_layer_s))
            found.append(
                measure(name, "load_first_layer_share", shares, expected=_FIRST_LAYER if is_staged else None)
            )  # fmt: skip
    return found


def _expected_share(probe: CopyProbe, row: CopyRow, accelerated: bool) -> Expected | None:
    if not accelerated or probe.n_bytes < _LEAST_BYTES or probe.geometry.chunk_bytes < _LEAST_CHUNK_BYTES:
        return None
    by_token = row.layout.value == "page_first"
    span = (_SHARES_BY_TOKEN if by_token else _SHARES).get(row.backend.value)
    return None if span is None else Expected(*span, _BACKENDS)


def _expected_peak(probe: CopyProbe, accelerated: bool) -> Expected | None:
    if not accelerated or probe.n_bytes < _LEAST_BYTES:
        return None
    slow, fast = _PEAK_BYTES_PER_S
    return Expected(probe.n_bytes / fast, probe.n_bytes / slow, _LINK)


def _main_lines(probe: CopyProbe) -> CopyLines | None:
    usual = [line for line in probe.lines if line.layout.value == "page_first_direct"]
    return next(iter([*usual, *probe.lines]), None)


def _fitted(line: CopyLines) -> dict[str, tuple[LineCost | None, str | None]]:
    """What n bytes cost each way, by the name of the cost; None with the reason where no line goes through them."""
    return {"host_read": line_cost(line.read_transfers), "host_write": line_cost(line.write_transfers)}


def _plain(cost: LineCost | None) -> dict[str, float] | None:
    return None if cost is None else {"fixed_s": cost.fixed_s, "per_byte_s": cost.per_byte_s}


def _no_answer(line: CopyLines, measures: Sequence[Measure]) -> dict[str, str]:
    """Say of a cost why it is none: the transfers that it would be fitted to, or the wall times of its row."""
    name, found = subject(line), {cost: why for cost, (_, why) in _fitted(line).items() if why is not None}
    for cost, quantity in (("host_read", "load_s"), ("host_write", "backup_s")):
        if cost in found:
            continue
        walls = [one for one in measures if (one.subject, one.quantity) == (name, quantity)]
        why = why_no_line([*walls, *transfers_of(cost, measures)])
        if why is not None:
            found[cost] = f"{name} gave no answer: {why}"
    return found

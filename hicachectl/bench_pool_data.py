"""The document of `hicachectl bench pool`: measures of every case with the range one H200 host had, and the cost of making a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.bench_data import NO_TIME, Costs, Expected, Measure, fewer, measure
from hicachectl.units import GIB, MIB

if TYPE_CHECKING:
    from hicachectl.runtime.probes.pool import PoolProbe, PoolRow

__all__ = ["METHOD", "PARTS", "TORCH", "pool_costs", "pool_details", "pool_headline", "pool_measures", "pool_reasons"]

METHOD = (
    "every case makes and gives back the whole pool twice a round, back to back, in an order that turns; the second time counts, the "
    "first pays for what was in that memory before, in a virtual machine for the hypervisor too; total is reserve to registered, with the "
    "look at the pages; torch is torch.empty(pin_memory=True), its cache emptied after"
)
PARTS = ("populate_s", "register_s", "unregister_s", "unmap_s")
TORCH = "torch pinned"
_SOURCE = "docs/facts.md#h200-pools"
# Seconds a GiB on one H200 host (a virtual machine with one NUMA node), lowest and highest of all runs, by private or shared
# memory and by whether it came in huge pages: docs/facts.md#h200-pools.
_S_PER_GIB: dict[tuple[str, bool, bool], tuple[float, float]] = {
    ("populate_s", False, False): (0.044, 0.39),
    ("populate_s", False, True): (0.027, 0.21),
    ("populate_s", True, False): (0.215, 0.58),
    ("populate_s", True, True): (0.032, 0.20),
    ("register_s", False, False): (0.033, 0.065),
    ("register_s", False, True): (0.020, 0.036),
    ("register_s", True, False): (0.034, 0.069),
    ("register_s", True, True): (0.020, 0.031),
}
_LEAST_RANGE_BYTES = GIB
"""Below this what a call costs is not small beside what a byte costs, and the ranges of that host are no measure (our choice)."""
_LEAST_COST_BYTES = 256 * MIB
"""Below this seconds a GiB are those of the calls (our choice)."""
_COLD = "cold_total_s"
_UNREGISTER_S_PER_GIB = (0.015, 0.021)
_TIMES_TORCH = {False: (0.6, 4.1), True: (1.8, 8.3)}
_HUGE = 0.5
"""From this share on a case is compared with those in huge pages."""


def pool_measures(probe: PoolProbe) -> tuple[Measure, ...]:
    """Return every number of the probe: cases in their order, then torch's. Pure."""
    found = [one for row in probe.rows for one in _of_case(probe, row)]
    made = [made for made, _ in probe.baseline.samples]
    back = [back for _, back in probe.baseline.samples if back is not None]
    why = probe.baseline.reason or NO_TIME
    short = probe.baseline.reason or fewer(len(made), probe.rounds)
    found.append(measure(TORCH, "total_s", made, reason=why if not made else short))
    found.append(measure(TORCH, "unmap_s", back, reason=why if not back else short))
    return tuple(found)


def pool_headline(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: the total of every case. Pure."""
    return tuple(one for one in measures if one.quantity == "total_s" and one.subject != TORCH)


def pool_costs(probe: PoolProbe, measures: Sequence[Measure], *, accelerated: bool) -> tuple[Costs, dict[str, str]]:
    """Return what making a GiB costs a start, and why that is not known: private memory in huge pages, by most threads. Pure.

    It is the cold time, that of the first of each pair: a start finds memory as others left it. None for a pool that is too small,
    and for one that no driver registered on an accelerator, where `run` registers it.
    """
    row = _usual(probe)
    cold = None if row is None else _find(measures, row.case.name, _COLD)
    if row is None or cold is None:
        why = "anonymous memory in huge pages was not measured"
    elif probe.n_bytes < _LEAST_COST_BYTES:
        why = f"a pool of {probe.n_bytes} bytes, {_LEAST_COST_BYTES} are the fewest whose seconds a GiB are not those of the calls"
    elif accelerated and not all(one.registered_bytes for one in row.before):
        why = f"not registered, as run would on this device: {probe.not_registered or 'the driver refused'}"
    elif cold.p50 is None or cold.why_no_answer is not None:
        why = f"{cold.subject}, {_COLD}: {cold.why_no_answer or cold.reason}"
    else:
        return Costs(make_s_per_gib=cold.p50 / (probe.n_bytes / GIB)), {}
    return Costs(), {"/costs/make_s_per_gib": why}


def pool_reasons(probe: PoolProbe) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    return {
        "refused": "it ran",
        "times_torch": "torch's pinned memory or a registered pool is missing",
        "registrar": probe.not_registered or "not known",
        "not_registered": "all pools were registered",
        "register_s": probe.not_registered or "no sample",
        "unregister_s": probe.not_registered or "no sample",
        "huge_share": "smaps does not tell it: the notes of the row say why",
        "/make": "no pool of anonymous memory in huge pages was made",
        "expected": "no range is known for it: the ranges are of 1 GiB or more, registered for an accelerator",
    }


def pool_details(probe: PoolProbe, measures: Sequence[Measure]) -> dict[str, Any]:
    """Return the fields that this document alone has. Pure."""
    return {
        "pool_bytes": probe.n_bytes,
        "make": _make(probe, measures),
        "registrar": probe.registrar,
        "not_registered": probe.not_registered,
        "cases": [
            {
                "name": row.case.name,
                "kind": row.case.spec.kind.value,
                "huge": row.case.spec.huge,
                "threads": row.case.spec.n_threads,
                "refused": row.refused,
                "times_torch": probe.times_faster(row),
                "notes": sorted({reason for sample in row.samples for reason in sample.reasons}),
                "before": [
                    {"total_s": one.total_s, "populate_s": one.populate_s, "register_s": one.register_s} for one in row.before
                ],
            }
            for row in probe.rows
        ],
    }  # fmt: skip


def _of_case(probe: PoolProbe, row: PoolRow) -> list[Measure]:
    name, samples = row.case.name, row.samples
    why = row.refused or NO_TIME
    short = row.refused or fewer(len(samples), probe.rounds)
    found = [measure(name, "total_s", [one.total_s for one in samples], reason=short if samples else why)]
    found.append(measure(name, _COLD, [one.total_s for one in row.before], reason=short if row.before else why))
    for part in PARTS:
        values = [getattr(one, part) for one in samples if getattr(one, part) is not None]
        missing = (probe.not_registered or "the driver refused") if samples else why
        found.append(
            measure(
                name,
                part,
                values,
                expected=_expected(probe, row, part) if values else None,
                reason=short if values else missing,
            )
        )
    shares = [one.huge_share for one in samples if one.huge_share is not None]
    wanted = None
    if shares:
        wanted = Expected(0.99, 1.0, _SOURCE) if row.case.spec.huge else Expected(0.0, 0.0, _SOURCE)
    missing = "smaps does not tell it: the notes of the row say why" if samples else why
    found.append(measure(name, "huge_share", shares, expected=wanted, reason=short if shares else missing))
    times = probe.times_faster(row)
    if times is not None and probe.baseline.total_s is not None:
        ratios = [probe.baseline.total_s / one.total_s for one in samples]
        span = Expected(*_TIMES_TORCH[_is_huge(row)], _SOURCE) if _has_range(probe) else None
        found.append(measure(name, "times_torch", ratios, expected=span, reason=short))
    return found


def _expected(probe: PoolProbe, row: PoolRow, part: str) -> Expected | None:
    from hicachectl.runtime.memory.kinds import Kind

    if row.case.spec.kind is Kind.HUGETLB or not _has_range(probe):
        return None
    shared = row.case.spec.kind.is_shared
    span = _UNREGISTER_S_PER_GIB if part == "unregister_s" else _S_PER_GIB.get((part, shared, _is_huge(row)))
    if span is None:
        return None
    gib = probe.n_bytes / GIB
    return Expected(span[0] * gib, span[1] * gib, _SOURCE)


def _has_range(probe: PoolProbe) -> bool:
    """Whether that host's ranges say anything here: a pool as large, made for an accelerator."""
    return probe.registrar is not None and probe.n_bytes >= _LEAST_RANGE_BYTES


def _is_huge(row: PoolRow) -> bool:
    shares = [one.huge_share for one in row.samples if one.huge_share is not None]
    return bool(shares) and min(shares) >= _HUGE


def _usual(probe: PoolProbe) -> PoolRow | None:
    from hicachectl.runtime.memory.kinds import Kind

    private = [row for row in probe.rows if row.case.spec.kind is Kind.ANONYMOUS and row.case.spec.huge]
    return max(private, key=lambda row: row.case.spec.n_threads or 0, default=None)


def _make(probe: PoolProbe, measures: Sequence[Measure]) -> dict[str, Any] | None:
    """Seconds a GiB of the case that a cost is taken from: cold and warm, whether registered, by how many threads."""
    row = _usual(probe)
    if row is None or not row.samples:
        return None
    gib, name = probe.n_bytes / GIB, row.case.name
    cold, warm = (_find(measures, name, quantity) for quantity in (_COLD, "total_s"))
    return {
        "case": name,
        "threads": row.case.spec.n_threads,
        "registered": all(one.registered_bytes for one in row.before),
        "cold_s_per_gib": None if cold is None or cold.p50 is None else cold.p50 / gib,
        "warm_s_per_gib": None if warm is None or warm.p50 is None else warm.p50 / gib,
    }


def _find(measures: Sequence[Measure], subject: str, quantity: str) -> Measure | None:
    return next((one for one in measures if (one.subject, one.quantity) == (subject, quantity)), None)

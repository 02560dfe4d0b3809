"""The document of `hicachectl bench pool`: measures of every case with the range one H200 host had, and the cost of making a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hicachectl.bench_data import Costs, Expected, Measure, measure
from hicachectl.units import GIB

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
    ("populate_s", False, False): (0.050, 0.39),
    ("populate_s", False, True): (0.029, 0.21),
    ("populate_s", True, False): (0.218, 0.50),
    ("populate_s", True, True): (0.033, 0.16),
    ("register_s", False, False): (0.043, 0.065),
    ("register_s", False, True): (0.021, 0.036),
    ("register_s", True, False): (0.042, 0.069),
    ("register_s", True, True): (0.023, 0.031),
}
_UNREGISTER_S_PER_GIB = (0.015, 0.021)
_TIMES_TORCH = {False: (1.6, 4.0), True: (2.2, 8.3)}
_HUGE = 0.5
"""From this share on a case is compared with those in huge pages."""


def pool_measures(probe: PoolProbe) -> tuple[Measure, ...]:
    """Return every number of the probe: cases in their order, then torch's. Pure."""
    found = [one for row in probe.rows for one in _of_case(probe, row)]
    made = [made for made, _ in probe.baseline.samples]
    back = [back for _, back in probe.baseline.samples if back is not None]
    why = probe.baseline.reason or "no time was left for it"
    found.append(measure(TORCH, "total_s", made, reason=why if not made else probe.baseline.reason))
    found.append(measure(TORCH, "unmap_s", back, reason=why if not back else None))
    return tuple(found)


def pool_headline(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: the total of every case. Pure."""
    return tuple(one for one in measures if one.quantity == "total_s" and one.subject != TORCH)


def pool_costs(probe: PoolProbe, measures: Sequence[Measure]) -> Costs:
    """Return what making a GiB costs in the case that a pool of `run` is made by: private, huge, by most threads. Pure."""
    case = _usual(probe)
    total = next(
        (one for one in measures if case is not None and (one.subject, one.quantity) == (case, "total_s")), None
    )
    if total is None or total.p50 is None or total.noisy:
        return Costs()
    return Costs(make_s_per_gib=total.p50 / (probe.n_bytes / GIB))


def pool_reasons(probe: PoolProbe) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    return {
        "/costs/make_s_per_gib": f"{_usual(probe) or 'anonymous memory in huge pages'} gave no answer",
        "refused": "it ran",
        "times_torch": "torch's pinned memory or a registered pool is missing",
        "registrar": probe.not_registered or "not known",
        "not_registered": "all pools were registered",
        "register_s": probe.not_registered or "no sample",
        "unregister_s": probe.not_registered or "no sample",
        "huge_share": "smaps could not be read",
    }


def pool_details(probe: PoolProbe) -> dict[str, Any]:
    """Return the fields that this document alone has. Pure."""
    return {
        "pool_bytes": probe.n_bytes,
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
    why = row.refused or "no time was left for it"
    found = [measure(name, "total_s", [one.total_s for one in samples], reason=row.refused if samples else why)]
    for part in PARTS:
        values = [getattr(one, part) for one in samples if getattr(one, part) is not None]
        missing = (probe.not_registered or "the driver refused") if samples else why
        found.append(
            measure(name, part, values, expected=_expected(probe, row, part), reason=None if values else missing)
        )
    shares = [one.huge_share for one in samples if one.huge_share is not None]
    wanted = Expected(0.99, 1.0, _SOURCE) if row.case.spec.huge else Expected(0.0, 0.0, _SOURCE)
    missing = "smaps could not be read" if samples else why
    found.append(measure(name, "huge_share", shares, expected=wanted, reason=None if shares else missing))
    times = probe.times_faster(row)
    if times is not None and probe.baseline.total_s is not None:
        ratios = [probe.baseline.total_s / one.total_s for one in samples]
        low, high = _TIMES_TORCH[_is_huge(row)]
        found.append(measure(name, "times_torch", ratios, expected=Expected(low, high, _SOURCE)))
    return found


def _expected(probe: PoolProbe, row: PoolRow, part: str) -> Expected | None:
    from hicachectl.runtime.memory.kinds import Kind

    if row.case.spec.kind is Kind.HUGETLB:
        return None
    shared = row.case.spec.kind.is_shared
    span = _UNREGISTER_S_PER_GIB if part == "unregister_s" else _S_PER_GIB.get((part, shared, _is_huge(row)))
    if span is None:
        return None
    gib = probe.n_bytes / GIB
    return Expected(span[0] * gib, span[1] * gib, _SOURCE)


def _is_huge(row: PoolRow) -> bool:
    shares = [one.huge_share for one in row.samples if one.huge_share is not None]
    return bool(shares) and min(shares) >= _HUGE


def _usual(probe: PoolProbe) -> str | None:
    from hicachectl.runtime.memory.kinds import Kind

    private = [row for row in probe.rows if row.case.spec.kind is Kind.ANONYMOUS and row.case.spec.huge]
    most = max(private, key=lambda row: row.case.spec.n_threads or 0, default=None)
    return None if most is None else most.case.name

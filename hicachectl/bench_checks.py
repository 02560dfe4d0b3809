"""Whether the numbers of a benchmark's result can be what a benchmark wrote: signs, sizes, medians and numbers of samples. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime

from hicachectl.bench_costs import transfers_of
from hicachectl.bench_data import LEAST_SAMPLES, Costs, LineCost, Measure
from hicachectl.bench_json import wrong

__all__ = ["check_costs", "check_measures", "check_time"]

_SIGNED = "fsync_s"
"""The one quantity that is a difference: noise may put it below 0."""
_LARGEST_SAMPLE = 1e18
_LARGEST_S, _LARGEST_S_PER_BYTE = 3600.0, 1e-3
"""An hour, and a kilobyte a second: what is beyond is no cost of a transfer or of a prefill's token (our choice)."""
_LINES = ("host_read", "host_write", "storage_read", "storage_write")


def check_time(collected_at: str, path: str) -> None:
    """Raise UsageError where this is no moment as the envelope writes it."""
    try:
        datetime.strptime(collected_at, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise wrong(path, "collected_at", "a time such as 2026-01-31T12:00:00Z", collected_at) from None


def check_measures(measures: Sequence[Measure], path: str) -> None:
    """Raise UsageError for samples without a reason for none, below 0 or beyond any machine, and for a median of other samples."""
    for at, one in enumerate(measures):
        place = f"measures[{at}]"
        if not one.samples and one.reason is None:
            raise wrong(path, f"{place}.samples", "a sample, or a reason for none,", [])
        for number, value in enumerate(one.samples):
            if abs(value) > _LARGEST_SAMPLE or (value < 0 and one.quantity != _SIGNED):
                raise wrong(path, f"{place}.samples[{number}]", f"a number from 0 to {_LARGEST_SAMPLE:g}", value)
        median = statistics.median(one.samples) if one.samples else None
        if median != one.p50:
            raise wrong(path, f"{place}.p50", f"{median}, the median of its samples", one.p50)


def check_costs(kind: str, costs: Costs, measures: Sequence[Measure], path: str) -> None:
    """Raise UsageError for a cost below 0 or beyond any machine, and for a line through other samples than the document has."""
    for name in _LINES:
        line = getattr(costs, name)
        if line is not None:
            _check_line(kind, name, line, measures, path)
    if costs.recompute is not None:
        for field in ("a_s", "b_s", "c_s"):
            _check_range(f"costs.recompute.{field}", getattr(costs.recompute, field), _LARGEST_S, path)
    if costs.make_s_per_gib is not None:
        _check_range("costs.make_s_per_gib", costs.make_s_per_gib, _LARGEST_S, path)
        if costs.make_s_per_gib == 0:
            raise wrong(path, "costs.make_s_per_gib", "a number above 0", 0.0)


def _check_line(kind: str, name: str, line: LineCost, measures: Sequence[Measure], path: str) -> None:
    place = f"costs.{name}"
    _check_range(f"{place}.fixed_s", line.fixed_s, _LARGEST_S, path)
    _check_range(f"{place}.per_byte_s", line.per_byte_s, _LARGEST_S_PER_BYTE, path)
    if line.fixed_s == line.per_byte_s == 0:
        raise wrong(path, place, "a transfer that takes time", "0 s + 0 s a byte")
    if line.n_samples < LEAST_SAMPLES:
        raise wrong(path, f"{place}.n_samples", f"{LEAST_SAMPLES} or more", line.n_samples)
    if line.from_bytes is not None and not 0 < line.from_bytes < (line.to_bytes or 0):
        sizes = f"{line.from_bytes} to {line.to_bytes}"
        raise wrong(path, f"{place}.from_bytes to to_bytes", "a smaller size above 0 and a larger one", sizes)
    if kind in ("copy", "model"):
        kept = sum(len(one.samples) for one in transfers_of(name, measures))
        if kept != line.n_samples:
            raise wrong(
                path, f"{place}.n_samples", f"{kept}, the samples of its transfers in data.measures,", line.n_samples
            )


def _check_range(place: str, value: float, largest: float, path: str) -> None:
    if not 0 <= value <= largest:
        raise wrong(path, place, f"a number from 0 to {largest:g}", value)

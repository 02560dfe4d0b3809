"""What every document of `hicachectl bench` holds: where and how it was measured, measures with their samples, and costs.

    data.setting    method in words, device, driver, kernel, torch, rounds
    data.measures   one number each: its samples, their median and spread, the range expected and where that is from
    data.costs      what profiles, the cost model and sizing take from it; null with the reason where it was not measured
    data.no_answer  subjects of HC-NO-ANSWER: their rows are marked on the screen
    data.data_digest  of all the rest: a value changed by accident is refused (`data_digest.py`)

`bench_results.py` reads such a document back from a file. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicachectl.data_digest import with_digest
from hicachectl.envelope import Diagnostic, Fact, Result, Severity, plain, unexplained_nulls, with_facts
from hicachectl.errors import ExitCode

__all__ = [
    "BUDGET_USED",
    "LEAST_SAMPLES",
    "NOISY_SPREAD",
    "NO_TIME",
    "Costs",
    "Expected",
    "LineCost",
    "Measure",
    "RecomputeLine",
    "Setting",
    "bench_result",
    "fewer",
    "measure",
    "missing_costs",
    "no_costs_note",
    "not_answered",
    "remedy_for_costs",
    "spread_of",
]

NOISY_SPREAD = 0.5
"""Above this spread a median is no answer: the middle half of the samples is as wide as half of it (our choice). A line through
medians that misses one of them by a larger share of it is none either."""

LEAST_SAMPLES = 3
"""Below this many samples their spread is not known: quartiles of two are the two (our choice)."""


NO_TIME = "no time was left for it"
BUDGET_USED = "the time budget is used up"
_FEWER = "no time was left for more"
_LONGER = "give a longer --time-budget, or leave it out"
_SEE_TO = "see to what the reasons name, then measure again"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a benchmark ran. What could not be found out is None; `reasons` says why, by name."""

    method: str
    rounds: int
    device: str
    """The name torch knows it by: cpu, cuda:0, ..."""
    device_reason: str
    """Why this device: asked for, or what auto found."""
    accelerator: str | None
    driver: str | None
    cuda: str | None
    torch: str | None
    kernel: str
    processor: str
    cores: str
    memory: str
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Expected:
    """The range a number should lie in, in its own unit, and where that is from. Either end may be open (None)."""

    low: float | None
    high: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured number. `quantity` carries the unit (`populate_s`, `load_bytes_per_s`, `huge_share`).

    `spread` is the distance of the quartiles over the median. `reason` says why there are no samples, or fewer than asked.
    """

    subject: str
    quantity: str
    samples: tuple[float, ...]
    p50: float | None
    spread: float | None
    expected: Expected | None = None
    reason: str | None = None

    @property
    def noisy(self) -> bool:
        """Whether the samples lie too far apart for the median to be an answer. Pure."""
        return self.spread is not None and self.spread > NOISY_SPREAD

    @property
    def why_no_answer(self) -> str | None:
        """Why its median is no answer: too few samples, or too far apart; None where it is one, or nothing was measured. Pure."""
        n = len(self.samples)
        if 0 < n < LEAST_SAMPLES:
            return f"{n} sample{'s' if n > 1 else ''}: spread unknown, {LEAST_SAMPLES} are the fewest that count as an answer"
        if not self.noisy:
            return None
        return (
            f"the middle half of {n} samples spreads over {100 * (self.spread or 0):.0f} % of their median, "
            f"{100 * NOISY_SPREAD:.0f} % is the most that counts as an answer"
        )


@dataclass(frozen=True, slots=True)
class LineCost:
    """A transfer of n bytes takes `fixed_s + per_byte_s * n`; fitted to so many samples of [from_bytes, to_bytes] each.

    None in files of a release that did not tell the sizes.
    """

    fixed_s: float
    per_byte_s: float
    n_samples: int
    from_bytes: int | None = None
    to_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecomputeLine:
    """Computing tokens [start, end) takes a_s + b_s n + c_s (end^2 - start^2), n = end - start; of which model, on what."""

    a_s: float
    b_s: float
    c_s: float
    model: str
    hardware: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What others take from a benchmark. None: this benchmark does not measure it, or got no answer."""

    host_read: LineCost | None = None
    """host -> device"""
    host_write: LineCost | None = None
    """device -> host"""
    storage_read: LineCost | None = None
    """storage -> host"""
    storage_write: LineCost | None = None
    """host -> storage"""
    recompute: RecomputeLine | None = None
    make_s_per_gib: float | None = None
    """Seconds to reserve, fill and register a GiB of a host pool."""


def spread_of(samples: Sequence[float]) -> float | None:
    """Return the distance of the quartiles over the median; None below two samples, or with a median of 0. Pure.

    >>> spread_of([1.0, 2.0, 3.0]), spread_of([1.0])
    (0.5, None)
    """
    if len(samples) < 2:
        return None
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return max(0.0, high - low) / abs(middle) if middle else None  # equal samples may round to less than 0


def measure(
    subject: str,
    quantity: str,
    samples: Sequence[float],
    *,
    expected: Expected | None = None,
    reason: str | None = None,
) -> Measure:
    """Make a measure of its samples, oldest first. Pure. Raises ValueError without samples and without a reason.

    >>> measure("memfd", "populate_s", [1.0, 3.0, 2.0]).p50
    2.0
    """
    if not samples and reason is None:
        raise ValueError(f"{subject}, {quantity}: neither samples nor a reason")
    p50 = statistics.median(samples) if samples else None
    return Measure(subject, quantity, tuple(samples), p50, spread_of(samples), expected, reason)


def fewer(n_samples: int, rounds: int) -> str | None:
    """Say that there are fewer samples than rounds were asked for; None where there are as many, or none at all. Pure.

    >>> fewer(2, 3), fewer(3, 3)
    ('2 of 3 samples: no time was left for more', None)
    """
    return f"{n_samples} of {rounds} samples: {_FEWER}" if 0 < n_samples < rounds else None


def not_answered(
    headline: Sequence[Measure], hint: str, doubts: Mapping[tuple[str, str], str] | None = None
) -> tuple[tuple[Diagnostic, ...], ExitCode]:
    """Name each headline measure that gave no answer; NO_RESULT when none of them did. Pure.

    A measure without samples has its reason and is no finding of its own: what cannot run here was not asked for an answer. Where
    none has any, one finding gives the reasons, with a remedy of its own. `doubts` say of calm ones, by subject and quantity, why they are none all the same.
    """
    tried = [one for one in headline if one.samples]
    if not tried:
        reasons = "; ".join(dict.fromkeys(one.reason or "no reason is known" for one in headline))
        text = f"nothing was measured: {reasons or 'there was nothing to measure'}"
        return (Diagnostic("HC-NO-ANSWER", Severity.WARN, text, hint=_remedy(headline)),), ExitCode.NO_RESULT
    doubts = doubts or {}
    judged = [(one, one.why_no_answer or doubts.get((one.subject, one.quantity))) for one in tried]
    unsure = [(one, why) for one, why in judged if why is not None]
    found = tuple(
        Diagnostic(
            "HC-NO-ANSWER",
            Severity.WARN,
            f"{one.quantity}: {why}",
            subject=one.subject,
            hint=_LONGER if _is_late(one) else hint,
        )
        for one, why in unsure
    )
    return found, ExitCode.OK if len(unsure) < len(tried) else ExitCode.NO_RESULT


def _remedy(missing: Sequence[Measure]) -> str:
    """What to do where nothing was measured: more rounds would end the same way. Pure."""
    return _LONGER if all(map(_is_late, missing)) else _SEE_TO


def _is_late(one: Measure) -> bool:
    """Whether it is for want of time that there are too few samples. Pure."""
    return _no_time_for(len(one.samples), one.reason)


def _no_time_for(n_samples: int, reason: str | None) -> bool:
    return n_samples < LEAST_SAMPLES and (reason or "").endswith((NO_TIME, BUDGET_USED, _FEWER))


def bench_result(
    kind: str,
    setting: Setting,
    measures: Sequence[Measure],
    costs: Costs,
    details: Mapping[str, Any],
    *,
    diagnostics: Sequence[Diagnostic] = (),
    exit_code: ExitCode = ExitCode.OK,
    reasons: Mapping[str, str] | None = None,
) -> Result:
    """Put a benchmark's document together: `details` are the fields that it alone has. Pure.

    `reasons` say why a null is null, by the last name of its pointer (`driver`, `host_read`); every null gets one.
    """
    data = {
        "setting": {name: value for name, value in plain(setting).items() if name != "reasons"},
        "measures": plain(tuple(measures)),
        "costs": plain(costs),
        "no_answer": list(
            dict.fromkeys(one.subject for one in diagnostics if one.code == "HC-NO-ANSWER" and one.subject)
        ),
        **plain(details),
    }
    why = {**_REASONS, **{f"/costs/{name}": f"bench {kind} {_NOT_MEASURED}" for name in data["costs"]}}
    why |= {f"/setting/{name}": reason for name, reason in setting.reasons.items()}
    why |= dict(reasons or {})
    facts = {p: Fact(reason=why.get(p) or why.get(p.rpartition("/")[2], "not known")) for p in unexplained_nulls(data)}
    return Result(
        f"hicachectl.bench-{kind}/1", with_digest(with_facts(data, facts)), diagnostics=diagnostics, exit_code=exit_code,
        rows="/measures",
    )  # fmt: skip


def missing_costs(data: Mapping[str, Any]) -> dict[str, str]:
    """Return why each cost that this kind of benchmark measures is null, by its name. Pure."""
    facts = data.get("facts", {})
    found = {
        name: facts.get(f"/costs/{name}", {}).get("reason") for name, cost in data["costs"].items() if cost is None
    }
    return {name: why for name, why in found.items() if why and not why.endswith(_NOT_MEASURED)}


def no_costs_note(data: Mapping[str, Any], path: object) -> str | None:
    """Say that a result of a benchmark of costs, written to `path`, holds none of them, and why; None where it holds one. Pure."""
    whys = tuple(dict.fromkeys(missing_costs(data).values()))
    if not whys or any(cost is not None for cost in data["costs"].values()):
        return None
    more = f" (and {len(whys) - 1} more reasons: data.facts)" if len(whys) > 1 else ""
    return f"{path} holds no cost, so --costs will refuse it: {whys[0]}{more}; {remedy_for_costs(data)}"


def remedy_for_costs(data: Mapping[str, Any]) -> str:
    """What to do about costs that a result lacks: more rounds help against noise alone, not where time or sizes were too few. Pure."""
    if any(_no_time_for(len(one["samples"]), one.get("reason")) for one in data["measures"]):
        return _LONGER
    noisy = any(why.endswith("as an answer") for why in missing_costs(data).values())
    return "measure again with more --rounds on a quiet machine" if noisy else _SEE_TO


_NOT_MEASURED = "does not measure it"
_REASONS = {
    "p50": "no samples",
    "spread": "fewer than two samples",
    "expected": "no range is known for it",
    "reason": "all of it was measured",
    "low": "any lower value is expected too",
    "high": "any higher value is expected too",
}

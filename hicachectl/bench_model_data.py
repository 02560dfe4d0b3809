"""The document of `hicachectl bench model`: restore and recompute by length, where they break even, and what a restore saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hicachectl.bench_break_even import is_made_up, why_no_curve
from hicachectl.bench_costs import line_cost, transfers_of, why_no_line
from hicachectl.bench_data import NO_TIME, Costs, LineCost, Measure, RecomputeLine, fewer, measure
from hicachectl.bench_memory import NO_MEMORY, memory_data
from hicachectl.envelope import plain

if TYPE_CHECKING:
    from hicachectl.runtime.probes.break_even import BreakEven, Saved
    from hicachectl.runtime.probes.fits import Fit, Timing
    from hicachectl.runtime.probes.restores import RestoreProbe

__all__ = [
    "SAVED_AT", "Model", "Prefill", "Tier", "method_of", "model_costs", "model_details", "model_headline", "model_measures",
    "model_of", "model_reasons",
]  # fmt: skip

SAVED_AT = (1024, 4096, 16384, 32768)
"""Lengths in tokens whose savings are shown."""
_OTHER_SEED = 1
"""Of the prefill's refits: dealt by the seed of the restore's, residuals of both would meet in one order, as if they went together."""
_METHOD = (
    "restores of whole pages, host and device slots scattered, an order of lengths that turns with the rounds, one transfer each way before "
    "that does not count; seconds from asking to the last byte, every byte compared outside the times; storage by one thread, put out of the "
    "page cache before, then to the device, one after the other; fits are least squares of relative errors with no coefficient below 0, "
    "intervals 95 of 100 refits with the residuals dealt out anew, costs of transfers are lines through the median of each size; "
    "a restore is set against b n + c n^2, since the call's fixed part a is paid either way"
)


@dataclass(frozen=True, slots=True)
class Prefill:
    """What recomputing costs and how that is known. `timings` are empty where coefficients were given.

    `hardware` in words; None: not said. `left_out` are (tokens, reason) not measured.
    """

    source: str
    fit: Fit
    timings: tuple[Timing, ...]
    hardware: str | None
    left_out: tuple[tuple[int, str], ...] = ()
    from_file: bool = False
    """Times of somebody's engine: one a length is theirs to judge, and the curve's residual tells of the noise."""

    @property
    def measured(self) -> bool:
        """Whether it was fitted to times, here or in the operator's engine. Pure."""
        return bool(self.timings)


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier: its restores by length, fitted, and set against the recompute; None without one."""

    name: str
    timings: tuple[Timing, ...]
    fit: Fit
    break_even: BreakEven | None
    saved: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """All of it. `no_tiers` says why a tier is missing, `no_prefill` why nothing is set against the restores."""

    tiers: tuple[Tier, ...]
    prefill: Prefill | None
    no_prefill: str | None
    no_tiers: Mapping[str, str]


def method_of(prefill: Prefill | None) -> str:
    """Return the method in words, the prefill's included. Pure."""
    return _METHOD if prefill is None else f"{_METHOD}; recompute: {prefill.source}"


def model_of(
    probe: RestoreProbe, page_tokens: int, prefill: Prefill | None, no_prefill: str | None, no_storage: str | None
) -> Model:
    """Fit every tier and set it against the recompute. Pure."""
    from hicachectl.runtime.cost import Path
    from hicachectl.runtime.probes.break_even import break_even, saved_s
    from hicachectl.runtime.probes.fits import LINE, QUADRATIC, Timing, fit, resampled

    pages = {
        "host": [(one.n_pages, one.wall_s) for one in probe.of(Path.HOST_READ)],
        "storage": probe.storage_restores,
    }
    why = {"host": NO_TIME, "storage": no_storage or NO_TIME}
    compute_draws = None
    if prefill is not None and prefill.timings:
        compute_draws = resampled(prefill.timings, QUADRATIC, seed=_OTHER_SEED)
    tiers, missing = [], {}
    for name, restores in pages.items():
        timings = tuple(Timing(n * page_tokens, seconds) for n, seconds in restores)
        if len({one.n_tokens for one in timings}) < LINE:
            missing[name] = why[name] if not timings else "restores of one length only: no line through them"
            continue
        fitted, even = fit(timings, LINE), None
        saved: tuple[Saved, ...] = ()
        if prefill is not None:
            draws = resampled(timings, LINE)
            theirs = _coefficients(prefill.fit) if compute_draws is None else compute_draws
            even = break_even(fitted, prefill.fit, page_tokens, restore_draws=draws, compute_draws=theirs)
            saved = saved_s(fitted, prefill.fit, SAVED_AT, restore_draws=draws, compute_draws=theirs)
        tiers.append(Tier(name, timings, fitted, even, saved))
    return Model(tuple(tiers), prefill, no_prefill, missing)


def model_measures(probe: RestoreProbe, model: Model, page_tokens: int, rounds: int) -> tuple[Measure, ...]:
    """Return every time by length: restores of each tier, transfers of each path, prefills. Pure.

    `rounds` were asked for; fewer samples of a restore have the reason.
    """
    from hicachectl.runtime.cost import Path

    found = []
    for tier in model.tiers:
        found += _by_length(
            f"{tier.name} tier", "restore_s", [(one.n_tokens, one.seconds) for one in tier.timings], rounds
        )
    for path in (Path.HOST_WRITE, Path.STORAGE_READ, Path.STORAGE_WRITE):
        times = [(one.n_pages * page_tokens, one.wall_s) for one in probe.of(path)]
        asked = 0 if path is Path.STORAGE_WRITE else rounds  # all pages are written before the rounds, a few times
        found += _by_length(path.value.replace("_", " "), "transfer_s", times, asked)
    if model.prefill is not None:
        found += _by_length("prefill", "prefill_s", [(one.n_tokens, one.seconds) for one in model.prefill.timings])
    found += [measure(f"{name} tier", "restore_s", (), reason=why) for name, why in model.no_tiers.items()]
    return tuple(found)


def model_headline(measures: Sequence[Measure], prefill: Prefill | None) -> tuple[Measure, ...]:
    """Return the numbers that must be an answer: restores, and the prefills they are set against. Pure."""
    return tuple(one for one in measures if one.quantity == "restore_s") + _prefills(measures, prefill)


def model_costs(
    probe: RestoreProbe, model: Model, measures: Sequence[Measure], geometry_name: str
) -> tuple[Costs, dict[str, str]]:
    """Return what transfers on each path cost by their bytes, and a prefill; why one is not known. Pure.

    A path of which one length is no answer has no cost, and neither has such a prefill. A recompute whose coefficients were given is not measured and is left out, and so is one set against pages that no model has.
    """
    from hicachectl.runtime.cost import Path

    lines: dict[str, LineCost | None] = {}
    reasons: dict[str, str] = {}
    for path in Path:
        cost, why = line_cost([(one.n_bytes, one.wall_s) for one in probe.of(path)])
        if why is not None and path in (Path.STORAGE_READ, Path.STORAGE_WRITE):
            why = model.no_tiers.get("storage", why)
        why = why or why_no_line(transfers_of(path.value, measures))
        lines[path.value] = None if why else cost
        if why is not None:
            reasons[f"/costs/{path.value}"] = why
    prefill, recompute = model.prefill, None
    no_answer = why_no_line(_prefills(measures, prefill)) or (None if prefill is None else why_no_curve(prefill.fit))
    if prefill is not None and prefill.measured and is_made_up(geometry_name):
        reasons["/costs/recompute"] = (
            f"{geometry_name} is no model: its pages are small for demonstrations, and no prefill is its own"
        )
    elif prefill is not None and prefill.measured and no_answer is not None:
        reasons["/costs/recompute"] = no_answer
    elif prefill is not None and prefill.measured:
        recompute = RecomputeLine(
            prefill.fit.a_s, prefill.fit.b_s, prefill.fit.c_s, geometry_name, prefill.hardware or prefill.source
        )
    else:
        reasons["/costs/recompute"] = model.no_prefill or "its coefficients were given, not measured"
    return Costs(
        lines["host_read"], lines["host_write"], lines["storage_read"], lines["storage_write"], recompute
    ), reasons


def model_details(probe: RestoreProbe, model: Model, geometry: Mapping[str, Any], folder_reason: str) -> dict[str, Any]:
    """Return the fields that this document alone has. Pure."""
    storage = None
    if probe.storage_folder is not None and probe.storage_system is not None:
        system = probe.storage_system
        storage = {
            "folder": probe.storage_folder,
            "folder_reason": folder_reason,
            "file_system": {"kind": system.kind, "mount": system.mount, "device": system.device},
            "resident_share": probe.storage_resident_share,
            "left": list(probe.left),
        }
    prefill = model.prefill
    return {
        "geometry": dict(geometry),
        "backend": probe.backend,
        "backend_reason": probe.backend_reason,
        "not_registered": probe.not_registered,
        "host_memory": memory_data(probe.host_memory),
        "verified_pages": probe.verified_pages,
        "storage": storage,
        "restore": [{"tier": tier.name, **plain(tier.fit)} for tier in model.tiers],
        "recompute": None if prefill is None else {
            "source": prefill.source, "measured": prefill.measured, "hardware": prefill.hardware, **plain(prefill.fit),
            "left_out": [{"n_tokens": n, "reason": why} for n, why in prefill.left_out],
        },
        "recompute_reason": None if prefill is not None else model.no_prefill,
        "break_even": [
            {"tier": tier.name, **plain(tier.break_even)} for tier in model.tiers if tier.break_even is not None
        ],
        "saved": [{"tier": tier.name, **plain(one)} for tier in model.tiers for one in tier.saved],
    }  # fmt: skip


def model_reasons(model: Model) -> dict[str, str]:
    """Say why nulls of the document are null. Pure."""
    given = model.prefill is not None and not model.prefill.measured
    return {
        "/storage": model.no_tiers.get("storage", "no storage tier was asked for"),
        "/recompute/hardware": "not said",
        "/recompute_reason": "there is one",
        "/not_registered": "all of it was registered",
        **NO_MEMORY,
        "n_tokens": "restoring is cheaper at no length",
        "low_tokens": "no refit breaks even, or nothing to refit",
        "high_tokens": "some refits never break even, or nothing to refit",
        "interval_s": "nothing to refit",
        "residual": "given, not fitted" if given else "as many samples as coefficients",
        "a_interval_s": "given, or as many samples as coefficients",
        "b_interval_s": "given, or as many samples as coefficients",
        "c_interval_s": "a restore is a line; or given, or as many samples as coefficients",
        "from_tokens": "given, not measured",
        "to_tokens": "given, not measured",
        "resident_share": "nothing was read, or the kernel does not tell of these files",
        "kind": "the kernel does not list it",
        "mount": "the kernel does not list it",
        "device": "the kernel does not list it",
    }


def _prefills(measures: Sequence[Measure], prefill: Prefill | None) -> tuple[Measure, ...]:
    """Prefills whose spread must be small: all that were measured here, of a file those that tell it."""
    from_file = prefill is not None and prefill.from_file
    return tuple(one for one in measures if one.quantity == "prefill_s" and (one.noisy or not from_file))


def _coefficients(given: Fit) -> Any:
    import numpy as np

    return np.array([[given.a_s, given.b_s, given.c_s]])


def _by_length(subject: str, quantity: str, times: Sequence[tuple[int, float]], rounds: int = 0) -> list[Measure]:
    samples = {n: [s for m, s in times if m == n] for n in sorted({n for n, _ in times})}
    return [
        measure(f"{subject}, {n} tokens", quantity, own, reason=fewer(len(own), rounds)) for n, own in samples.items()
    ]

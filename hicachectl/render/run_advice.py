"""What to do next, from a replay's report: a reason with its figures, and a command to try. Pure.

A command is the one that was run with the flags of the advice in place of those it had.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hicachectl.render.run_words import has_lower_tier, percent
from hicachectl.units import format_bytes, format_count

if TYPE_CHECKING:
    from hicachectl.runtime.replay.report import LayoutCost, ReplayReport

__all__ = ["Advice", "advice", "command_with"]

_GROW_POINTS = 1.0
"""A bigger pool is worth a try when it gains a point of hit rate (the plateau rule of `tune size`)."""
_LARGE_SHARE = 0.05
"""A reason for misses is worth a word from 5 % of the input tokens on (our choice)."""
_TRY_REQUESTS = 50
"""Requests of a first try with pages of a served model (our choice)."""
_FEWER_SUBMISSIONS = 4
"""Another layout is worth a try when it needs this many times fewer submissions (our choice)."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do: why, and flags to add to the command that was run (empty: nothing to run)."""

    why: str
    flags: str = ""


def command_with(command: str, flags: str) -> str:
    """Return `command` with `flags` at its end, and without what it said of them before. Pure.

    >>> command_with("hicachectl run --trace 'my trace' --host-slots 8 --limit=9", "--host-slots 16 --limit none")
    "hicachectl run --trace 'my trace' --host-slots 16 --limit none"
    """
    added = shlex.split(flags)
    names = {word for word in added if word.startswith("--")}
    kept: list[str] = []
    words = iter(shlex.split(command))
    for word in words:
        if word in names:
            next(words, None)  # its value
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return shlex.join([*kept, *added])


def advice(report: ReplayReport) -> tuple[Advice, ...]:
    """Say what to do next, most important first."""
    found = [
        *_trust(report),
        *_more(report),
        *_equal_beginnings(report),
        *_pay(report),
        *_size(report),
        *_policy(report),
        *_copies(report),
    ]
    return tuple(found) or (Advice("Nothing to change: this is what these tiers give on this traffic."),)


def _trust(report: ReplayReport) -> Iterator[Advice]:
    if report.pages_mismatched:
        yield Advice(
            "Restored pages held wrong bytes: do not serve from this host; compare with the reference copies.",
            "--backend cpu --verify all",
        )
    if report.verify == "off" and report.pages_restored:
        yield Advice("Restored pages were not compared, so these rates are not proven.", "--verify all")
    if report.failures_by_reason:
        names = ", ".join(report.failures_by_reason)
        yield Advice(f"Lower tiers failed ({names}); each failure cost a recompute. See why on stderr with -v.", "-v")
    if report.stop == "interrupted":
        yield Advice(
            "The run was interrupted; a shorter one that ends by itself compares better.",
            f"--limit {max(1, report.requests)}",
        )


def _pay(report: ReplayReport) -> Iterator[Advice]:
    if has_lower_tier(report) and not report.compute.same_as_geometry:
        model, tokens = report.compute, report.pools.page_tokens
        size = ""
        if model.model is not None and model.bytes_per_token is not None:
            page = tokens * model.bytes_per_token
            slots = report.pools.device_slots + report.pools.host_slots
            size = f"; with --geometry {model.model} a page is {format_bytes(page)} and these pools are {format_bytes(slots * page)} of memory"
        yield Advice(
            f"This run shows how the tiers work. For a verdict give one model to --geometry and to run.compute, and pools that this "
            f"machine holds (--host-slots, --limit){size}. --check says whether this machine holds them, and else how many slots fit.",
            "" if model.model is None else f"--geometry {model.model} --limit {_TRY_REQUESTS} --check",
        )
    if report.pages_restored and report.gain.net_s <= 0 and report.policies["restore"] == "always":
        yield Advice("Restoring every hit cost more than it saved: let the cost model choose.", "--restore cost")
    if _share(report, "restore_dearer") > _LARGE_SHARE and report.policies["restore"] == "cost":
        yield Advice(
            f"The cost model left {percent(_share(report, 'restore_dearer'))} of the input to recompute although a lower tier held it; see whether it is right.",
            "--restore always",
        )


def _equal_beginnings(report: ReplayReport) -> Iterator[Advice]:
    earlier = report.earlier
    if earlier.held_pages:
        yield Advice(
            f"The storage folder was not empty ({format_count(earlier.held_pages)} pages, {format_count(earlier.hit_pages)} hits "
            "come from before this run); to compare settings start each run from a fresh folder.",
            "--storage-path auto",
        )


def _size(report: ReplayReport) -> Iterator[Advice]:
    pools, reuse = report.pools, report.reuse
    if not reuse.pages_for_all_hits:
        return
    plateau = max(reuse.plateau_pages, pools.device_slots + 1)
    if not has_lower_tier(report):
        most = _points(sum(reuse.bins_log2) - reuse.hit_pages_device_slots, report) - _GROW_POINTS
        if most >= _GROW_POINTS:
            yield Advice(
                f"A host tier of {_pages(report, plateau)} would add about {most:.1f} points of hit rate.",
                f"--host-slots {plateau}",
            )
        return
    if not pools.host_slots:
        return
    if 0 < pools.host_slots <= pools.device_slots and report.policies["write_policy"] != "write_back":
        yield Advice(
            f"The host pool, {_pages(report, pools.host_slots)}, is no larger than the device's, {_pages(report, pools.device_slots)}: it holds "
            "the same pages, so it cannot pay.",
            f"--host-slots {max(2 * pools.device_slots, plateau)}",
        )
        return
    if idle := _idle_tiers(report):
        names, flags = idle
        yield Advice(f"{names} had nothing to add on this traffic.", flags)
        if "--host-slots" in flags:
            return
    doubled = _points(reuse.hit_pages_double_host_slots - reuse.hit_pages_host_slots, report)
    left = _points(sum(reuse.bins_log2) - reuse.hit_pages_host_slots, report)
    if reuse.plateau_pages > pools.host_slots and left >= _GROW_POINTS:
        now = "; storage serves them now, slower" if pools.storage_capacity_bytes else ""
        twice = (
            f"twice the pool, {_pages(report, 2 * pools.host_slots)}, hits {doubled:.1f} points more; "
            if doubled >= _GROW_POINTS
            else ""
        )
        yield Advice(
            f"More host memory still helps: {twice}{_pages(report, reuse.plateau_pages)} hit {left - _GROW_POINTS:.1f} points more, "
            f"within 1 point of all that this traffic repeats{now}.",
            f"--host-slots {2 * pools.host_slots if twice else reuse.plateau_pages}",
        )
    elif (
        plateau < pools.host_slots and report.stop == "complete"
    ):  # the rest of the trace may need what this part did not
        yield Advice(
            f"The host pool is larger than this traffic needs, do not grow it: {_pages(report, plateau)} instead of "
            f"{_pages(report, pools.host_slots)} cost at most 1 point of hit rate.",
            f"--host-slots {plateau}",
        )


def _idle_tiers(report: ReplayReport) -> tuple[str, str] | None:
    """Return the lower tiers that hit nothing and would not with more room, and the flags that switch them off."""
    pools, hits, reuse = report.pools, report.pages_hit_by_tier, report.reuse
    if hits.storage or report.stop != "complete":
        return None
    out_of_reach = _points(sum(reuse.bins_log2) - reuse.hit_pages_host_slots, report)
    storage_idle = pools.storage_capacity_bytes and (out_of_reach < _GROW_POINTS or not report.evicted_pages.storage)
    if not hits.host and out_of_reach < _GROW_POINTS:
        off = " --storage-path none" if storage_idle else ""
        return ("Leave the lower tiers out: they" if off else "Leave the host tier out: it"), f"--host-slots 0{off}"
    return ("Leave the storage tier out: it", "--storage-path none") if storage_idle else None


def _policy(report: ReplayReport) -> Iterator[Advice]:
    if _share(report, "not_backed_up") > _LARGE_SHARE and report.policies["write_policy"] != "write_through":
        yield Advice(
            f"{percent(_share(report, 'not_backed_up'))} of the input left the device before it was copied down.",
            "--write-policy write_through",
        )
    if report.dropped_pages and report.dropped_pages > 0.01 * report.pages_total:
        yield Advice(
            f"{format_count(report.dropped_pages)} pages were not copied down for want of host slots.",
            f"--host-slots {2 * report.pools.host_slots}",
        )
    if _share(report, "partial_page") > _LARGE_SHARE and report.pools.page_tokens >= 32:
        yield Advice(
            f"{percent(_share(report, 'partial_page'))} of the input lies in incomplete last pages; smaller pages cache more of it.",
            f"--page-tokens {report.pools.page_tokens // 2}",
        )
    if _share(report, "forgotten") > _LARGE_SHARE:
        yield Advice(
            f"{percent(_share(report, 'forgotten'))} of the input has no reason, because seen keys were dropped.",
            f"--seen-keys {4 * report.seen_keys_bound}",
        )


def _copies(report: ReplayReport) -> Iterator[Advice]:
    usable = [cost for cost in report.layouts if cost.submissions is not None]
    now = [cost for cost in usable if cost.layout == report.pools.layout]
    if not report.pages_restored or not now:
        return
    best = min(usable, key=_submissions)
    if _submissions(best) * _FEWER_SUBMISSIONS <= _submissions(now[0]):
        yield Advice(
            f"{best.layout} restores {format_count(report.layouts_pages)} pages with {format_count(_submissions(best))} submissions "
            f"instead of {format_count(_submissions(now[0]))}.",
            f"--layout {best.layout}",
        )


def _more(report: ReplayReport) -> Iterator[Advice]:
    if report.stop == "limit":
        yield Advice(
            "The run stopped at its limit, while rates still move; replay the whole trace before you decide.",
            "--limit none",
        )


def _submissions(cost: LayoutCost) -> int:
    assert cost.submissions is not None
    return cost.submissions


def _share(report: ReplayReport, reason: str) -> float:
    return report.missed_tokens_by_reason[reason] / report.input_tokens if report.input_tokens else 0.0


def _points(pages: int, report: ReplayReport) -> float:
    return 100 * pages / report.pages_total if report.pages_total else 0.0


def _pages(report: ReplayReport, n: int) -> str:
    return f"{format_count(n)} pages = {format_bytes(n * report.pools.page_bytes)}"

"""What a replay's report says in words: the verdict, what is measured and what modelled, why pages missed. Pure.

Screen and page share these, so that both say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hicachectl.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from hicachectl.runtime.replay.memory_report import HostMemory, HostMemoryStep
    from hicachectl.runtime.replay.report import ReplayReport

__all__ = [
    "LRU_HITS",
    "MISS_WORDS",
    "Answer",
    "Verdict",
    "caveats",
    "checks",
    "coverage",
    "duration",
    "glue",
    "has_lower_tier",
    "memory_step",
    "percent",
    "settings",
    "signed",
    "speed",
    "verdict",
]

MISS_WORDS = {
    "never_seen": "no earlier request had this page",
    "evicted_device": "left the device; no host tier to hold it",
    "evicted_host": "was in host memory, dropped there",
    "evicted_storage": "was in storage, dropped there",
    "partial_page": "incomplete last page, never cached",
    "not_backed_up": "left the device before it was copied",
    "restore_dearer": "held below, computing it was cheaper",
    "failed": "a lower tier failed to bring it up",
    "in_flight": "another transfer moved it, too late",
    "forgotten": "not in the memory of seen keys",
}
"""The reasons of `MissReason`, for people."""

LRU_HITS = (
    "LRU hits: share of whole pages that one exact LRU cache of this size, empty at the start, hits on this traffic; "
    "every reuse: the smallest that hits each page that comes back, as large as the largest reuse distance."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """YES, NO, DEMO or OPEN, and the sentence that says to what. DEMO: the two terms of the sum are of different models."""

    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Does a lower tier pay here? `terms` are the parts of the sum: name, amount, measured or modelled, what it is."""

    answer: Answer
    terms: tuple[tuple[str, str, str, str], ...]
    remarks: tuple[str, ...]


_INSIDE_NUMBER = re.compile(r"(?<=\d) (?=\d{3}\b|%|[KMGT]iB\b|B\b|[mu]?s\b|min\b|h\b|pages?\b)")


def glue(text: str, mark: str) -> str:
    """Put `mark` for the spaces inside numbers and before their units, so that no line breaks there. Pure.

    >>> glue("in 1 043 212 pages = 64.0 MiB", "_")
    'in 1_043_212_pages = 64.0_MiB'
    """
    return _INSIDE_NUMBER.sub(mark, text)


def percent(part: float, whole: float = 1.0) -> str:
    """Write a share, "-" of nothing. Pure.

    >>> percent(1, 8), percent(0, 0), percent(0.0004), percent(-0.25)
    ('12.5 %', '-', '<0.1 %', '-25.0 %')
    """
    if not whole:
        return "-"
    value = 100 * part / whole
    return "<0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def speed(report: ReplayReport) -> str:
    """How fast the replay itself ran. Pure."""
    took = f"replayed in {duration(report.elapsed_s)}"
    return f"{took}, {format_count(round(report.requests_per_s))} requests/s" if report.requests_per_s else took


def settings(report: ReplayReport) -> str:
    """Device, placement of the host pool and policies in a sentence. Pure."""
    pools = report.pools
    policies = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.policies.items())
    nodes = pools.host_pages_by_node
    total = sum(nodes.values())
    if total:
        where = ", ".join(
            f"node {node} {percent(n, total)}" for node, n in sorted(nodes.items(), key=lambda item: int(item[0]))
        )
    else:
        where = f"node unknown ({pools.host_placement_reason or 'not asked'})"
    memory = pools.host_memory
    made = "" if memory is None else f", {_memory(memory)}"
    host = f" Host pool on {where}{made}." if pools.host_slots else ""
    return f"Device {pools.device}.{host} {policies[:1].upper()}{policies[1:]}."


def _memory(memory: HostMemory) -> str:
    """Say what the host pool's memory got. Pure."""
    share = "huge pages not known" if memory.huge_share is None else f"{int(100 * memory.huge_share)} % huge pages"
    registered = f"{format_bytes(memory.registered_bytes)} registered" if memory.registered_bytes else "not registered"
    return f"{share}, {registered}"


def memory_step(step: HostMemoryStep) -> str:
    """Say what was asked of a step, what it got, and why not more. Pure."""
    if step.state == "skipped":
        return f"asked {step.asked}: not done, {step.reason}"
    got = step.text if step.reason is None else step.text.removesuffix(f"; {step.reason}")
    why = (step.reason or "").removeprefix(f"{got}: ")
    because = f"; why: {why}" if why and why not in got else ""
    return f"asked {step.asked}: {got}{because}"


def duration(seconds: float | None) -> str:
    """Write seconds that may be unknown or none. Pure."""
    return "-" if seconds is None else "0 s" if seconds == 0 else format_seconds(seconds)


def signed(seconds: float) -> str:
    """Write a gain or a loss of time with its sign. Pure.

    >>> signed(12.25), signed(-0.5), signed(0.0)
    ('+12.2 s', '-500.0 ms', '0 s')
    """
    return ("+" if seconds > 0 else "") + duration(seconds)


def has_lower_tier(report: ReplayReport) -> bool:
    """Whether the replay had a host or a storage tier. Pure."""
    return report.pools.host_slots > 0 or report.pools.storage_capacity_bytes > 0


def coverage(report: ReplayReport) -> str:
    """How much of the trace was replayed, and why not all. Pure."""
    asked = f"{format_count(report.requests)} of {format_count(report.trace_requests)} requests"
    return {
        "complete": asked,
        "limit": f"{asked} (limit)",
        "interrupted": f"{asked}, INTERRUPTED",
        "failed": f"{asked}, STOPPED BY A WRONG BYTE",
        "device_lost": f"{asked}, STOPPED: THE DEVICE IS LOST",
    }[report.stop]


def verdict(report: ReplayReport) -> Verdict:
    """Answer whether the lower tiers paid: net gain = prefill saved by restored pages - time requests waited for that."""
    gain, compute = report.gain, report.compute
    whose = f"prefill of {compute.model or 'a model not named'} on {compute.hardware or 'hardware not named'}"
    demo = "" if compute.same_as_geometry else f", pages of {report.pools.geometry}"
    terms: tuple[tuple[str, str, str, str], ...] = (
        ("saved", signed(gain.saved_s), "modelled", f"{whose}, not done thanks to {_pages(report.pages_restored)} restored"),
        ("moved", signed(-gain.moved_s), "measured", _moved(report) + (demo and demo + " here")),
        ("net gain", signed(gain.net_s), "", "saved - moved" + (", of two different models" if demo else "")),
        *_at_model_size(report),
        ("beside", duration(gain.background_s), "measured", "copying down in other threads; not in the sum"),
    )  # fmt: skip
    partial = () if report.stop == "complete" else (f"Judged on a part of the trace: {coverage(report)}.",)
    if not has_lower_tier(report):
        return Verdict(Answer("OPEN", "this run had no lower tier, so there is nothing to judge"), (), ())
    if not report.pages_restored:
        moved = gain.moved_s or gain.background_s
        remarks = _background_remark(report)
        return Verdict(_answer_without_restores(report), terms if moved else (), (*remarks, *partial))
    extra: list[str] = []
    total = (report.ttft_modelled_device_only.mean_s or 0.0) * report.ttft_modelled_device_only.n
    if not compute.same_as_geometry:
        answer = Answer("DEMO", f"no verdict for your machine: {_two_models(report)}")
    elif gain.net_s > 0:
        share = f", {percent(gain.net_s, total)} of the prefill left by device hits alone" if total else ""
        answer = Answer("YES", f"the lower tiers pay here: net gain {signed(gain.net_s)}{share}")
        if gain.moved_s > 0:
            ratio = gain.saved_s / gain.moved_s
            extra.append(f"A prefill {format_count(round(ratio))} times faster than modelled would end the gain." if ratio >= 10
                           else f"A prefill {ratio:.1f} times faster than modelled would end the gain.")  # fmt: skip
    else:
        answer = Answer("NO", f"the lower tiers cost more than they save here: net gain {signed(gain.net_s)}")
    return Verdict(answer, terms, (*extra, *_background_remark(report), *partial))


def _at_model_size(report: ReplayReport) -> tuple[tuple[str, str, str, str], ...]:
    """Return the estimate for the model whose prefill is saved, where the pages moved are not its own."""
    found, compute, pools = report.gain.at_model_size, report.compute, report.pools
    if found is None or compute.same_as_geometry or compute.bytes_per_token is None or not report.pages_restored:
        return ()
    here = pools.page_bytes // pools.page_tokens
    times = f"{found.ratio:,.0f}".replace(",", " ") if found.ratio >= 10 else f"{found.ratio:.2g}"
    text = (
        f"net gain of pages of {compute.model}: {format_count(compute.bytes_per_token)} B a token, not {format_count(here)} B, so "
        f"copies {times} times as long at the rates measured here: saved {signed(found.saved_s)}, moved {signed(-found.moved_s)}"
    )
    return (("at model size", signed(found.net_s), "estimate", text),)


def _two_models(report: ReplayReport) -> str:
    """Say that the bytes moved and the prefill saved are of two models."""
    compute, pools = report.compute, report.pools
    here = f"the bytes moved are of {pools.geometry} ({format_count(pools.page_bytes // pools.page_tokens)} B a token)"
    if compute.model is None or compute.bytes_per_token is None:
        return f"{here}, the model of the prefill is not named (run.compute.model)"
    return f"{here}, the prefill saved is of {compute.model} ({format_count(compute.bytes_per_token)} B a token)"


def _background_remark(report: ReplayReport) -> tuple[str, ...]:
    """Return the caution about copies down that took longer than what was gained."""
    gain = report.gain
    if not gain.background_s or gain.background_s < gain.net_s:
        return ()
    then = (
        "it pays only as long as those threads do not slow the requests."
        if gain.net_s > 0
        else "what it costs comes on top."
    )
    return (f"Copying down took {duration(gain.background_s)} beside the requests, more than the gain: {then}",)


def _moved(report: ReplayReport) -> str:
    room_s = report.gain.room_wait_s
    what = "time requests waited to be restored"
    return f"{what}, {duration(room_s)} of it for slots that other copies held" if room_s else what


def _answer_without_restores(report: ReplayReport) -> Answer:
    held = report.pages_hit_by_tier.host + report.pages_hit_by_tier.storage
    if held:
        dearer = report.missed_tokens_by_reason["restore_dearer"] > 0
        if dearer and not report.compute.same_as_geometry:
            return Answer("DEMO", f"computing again was cheaper than restoring, but {_two_models(report)}")
        why = "computing them again was cheaper each time" if dearer else "none could be brought up"
        return Answer("NO", f"the lower tiers held {_pages(held)} that requests asked for, and {why}")
    if not report.pages_hit and not report.reuse.pages_for_all_hits:
        return Answer("NO", "no page was asked for twice, so no cache of any size can pay on this traffic")
    if small := _too_small(report):
        return Answer("OPEN", small)
    if report.pages_hit:
        return Answer("NO", "every page that hit was still on the device, so the lower tiers had nothing to add")
    return Answer("NO", "nothing hit: pages come back later than these tiers keep them")


def _too_small(report: ReplayReport) -> str | None:
    """Say that the host pool could not have shown a gain, whatever the traffic: under write_through it held what L1 held, and no more."""
    pools = report.pools
    if not 0 < pools.host_slots <= pools.device_slots or report.policies["write_policy"] == "write_back":
        return None
    return (
        f"the host pool is too small to tell: its {_pages(pools.host_slots)} hold no more than the {_pages(pools.device_slots)} of the "
        f"device; give --host-slots {2 * pools.device_slots} or more (HC-L2-NOT-LARGER)"
    )


def _pages(n: int) -> str:
    return "1 page" if n == 1 else f"{format_count(n)} pages"


def checks(report: ReplayReport) -> tuple[tuple[str, str], ...]:
    """What was proven: (name, result)."""
    wrong = f"{report.pages_mismatched} WRONG" if report.pages_mismatched else "0 wrong"
    how = {"all": "every byte of every page", "off": "verification is off"}.get(
        report.verify, f"every byte, {report.verify}"
    )
    times = "once" if report.checks_passed == 1 else f"{format_count(report.checks_passed)} times"
    failures = ", ".join(f"{format_count(n)} {reason}" for reason, n in report.failures_by_reason.items())
    compared = (
        f"{format_count(report.pages_verified)} of {format_count(report.pages_restored)} restored pages compared ({how}), {wrong}"
        if report.pages_restored
        else "no page was restored, so none was compared"
    )
    return (
        ("pages", compared),
        ("laws", f"tree, slots and leases checked {times}, all held" if report.checks_passed else "not checked: the replay did not end"),
        ("sum", f"{format_count(report.pages_used * report.pools.page_tokens)} used + {format_count(report.missed_tokens)} missed = "
                f"{format_count(report.input_tokens)} input tokens; every missed token has one reason"),
        ("failures", f"{failures}; each cost a recompute or a copy not made, never a byte" if failures else "none in the lower tiers"),
    )  # fmt: skip


def caveats(report: ReplayReport) -> tuple[str, ...]:
    """What is measured, what is modelled, and what a reader could take for more than it is."""
    recompute = report.cost_model.recompute
    texts = [
        "Measured: hits, bytes, copy times, restore waits, verification. Modelled: prefill, so also saved time and TTFT, by "
        f"{recompute.a_s:.3g} s + {recompute.b_s:.3g} s x n + {recompute.c_s:.3g} s x (end^2 - start^2) for n tokens [start, end).",
    ]
    if report.pools.device == "cpu":
        texts.append(
            "The device tier is memory of this host (device cpu): host rates and restore times are memory copies, not a link to an accelerator."
        )
    earlier = report.earlier
    if earlier.held_pages:
        texts.append(
            f"The storage folder held {_pages(earlier.held_pages)} from before this run: {format_count(earlier.hit_pages)} of "
            f"{format_count(report.pages_hit)} hits are pages this run had not met before, {format_count(earlier.restored_pages)} of them restored. "
            + ("A run from a fresh folder hits fewer." if earlier.hit_pages else "A fresh folder hits the same.")
        )
    if "storage_to_host" in report.paths and report.paths["storage_to_host"].pages:
        texts.append("Storage reads may have come from the page cache of this host.")
    if report.paths:
        texts.append(
            "Two rates of one path: PATHS divides all its bytes by all the time spent copying; COST MODEL fits its latest transfers, a fixed "
            "part and a rate beyond it, which is therefore the higher one."
        )
    if report.pools.storage_objects:
        texts.append(
            "What storage holds counts files: each page with its header, rounded up to blocks of the file system."
        )
    if report.unfinished_pages:
        left = ", ".join(
            f"{_pages(n)} {path.replace('_to_', ' -> ')}" for path, n in sorted(report.unfinished_pages.items())
        )
        texts.append(f"NOT FINISHED when the replay stopped waiting, and not counted as moved: {left}.")
    if report.pages_total and report.missed_tokens_by_reason["forgotten"]:
        texts.append(
            f"Reasons come from a memory of {format_count(report.seen_keys_bound)} page keys; what it dropped is 'forgotten'."
        )
    if report.reuse.bound_reached:
        bound = format_count(report.reuse.bound_pages)
        texts.append(
            f"Reuse farther than {bound} pages ({format_bytes(report.reuse.bound_pages * report.pools.page_bytes)}) is counted as a first touch."
        )
    return (*texts, *(note[:1].upper() + note[1:] + ("" if note.endswith(".") else ".") for note in report.notes))

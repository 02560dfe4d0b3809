"""Huge pages seen in one mapping, held against what the word of a setting promises. Pure.

A fault that finds no free huge block is counted (thp_fault_fallback, thp_file_fallback), one that the setting does not let ask
is not; so the counters tell "the setting has no effect" from "there was no block to be had". They count for the whole host:
only as many as our own faults would have caused speak against us. Sources: Linux Documentation/admin-guide/mm/transhuge.rst,
mm/huge_memory.c (do_huge_pmd_anonymous_page), mm/shmem.c (shmem_alloc_and_add_folio).
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.proofs.proof import Proof

__all__ = ["Expected", "Pages", "Seen", "expected_of", "judge_huge", "mib"]

_MIB = 1 << 20

_EXPECTED = {"always": (True, True), "madvise": (False, True), "never": (False, False)}
_EXPECTED_SHARED = {
    "always": (True, True), "within_size": (True, True), "force": (True, True), "advise": (False, True),
    "never": (False, False), "deny": (False, False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pages:
    """What a mapping got: bytes in memory, and bytes of those in huge pages."""

    resident_bytes: int
    huge_bytes: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a word promises: whether a mapping gets huge pages without advice, and with it (MADV_HUGEPAGE)."""

    word: str
    plain: bool
    advised: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What happened. `control` is a second mapping without advice, made only where the word promises it none.

    `fallbacks` is how much the counters of failed huge faults rose, `free_blocks` how many huge blocks were free before; None
    where the kernel does not say. `overruled_by` names a setting that goes before the item's.
    """

    asked_bytes: int
    huge_page_bytes: int
    pages: Pages
    control: Pages | None
    fallbacks: int | None
    free_blocks: int | None
    overruled_by: str | None = None


def expected_of(word: str, *, shared: bool) -> Expected | None:
    """Return what a word of `enabled`, or with `shared` of `shmem_enabled` and `huge=`, promises; None for an unknown one. Pure.

    >>> expected_of("madvise", shared=False)
    Expected(word='madvise', plain=False, advised=True)
    """
    found = (_EXPECTED_SHARED if shared else _EXPECTED).get(word)
    return None if found is None else Expected(word, *found)


def judge_huge(name: str, expected: Expected, seen: Seen, what: str) -> Proof:
    """Hold what was seen against what the word promises. Pure.

    Any huge page proves that the setting lets them be had; how many there were is in the text. Without any, only a counter
    that stayed below what our faults would have added, or free blocks enough for all of them, proves that none was asked for.
    More huge pages than promised say nothing of a setting that another one is known to go before.
    """
    blocks = seen.asked_bytes // seen.huge_page_bytes
    pages, control = seen.pages, seen.control
    observed = {"asked_bytes": seen.asked_bytes, "resident_bytes": pages.resident_bytes, "huge_bytes": pages.huge_bytes}
    if control is not None:
        observed["unadvised_huge_bytes"] = control.huge_bytes
    if seen.fallbacks is not None:
        observed["fallbacks"] = seen.fallbacks
    if seen.free_blocks is not None:
        observed["free_huge_blocks"] = seen.free_blocks
    advised = "" if expected.plain else "advised, "
    text = f"{what}, {advised}{mib(pages.huge_bytes)} of {mib(seen.asked_bytes)} MiB in huge pages"
    if control is not None:
        text += f"; without advice {mib(control.huge_bytes)}"
    if pages.resident_bytes < seen.asked_bytes:
        return Proof(name, None, text, observed, f"only {mib(pages.resident_bytes)} MiB stayed in memory")
    if pages.huge_bytes:
        unasked = control is not None and control.huge_bytes > 0
        if expected.advised and not unasked:
            return Proof(name, True, text, observed)
        promise = f"{expected.word} promises none" + (" without advice" if expected.advised else "")
        if seen.overruled_by is not None:
            return Proof(name, None, text, observed, f"{promise}, and {seen.overruled_by} goes before it")
        return Proof(name, False, text, observed, f"{promise}: the setting has no effect")
    asked_for = _asked_for(blocks, seen)
    if not expected.advised:
        if asked_for is False:
            return Proof(name, True, text, observed)
        return Proof(name, None, text, observed, f"they may have been asked for and not been had: {_numbers(seen)}")
    if asked_for is False:
        because = f" because of {seen.overruled_by}" if seen.overruled_by else ""
        return Proof(
            name, False, text, observed, f"the kernel did not try to give huge pages{because}: {_numbers(seen)}"
        )
    return Proof(
        name,
        None,
        text,
        observed,
        f"asked for, and none could be had (memory is fragmented, or at a limit): {_numbers(seen)}",
    )


def _asked_for(blocks: int, seen: Seen) -> bool | None:
    """Whether huge pages were asked for in vain; None where neither counter nor free blocks tell."""
    if seen.fallbacks is not None:
        return seen.fallbacks >= blocks
    if seen.free_blocks is not None and seen.free_blocks >= blocks:
        return False
    return None


def _numbers(seen: Seen) -> str:
    free = "unknown" if seen.free_blocks is None else str(seen.free_blocks)
    failed = "unknown" if seen.fallbacks is None else str(seen.fallbacks)
    needed = seen.asked_bytes // seen.huge_page_bytes
    return f"failed huge faults {failed}, {needed} blocks needed, free ones of all nodes before {free}"


def mib(n_bytes: int) -> str:
    """Return whole MiB as a number without unit. Pure."""
    return f"{n_bytes / _MIB:.0f}"

"""Proofs of huge-page settings: map, advise where the setting needs it, populate, and read what that one mapping got.

A fault that finds no free huge block is counted (thp_fault_fallback, thp_file_fallback), one that the setting does not let ask
is not; so the counters tell "the setting has no effect" from "there was no block to be had". They count for the whole host:
only as many as our own faults would have caused speak against us. Sources: Linux Documentation/admin-guide/mm/transhuge.rst,
mm/huge_memory.c (do_huge_pmd_anonymous_page), mm/shmem.c (shmem_alloc_and_add_folio).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hicachectl.tuning.access import read_target
from hicachectl.tuning.host.cgroup import read_cgroup
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.kernel_text import field, number, status_fields, table_bytes
from hicachectl.tuning.host.pages import base_page_bytes, free_huge_blocks, huge_page_bytes
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.proofs.calls import Calls
from hicachectl.tuning.proofs.mapping import Pages, advise_huge, aligned, populate, smaps_of, why
from hicachectl.tuning.proofs.proof import Proof
from hicachectl.tuning.target import Method, Target

__all__ = ["Expected", "Seen", "expected_of", "judge_huge", "prove_huge"]

_MIB = 1 << 20
_PROOF_BYTES = 64 * _MIB
_THP = "/sys/kernel/mm/transparent_hugepage"

_EXPECTED = {"always": (True, True), "madvise": (False, True), "never": (False, False)}
_EXPECTED_SHARED = {
    "always": (True, True), "within_size": (True, True), "force": (True, True), "advise": (False, True),
    "never": (False, False), "deny": (False, False),
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    field: str
    counter: str
    what: str
    file: str
    """The settings file that governs it, and its name below each size."""


_KINDS = {
    "thp-anonymous": _Kind("thp-anonymous", "AnonHugePages", "thp_fault_fallback", "anonymous memory", "enabled"),
    "thp-shmem": _Kind("thp-shmem", "ShmemPmdMapped", "thp_file_fallback", "a memfd", "shmem_enabled"),
    "tmpfs-huge": _Kind("tmpfs-huge", "ShmemPmdMapped", "thp_file_fallback", "a file on the mount", ""),
}


def prove_huge(item: Item, root: HostRoot, calls: Calls) -> Proof:
    """Say whether the item's setting gives huge pages, or withholds them, as its word promises.

    Maps and populates 64 MiB (one huge page where that is more), twice one after the other where the word asks for advice,
    and unmaps them. Changes no setting; a file on the mount has no name. Never raises OSError: a refused call is held None.
    """
    kind = _KINDS[item.proof]
    word = _word(item, root, kind)
    huge = huge_page_bytes(root)
    for fact in (word, huge):
        if fact.value is None:
            return _unseen(kind, f"{fact.reason} ({fact.source})")
    assert word.value is not None
    assert huge.value is not None
    expected = expected_of(word.value, shared=kind.name != "thp-anonymous")
    if expected is None:
        return _unseen(kind, f"what {word.value} promises is not known here ({word.source})")
    n_bytes = -(-_PROOF_BYTES // huge.value) * huge.value
    short = _too_little(root, n_bytes)
    if short is not None:
        return _unseen(kind, short)
    if expected.advised and root.text("/proc/self/status").then(status_fields).then(_thp_off).value:
        return _unseen(kind, "huge pages are switched off for this process: THP_enabled 0 in /proc/self/status")
    before = _fallbacks(root, kind)
    free = free_huge_blocks(root, base_page_bytes(root), huge)
    try:
        pages = _map(item, root, calls, kind, n_bytes, huge.value, advise=not expected.plain)
        after = _fallbacks(root, kind)
        control = None
        if isinstance(pages, Pages) and expected.advised and not expected.plain and pages.huge_bytes:
            control = _map(item, root, calls, kind, n_bytes, huge.value, advise=False)
    except OSError as error:
        return _unseen(kind, why(error))
    for found in (pages, control):
        if isinstance(found, str):
            return _unseen(kind, found)
    assert isinstance(pages, Pages)
    assert not isinstance(control, str)
    rise = None if before is None or after is None else after - before
    n_free = None if free.value is None else sum(free.value.values())
    seen = Seen(n_bytes, huge.value, pages, control, rise, n_free, _overruler(item, root, kind, huge.value))
    return judge_huge(kind.name, expected, seen, kind.what)


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
    text = f"{what}, {advised}{_mib(pages.huge_bytes)} of {_mib(seen.asked_bytes)} MiB in huge pages"
    if control is not None:
        text += f"; without advice {_mib(control.huge_bytes)}"
    another = seen.overruled_by or "another setting"
    if pages.resident_bytes < seen.asked_bytes:
        return Proof(name, None, text, observed, f"only {_mib(pages.resident_bytes)} MiB stayed in memory")
    if pages.huge_bytes:
        if not expected.advised:
            return Proof(name, False, text, observed, f"{expected.word} promises none, {another} gives them")
        if control is not None and control.huge_bytes:
            return Proof(
                name, False, text, observed, f"{expected.word} promises none without advice, {another} gives them"
            )
        return Proof(name, True, text, observed)
    asked_for = _asked_for(blocks, seen)
    if not expected.advised:
        if asked_for is False:
            return Proof(name, True, text, observed)
        return Proof(
            name, None, text, observed, f"no huge block was free, or others' faults failed too: {_numbers(seen)}"
        )
    if asked_for is False:
        because = f" because of {seen.overruled_by}" if seen.overruled_by else ""
        return Proof(
            name, False, text, observed, f"the kernel did not try to give huge pages{because}: {_numbers(seen)}"
        )
    return Proof(
        name, None, text, observed, f"no free huge block, memory is fragmented or at a limit: {_numbers(seen)}"
    )


def _asked_for(blocks: int, seen: Seen) -> bool | None:
    """Whether huge pages were asked for in vain; None where neither counter nor free blocks tell."""
    if seen.fallbacks is not None:
        return seen.fallbacks >= blocks
    if seen.free_blocks is not None and seen.free_blocks >= blocks:
        return False
    return None


def _map(
    item: Item, root: HostRoot, calls: Calls, kind: _Kind, n_bytes: int, huge_bytes: int, *, advise: bool
) -> Pages | str:
    """Map, populate and read back once; a text says why it could not be read."""
    with _file(item, root, calls, kind, n_bytes) as fd:
        if fd is not None and kind.name == "tmpfs-huge" and calls.free_bytes(fd) < 2 * n_bytes:
            return f"less than {2 * n_bytes // _MIB} MiB are free on the mount"
        with aligned(calls, n_bytes, huge_bytes, fd) as start:
            if advise:
                advise_huge(calls, start, n_bytes)
            populate(calls, start, n_bytes)
            smaps = root.text("/proc/self/smaps")
            if smaps.value is None:
                return f"{smaps.reason} ({smaps.source})"
            return (
                smaps_of(smaps.value, start, n_bytes, kind.field)
                or f"/proc/self/smaps has no {kind.field} of the mapping"
            )


@contextmanager
def _file(item: Item, root: HostRoot, calls: Calls, kind: _Kind, n_bytes: int) -> Iterator[int | None]:
    if kind.name == "thp-anonymous":
        yield None
        return
    if kind.name == "thp-shmem":
        fd = calls.shared_memory(n_bytes)
    else:
        assert item.target is not None
        fd = calls.nameless_file(str(root.at(item.target.path)), n_bytes)
    try:
        yield fd
    finally:
        calls.close(fd)


def _word(item: Item, root: HostRoot, kind: _Kind) -> Fact[str]:
    """The word that governs the mapping: the item's own where it sets one, else what the files say."""
    target, new = item.target, str(item.wanted[0]) if item.wanted else None
    if kind.name == "tmpfs-huge":
        if target is None or target.method is not Method.MOUNT:
            return unknown("the item", "names no mount")
        return known(new, item.id) if new is not None else read_target(root, target).then(str)
    path = "" if target is None else target.path
    size = re.search(r"/hugepages-(\d{1,12})kB/", path, re.ASCII)
    huge = huge_page_bytes(root)
    if size is not None and huge.value is not None and int(size[1]) << 10 != huge.value:
        return unknown(path, f"smaps counts only pages of {huge.value >> 10} kB, not of {size[1]} kB")
    sets_it = path.endswith(f"/{kind.file}") and new is not None
    if sets_it and new != "inherit":
        return known(str(new), item.id)
    top = _root_word(root, f"{_THP}/{kind.file}")
    if sets_it or huge.value is None:
        return top
    own = _root_word(root, f"{_THP}/hugepages-{huge.value >> 10}kB/{kind.file}")
    if own.reason == "no such file" or own.value == "inherit":
        return top
    return own


def _overruler(item: Item, root: HostRoot, kind: _Kind, huge_bytes: int) -> str | None:
    """Name a setting that goes before the item's: the page size's own file, or for a mount deny and force of shmem_enabled."""
    if kind.name == "tmpfs-huge":
        word = _root_word(root, f"{_THP}/shmem_enabled").value
        return f"shmem_enabled {word}" if word in ("deny", "force") else None
    own = f"hugepages-{huge_bytes >> 10}kB/{kind.file}"
    if item.target is not None and item.target.path.endswith(own):
        return None
    word = _root_word(root, f"{_THP}/{own}").value
    return None if word in (None, "inherit") else f"{own} {word}"


def _root_word(root: HostRoot, path: str) -> Fact[str]:
    """Read the selected word of a settings file."""
    return read_target(root, Target(Method.SYSFS, path)).then(str)


def _too_little(root: HostRoot, n_bytes: int) -> str | None:
    """Say why the mapping would press on memory: a proof must not be what gets a process killed."""
    available = field(root.text("/proc/meminfo").then(table_bytes), "MemAvailable")
    if available.value is None:
        return f"how much memory is available is not known: {available.reason} ({available.source})"
    if available.value < 4 * n_bytes:
        return f"{_mib(available.value)} MiB are available, {_mib(4 * n_bytes)} would be needed"
    group = read_cgroup(root)
    if group.memory_max_bytes.value is not None and group.memory_current_bytes.value is not None:
        left = group.memory_max_bytes.value - group.memory_current_bytes.value
        if left < 2 * n_bytes:
            return f"the control group has {_mib(left)} MiB left, {_mib(2 * n_bytes)} would be needed"
    return None


def _fallbacks(root: HostRoot, kind: _Kind) -> int | None:
    """Read the counter of huge faults that got none; None where the kernel has no such counter."""
    for line in (root.text("/proc/vmstat").value or "").splitlines():
        name, _, value = line.partition(" ")
        if name == kind.counter:
            return known(value, "/proc/vmstat").then(number).value
    return None


def _thp_off(status: dict[str, str]) -> bool:
    return status.get("THP_enabled") == "0"


def _numbers(seen: Seen) -> str:
    free = "unknown" if seen.free_blocks is None else str(seen.free_blocks)
    failed = "unknown" if seen.fallbacks is None else str(seen.fallbacks)
    return f"failed huge faults {failed}, free huge blocks before {free}, {seen.asked_bytes // seen.huge_page_bytes} needed"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:.0f}"


def _unseen(kind: _Kind, reason: str) -> Proof:
    return Proof(kind.name, None, f"{kind.what}: not observed", {}, reason)

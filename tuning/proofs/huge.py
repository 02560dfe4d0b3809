"""Proofs of huge-page settings: map, advise where the setting needs it, populate, and read what that one mapping got."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hicachectl.linux_calls import why
from hicachectl.tuning.access import read_target
from hicachectl.tuning.host.cgroup import read_cgroup
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.kernel_text import field, number, status_fields, table_bytes
from hicachectl.tuning.host.pages import base_page_bytes, free_huge_blocks, huge_page_bytes
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.proofs.calls import Calls
from hicachectl.tuning.proofs.huge_share import Pages, Seen, expected_of, judge_huge, mib
from hicachectl.tuning.proofs.mapping import advise_huge, aligned, populate, smaps_of
from hicachectl.tuning.proofs.proof import Proof
from hicachectl.tuning.target import Method, Target

__all__ = ["prove_huge"]

_MIB = 1 << 20
_PROOF_BYTES = 64 * _MIB
_LOOKS = 3
"""Linux 6.1 leaves out of smaps the huge pages that automatic NUMA balancing samples, until they are faulted in again
(docs/facts.md#hidden-pages); the next sample is a second away."""
_THP = "/sys/kernel/mm/transparent_hugepage"


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


def _map(
    item: Item, root: HostRoot, calls: Calls, kind: _Kind, n_bytes: int, huge_bytes: int, *, advise: bool
) -> Pages | str:
    """Map, populate and read back, again where smaps has not all of it; a text says why it could not be read."""
    with _file(item, root, calls, kind, n_bytes) as fd:
        free = calls.free_bytes(fd) if fd is not None and kind.name == "tmpfs-huge" else None
        if free is not None and free < 2 * n_bytes:
            return f"less than {2 * n_bytes // _MIB} MiB are free on the mount"
        with aligned(calls, n_bytes, huge_bytes, fd) as start:
            if advise:
                advise_huge(calls, start, n_bytes)
            pages: Pages | None = None
            for _ in range(_LOOKS):
                populate(calls, start, n_bytes)
                smaps = root.text("/proc/self/smaps")
                if smaps.value is None:
                    return f"{smaps.reason} ({smaps.source})"
                pages = smaps_of(smaps.value, start, n_bytes, kind.field)
                if pages is None or pages.resident_bytes >= n_bytes:
                    break
            return pages or f"/proc/self/smaps has no {kind.field} of the mapping"


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
        return f"{mib(available.value)} MiB are available, {mib(4 * n_bytes)} would be needed"
    left = read_cgroup(root).memory_room_bytes.value
    if left is not None and left < 2 * n_bytes:
        return f"the control group has {mib(left)} MiB left, {mib(2 * n_bytes)} would be needed"
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


def _unseen(kind: _Kind, reason: str) -> Proof:
    return Proof(kind.name, None, f"{kind.what}: not observed", {}, reason)

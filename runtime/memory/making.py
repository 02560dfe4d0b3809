"""The steps that make a mapping, one function a step, each returning what it got; `mapping.map_memory` knows their order."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hicachectl.errors import HostError, UsageError, Vanished
from hicachectl.linux_calls import MADV_DONTFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE, why
from hicachectl.runtime.memory.address_range import AddressRange
from hicachectl.runtime.memory.binding import kernel_weights
from hicachectl.runtime.memory.kinds import (
    Kind,
    base_page_bytes,
    huge_page_bytes,
    tmpfs_folder,
)
from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.populate import populate, threads_for
from hicachectl.runtime.memory.preflight import mapped_bytes_of, require_kind, require_mount_room
from hicachectl.runtime.memory.refusals import limit_words, name_taken, not_obtained, not_populated
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar, Registration, register
from hicachectl.runtime.memory.shared_file import LABEL_BYTES, Standing, label_text, remove_stale
from hicachectl.runtime.memory.small_pages import no_huge_reason, tail_reason
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import Step, StepState
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.runtime.memory.verify_pages import look_at_pages, uneven
from hicachectl.units import format_bytes

__all__ = [
    "Obtained",
    "Seen",
    "advise_step",
    "name_step",
    "obtain",
    "populate_step",
    "register_step",
    "verify_step",
]

_ENOUGH_HUGE = 0.99
"""Share of huge pages from which on a mapping counts as huge: the rest is a tail that no huge page fits into."""
_HIDDEN = "smaps leaves out pages that automatic NUMA balancing samples (docs/facts.md#hidden-pages)"
_ENOUGH_TO_TELL = 32
"""Huge pages a node from which on a sample says how evenly a mapping lies on its nodes."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """A range with memory in it, not yet touched: whoever has it must release it."""

    range: AddressRange
    n_bytes: int
    mapped_bytes: int
    huge_bytes: int
    step: Step
    attached: bool = False
    """Whether another process made the memory: its pages are there, and hold something."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the pages showed; None for what could not be seen."""

    step: Step
    huge_share: float | None = None
    resident_bytes: int | None = None
    by_node: dict[int, int] = field(default_factory=dict)


def obtain(calls: MemoryCalls, n_bytes: int, spec: MappingSpec) -> Obtained:
    """Reserve addresses and put memory there. Raises UsageError, PermissionDenied or CapacityError; then nothing is left."""
    if n_bytes < 1:
        raise UsageError(f"a mapping of {n_bytes} bytes", hint="give at least 1 byte")
    hugetlb = require_kind(calls, n_bytes, spec)
    huge = huge_page_bytes(calls) if hugetlb is None else hugetlb
    mapped = mapped_bytes_of(calls, n_bytes, spec, hugetlb)
    held: AddressRange | None = None
    removed = ""
    try:
        if spec.has_name:
            removed = _free_name(spec)
        held = AddressRange(calls, mapped, huge)
        fd = _descriptor(calls, mapped, spec)
        held.place(fd, hugetlb_bytes=hugetlb)
        if fd is not None:
            if spec.kind is Kind.TMPFS:
                require_mount_room(calls, fd, mapped + LABEL_BYTES, spec.path)
            calls.own(fd)
            calls.write(
                fd,
                label_text({"mapped_bytes": mapped, "n_bytes": n_bytes, "pid": os.getpid(), **dict(spec.label)}),
                mapped,
            )
    except OSError as error:
        if held is not None:
            held.release()
        raise not_obtained(error, n_bytes, spec) from error
    except BaseException:
        if held is not None:
            held.release()
        raise
    text = f"{format_bytes(mapped)} of {spec.kind.value} memory at a multiple of {format_bytes(huge)}{removed}"
    return Obtained(held, n_bytes, mapped, huge, Step("reserve", StepState.DONE, text, n_bytes=mapped))


def _free_name(spec: MappingSpec) -> str:
    """See to it that the name of a file is free: remove what a killed process of ours left there, and say so. Raises UsageError."""
    assert spec.path is not None
    found = remove_stale(spec.path)
    if found.standing is Standing.FREE:
        return ""
    if found.standing is Standing.STALE:
        return f"; what was left at {spec.path} is removed: {found.words}"
    raise name_taken(spec.path, found)


def name_step(got: Obtained, spec: MappingSpec, live: LiveRegistrations) -> Step:
    """Give the file its name, now that everything behind it is there. Raises UsageError when another took it meanwhile."""
    assert spec.path is not None
    try:
        live.hold(got.range.give_name(spec.path, live.drop))
    except OSError as error:
        raise not_obtained(error, got.n_bytes, spec) from error
    return Step("name", StepState.DONE, f"{spec.path}, until it is closed", n_bytes=got.mapped_bytes)


def advise_step(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> Step:
    """Ask for huge pages, or for none. What comes of it, only looking at the pages tells."""
    if spec.kind is Kind.HUGETLB:
        return _skipped("advise", "pages of the hugetlb pool are huge by themselves")
    advice, name = (MADV_HUGEPAGE, "MADV_HUGEPAGE") if spec.huge else (MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE")
    try:
        calls.advise(got.range.address, got.mapped_bytes, advice)
    except OSError as error:
        return Step("advise", StepState.REFUSED, f"{name} refused", f"{name}: {why(error)}")
    return Step("advise", StepState.DONE, name, n_bytes=got.mapped_bytes)


def populate_step(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> Step:
    """Touch every page. Raises CapacityError when there is no memory for one, HostError when it is broken."""
    n_threads = threads_for(got.mapped_bytes) if spec.n_threads is None else spec.n_threads
    nodes = () if spec.placed is None else spec.placed.nodes
    done = populate(
        calls,
        got.range.address,
        got.mapped_bytes,
        got.huge_bytes,
        n_threads=n_threads,
        nodes=nodes,
        filled=got.attached,
    )
    if done.error is not None:
        raise not_populated(done.error, done.n_bytes, n_bytes=got.n_bytes, mapped_bytes=got.mapped_bytes, spec=spec)
    if got.attached and not done.n_bytes:
        return _skipped("populate", f"{done.method}: pages are mapped when they are read")
    text = f"{format_bytes(done.n_bytes)} by {done.n_threads} {'thread' if done.n_threads == 1 else 'threads'}, {done.method}"
    where = "" if done.unbound is None else f"; threads not on the CPUs of their nodes: {done.unbound}"
    return Step("populate", StepState.DONE, text + where, done.unbound, n_bytes=done.n_bytes)


def verify_step(
    calls: MemoryCalls, got: Obtained, spec: MappingSpec, *, advised: bool = True, mapped_here: bool = True
) -> Seen:
    """Look at the pages: how many are there, how many in huge pages, on which nodes.

    `advised`: the kernel took the advice. `mapped_here`: this process has touched them, so that it can see them at all.
    """
    if not mapped_here:
        return Seen(_skipped("verify", "pages are mapped when they are read: there is nothing to look at yet"))
    found, sample = look_at_pages(calls, spec.kind, got.range.address, got.mapped_bytes)
    short: list[str] = []
    tail: str | None = None
    if isinstance(found, str):
        short.append(found)
        words, huge, resident, share = "huge pages not known", 0, None, None
    else:
        huge, resident, share = found.huge_bytes or 0, found.resident_bytes, found.share
        words = f"{_percent(share)} in huge pages, {format_bytes(found.resident_bytes)} in memory"
        if found.huge_bytes is None:
            words = f"huge pages not known, {format_bytes(found.resident_bytes)} in memory"
            short.append(f"huge pages not known: {_HIDDEN}")
        if found.resident_bytes < got.mapped_bytes:
            short.append(f"{format_bytes(found.resident_bytes)} of {format_bytes(got.mapped_bytes)} are in memory")
        if spec.huge and share is not None and share < _ENOUGH_HUGE:
            tail = tail_reason(got.mapped_bytes, got.huge_bytes, huge)
            if tail is None:
                why_small = no_huge_reason(calls, spec.kind, spec.path, got.huge_bytes, advised=advised)
                short.append(f"{_percent(share)} in huge pages: {why_small}")
    if sample.reason is not None:
        short.append(f"nodes not known: {sample.reason}")
    elif spec.placed is not None:
        total = sum(sample.by_node.values())
        outside = sum(n for node, n in sample.by_node.items() if node not in spec.placed.nodes)
        if outside:
            short.append(
                f"{outside} of {total} {'' if sample.whole else 'sampled '}pages lie outside nodes {list(spec.placed.nodes)}"
            )
        else:
            short += uneven(sample.by_node, _shares(calls, got, spec.placed))
    where = ", ".join(f"node {node} {n}" for node, n in sample.by_node.items()) or "none"
    unread = isinstance(found, str) and sample.reason is not None
    state = StepState.REFUSED if unread else StepState.PARTLY if short else StepState.DONE
    reasons = short if tail is None else [f"{_percent(share)} in huge pages: {tail}", *short]
    step = Step(
        "verify",
        state,
        f"{words}; {'pages' if sample.whole else 'sampled pages'}: {where}",
        "; ".join(reasons) or None,
        n_bytes=huge,
    )
    return Seen(step, share, resident, sample.by_node)


def _shares(calls: MemoryCalls, got: Obtained, placed: Placed) -> dict[int, float] | None:
    """Return the part of the pages that each node should have; None where a mapping is too small to tell."""
    if got.mapped_bytes < _ENOUGH_TO_TELL * got.huge_bytes * len(placed.nodes):
        return None
    return placed.shares(kernel_weights(calls, placed) if placed.mode is PlacementMode.WEIGHTED else {})


def register_step(
    calls: MemoryCalls,
    got: Obtained,
    spec: MappingSpec,
    registrar: Registrar | NoRegistrar,
    registration: Registration | None,
    refused: Refusal | None,
) -> Step:
    """Register the range, all of it or none. `refused` is what the driver answered already. Raises Vanished, or HostError if it must."""
    if isinstance(registrar, NoRegistrar) or registration is None:
        reason = registrar.reason if isinstance(registrar, NoRegistrar) else "nothing to register"
        return _skipped("register", reason)
    answer: Refusal | str | None = refused
    if answer is None:
        answer = _kept_from_children(calls, got, spec) or register(
            registration,
            got.mapped_bytes,
            slot_bytes=spec.slot_bytes,
            page_bytes=(got.huge_bytes,) if spec.kind is Kind.HUGETLB else (got.huge_bytes, base_page_bytes()),
            largest_bytes=spec.largest_registration_bytes,
        )
    if answer is None:
        n = len(registration.ranges)
        text = f"{format_bytes(got.mapped_bytes)} in {n} {'chunk' if n == 1 else 'chunks'}, {registrar.name}"
        return Step("register", StepState.DONE, text, n_bytes=got.mapped_bytes)
    reason = f"{answer}{limit_words(answer, got.mapped_bytes)}"
    if isinstance(answer, Refusal) and answer.device_lost:
        raise Vanished(
            f"the device went away while {format_bytes(got.mapped_bytes)} of host memory were registered with it",
            why=reason,
            hint="see the kernel's log for the device (dmesg), reset it, and start again",
        )
    if spec.must_register:
        raise HostError(
            f"host memory of {format_bytes(got.mapped_bytes)} could not be registered with the device",
            why=reason,
            hint="make the pool smaller, or run without registration: copies are then slower",
        )
    return Step("register", StepState.REFUSED, "not registered: copies go through the driver's own buffers", reason)


def _skipped(name: str, reason: str) -> Step:
    return Step(name, StepState.SKIPPED, f"skipped: {reason}", reason)


def _percent(share: float | None) -> str:
    """Write a share rounded down: 99.6 % is not 100. Pure."""
    return "none" if share is None else f"{int(share * 100)} %"


def _descriptor(calls: MemoryCalls, mapped_bytes: int, spec: MappingSpec) -> int | None:
    """Open what shared memory is made of, with room for its label; it has no name yet."""
    if spec.kind is Kind.MEMFD:
        return calls.shared_memory(mapped_bytes + LABEL_BYTES)
    if spec.kind is Kind.TMPFS:
        assert spec.path is not None
        return calls.file(tmpfs_folder(spec.path, named=spec.has_name), mapped_bytes + LABEL_BYTES)
    return None


def _kept_from_children(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> str | None:
    """Keep private memory out of forked children (MADV_DONTFORK): returns None, or why it cannot be.

    Pages the device knows are copied for the child at the fork, all of them; on kernels before 5.12 it is the parent that gets
    the copy when it writes next, and the device goes on with the old pages: wrong bytes.
    """
    if spec.kind.is_shared:
        return None
    try:
        calls.advise(got.range.address, got.mapped_bytes, MADV_DONTFORK)
    except OSError as error:
        return f"MADV_DONTFORK: {why(error)}"
    return None

"""The steps that make a mapping, one function a step, each returning what it got; `mapping.map_memory` knows their order."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from hicachectl.errors import CapacityError, HostError, UsageError, Vanished
from hicachectl.linux_calls import MADV_DONTFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE, why
from hicachectl.runtime.memory.address_range import AddressRange
from hicachectl.runtime.memory.budget import require_node_room
from hicachectl.runtime.memory.kinds import (
    Kind,
    base_page_bytes,
    huge_page_bytes,
    huge_setting,
    read_hugetlb,
    require_hugetlb,
    require_tmpfs,
)
from hicachectl.runtime.memory.numa import free_on_node, nodes_in_both
from hicachectl.runtime.memory.placement_modes import POLICY_NAMES, PlacementMode, policy_number
from hicachectl.runtime.memory.populate import populate, threads_for
from hicachectl.runtime.memory.refusals import limit_words, not_obtained, not_populated
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar, Registration, register
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import Step, StepState
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.runtime.memory.verify_pages import read_resident, sample_nodes
from hicachectl.units import format_bytes

__all__ = [
    "Obtained",
    "Seen",
    "advise_step",
    "bind_step",
    "mapped_size",
    "obtain",
    "populate_step",
    "register_step",
    "require_room_on_nodes",
    "usable_nodes",
    "verify_step",
]

_ENOUGH_HUGE = 0.99
"""Share of huge pages from which on a mapping counts as huge: the rest is a tail that no huge page fits into."""
_MOST_PADDING = 8
"""A range is rounded up to whole huge pages when that adds at most one part in this many."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """A range with memory in it, not yet touched: whoever has it must release it."""

    range: AddressRange
    n_bytes: int
    mapped_bytes: int
    huge_bytes: int
    step: Step


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the pages showed; None for what could not be seen."""

    step: Step
    huge_share: float | None = None
    resident_bytes: int | None = None
    by_node: dict[int, int] = field(default_factory=dict)


def mapped_size(n_bytes: int, page_bytes: int, huge_bytes: int, *, whole_huge: bool) -> int:
    """Return how much is mapped for a pool: rounded up to huge pages where that costs little or must be, else to base pages. Pure.

    >>> mapped_size(33 << 20, 4096, 2 << 20, whole_huge=False) >> 20, mapped_size(5000, 4096, 2 << 20, whole_huge=False)
    (34, 8192)
    """
    up = -(-n_bytes // huge_bytes) * huge_bytes
    if whole_huge or (up - n_bytes) * _MOST_PADDING <= n_bytes:
        return up
    return -(-n_bytes // page_bytes) * page_bytes


def obtain(calls: MemoryCalls, n_bytes: int, spec: MappingSpec) -> Obtained:
    """Reserve addresses and put memory there. Raises UsageError, PermissionDenied or CapacityError; then nothing is left."""
    if n_bytes < 1:
        raise UsageError(f"a mapping of {n_bytes} bytes", hint="give at least 1 byte")
    page, huge = base_page_bytes(), huge_page_bytes(calls)
    hugetlb: int | None = None
    if spec.kind is Kind.HUGETLB:
        bound = () if spec.placed is None else spec.placed.nodes
        pool = read_hugetlb(calls, spec.hugetlb_bytes, bound or usable_nodes(calls))
        require_hugetlb(pool, n_bytes, bound)
        hugetlb = huge = pool.page_bytes
    elif spec.kind is Kind.TMPFS:
        if spec.path is None:
            raise UsageError("a mapping of kind tmpfs without a path", hint="name a file or a folder on a tmpfs mount")
        require_tmpfs(calls, spec.path, named=spec.named)
    mapped = mapped_size(n_bytes, page, huge, whole_huge=hugetlb is not None) if spec.huge or hugetlb else 0
    mapped = mapped or -(-n_bytes // page) * page
    held: AddressRange | None = None
    try:
        held = AddressRange(calls, mapped, huge)
        fd, name = _descriptor(calls, mapped, spec)
        held.place(fd, hugetlb_bytes=hugetlb, path=name)
        _require_file_room(calls, fd, mapped, spec)
    except OSError as error:
        if held is not None:
            held.release()
        raise not_obtained(error, n_bytes, spec) from error
    except BaseException:
        if held is not None:
            held.release()
        raise
    text = f"{format_bytes(mapped)} of {spec.kind.value} memory at a multiple of {format_bytes(huge)}"
    return Obtained(held, n_bytes, mapped, huge, Step("reserve", StepState.DONE, text, n_bytes=mapped))


def bind_step(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> Step:
    """Set the policy of the range and read it back; a refusal is a result."""
    placed = spec.placed
    if placed is None:
        return _skipped("bind", "no placement asked: pages come from where they are first touched")
    outside = sorted(set(placed.nodes) - set(usable_nodes(calls)))
    if outside:
        return _not_bound(
            f"nodes {outside} are not both online and allowed to this process ({list(usable_nodes(calls))} are)"
        )
    number = policy_number(placed.mode)
    try:
        calls.bind(got.range.address, got.mapped_bytes, number, placed.nodes)
    except OSError as error:
        return _not_bound(f"{why(error)}{_HINTS.get(error.errno or 0, '')}")
    asked = f"{POLICY_NAMES[number]} on nodes {', '.join(map(str, placed.nodes))}"
    try:
        policy, nodes = calls.policy_of(got.range.address)
    except OSError as error:
        return Step("bind", StepState.PARTLY, f"{asked}, not read back", f"set, but not read back: {why(error)}")
    policy &= 0xFFF  # above are the mode flags, MPOL_F_STATIC_NODES and others
    if (policy, nodes) != (number, placed.nodes):
        seen = f"{POLICY_NAMES.get(policy, policy)} on nodes {list(nodes)}"
        return Step(
            "bind", StepState.PARTLY, seen, f"policy not applied as asked: {asked} was set, {seen} is read back"
        )
    return Step("bind", StepState.DONE, f"{placed.mode.value}: {asked}, read back", n_bytes=got.mapped_bytes)


def require_room_on_nodes(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> None:
    """Look at what the nodes that memory is bound to have left, before a page is touched. Raises CapacityError.

    A bound page that cannot be had gets the process killed. Pages of the hugetlb pool are counted by themselves (`obtain`).
    """
    if spec.placed is None or spec.kind is Kind.HUGETLB:
        return
    free: dict[int, int] = {}
    for node in spec.placed.nodes:
        try:
            found = free_on_node(calls.read(f"/sys/devices/system/node/node{node}/meminfo"))
        except OSError:
            continue
        if found is not None:
            free[node] = found
    spread = spec.placed.mode is not PlacementMode.WEIGHTED and len(free) > 1
    require_node_room(free, got.mapped_bytes, spec.placed.nodes, spread=spread)


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
    done = populate(calls, got.range.address, got.mapped_bytes, got.huge_bytes, n_threads=n_threads, nodes=nodes)
    if done.error is not None:
        raise not_populated(done.error, done.n_bytes, n_bytes=got.n_bytes, mapped_bytes=got.mapped_bytes, spec=spec)
    text = f"{format_bytes(done.n_bytes)} by {done.n_threads} {'thread' if done.n_threads == 1 else 'threads'}, {done.method}"
    where = "" if done.unbound is None else f"; threads not on the CPUs of their nodes: {done.unbound}"
    return Step("populate", StepState.DONE, text + where, done.unbound, n_bytes=done.n_bytes)


def verify_step(calls: MemoryCalls, got: Obtained, spec: MappingSpec) -> Seen:
    """Look at the pages: how many are there, how many in huge pages, on which nodes."""
    found = read_resident(calls, spec.kind, got.range.address, got.mapped_bytes)
    sample = sample_nodes(calls, got.range.address, got.mapped_bytes)
    short: list[str] = []
    if isinstance(found, str):
        short.append(found)
        words, huge, resident, share = "huge pages not known", 0, None, None
    else:
        huge, resident, share = found.huge_bytes, found.resident_bytes, found.share
        words = f"{_percent(share)} in huge pages, {format_bytes(found.resident_bytes)} in memory"
        if found.resident_bytes < got.mapped_bytes:
            short.append(f"{format_bytes(found.resident_bytes)} of {format_bytes(got.mapped_bytes)} are in memory")
        if spec.huge and (share or 0.0) < _ENOUGH_HUGE:
            short.append(f"{_percent(share)} in huge pages: {huge_setting(calls, spec.kind, spec.path)}")
    if sample.reason is not None:
        short.append(f"nodes not known: {sample.reason}")
    elif spec.placed is not None:
        total = sum(sample.by_node.values())
        outside = sum(n for node, n in sample.by_node.items() if node not in spec.placed.nodes)
        if outside:
            short.append(f"{outside} of {total} sampled pages lie outside nodes {list(spec.placed.nodes)}")
    where = ", ".join(f"node {node} {n}" for node, n in sample.by_node.items()) or "none"
    unread = isinstance(found, str) and sample.reason is not None
    state = StepState.REFUSED if unread else StepState.PARTLY if short else StepState.DONE
    step = Step("verify", state, f"{words}; sampled pages: {where}", "; ".join(short) or None, n_bytes=huge)
    return Seen(step, share, resident, sample.by_node)


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


def usable_nodes(calls: MemoryCalls) -> tuple[int, ...]:
    """Return the nodes that are online and allowed to this process; empty when the kernel does not say. Reads two files."""
    try:
        return nodes_in_both(calls.read("/sys/devices/system/node/online"), calls.read("/proc/self/status"))
    except OSError:
        return ()


_HINTS = {
    errno.EPERM: "; container runtimes put mbind behind CAP_SYS_NICE",
    errno.EINVAL: "; a node outside the cpuset, or a policy this kernel does not have (weighted: Linux 6.9)",
    errno.ENOSYS: "",
}


def _skipped(name: str, reason: str) -> Step:
    return Step(name, StepState.SKIPPED, f"skipped: {reason}", reason)


def _not_bound(reason: str) -> Step:
    return Step("bind", StepState.REFUSED, "policy not applied", f"policy not applied: {reason}")


def _percent(share: float | None) -> str:
    """Write a share rounded down: 99.6 % is not 100. Pure."""
    return "none" if share is None else f"{int(share * 100)} %"


def _descriptor(calls: MemoryCalls, mapped_bytes: int, spec: MappingSpec) -> tuple[int | None, str | None]:
    """Open what the memory is made of: its descriptor, and the file's name where this mapping gave it one."""
    if spec.kind is Kind.MEMFD:
        return calls.shared_memory(mapped_bytes), None
    if spec.kind is Kind.TMPFS:
        assert spec.path is not None
        return calls.file(spec.path, mapped_bytes, spec.named), spec.path if spec.named else None
    return None, None


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


def _require_file_room(calls: MemoryCalls, fd: int | None, mapped_bytes: int, spec: MappingSpec) -> None:
    """Refuse a file its file system has no room for: later, a store into it would kill the process."""
    if fd is None or spec.kind is not Kind.TMPFS:
        return
    free = calls.free_bytes(fd)
    if free < mapped_bytes:
        raise CapacityError(
            f"a file of {format_bytes(mapped_bytes)} on a tmpfs with {format_bytes(free)} left",
            terms=(("file bytes", mapped_bytes), ("bytes left on the mount", free)),
            where=spec.path,
            hint="make the mount larger (remount with size=), remove what lies there, or use kind memfd",
        )

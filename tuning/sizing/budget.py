"""How many bytes of this host the pool may take: every term of the sum, and which one binds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.runtime.memory.budget import HugetlbRoom
from hicachectl.tuning.host.model import Cgroup, Memory
from hicachectl.tuning.sizing.node_room import NodeRoom
from hicachectl.units import format_bytes

__all__ = ["Budget", "PoolPlan", "Term", "budget_of"]

_MARGIN = 0.05
_LEAST_MARGIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the sum; None where it could not be read or is not there, with the reason."""

    name: str
    n_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What else bounds a pool: how many of its size the host holds, its nodes, its mount, and the reserved huge pages it is of.

    `copies`: how often the ranks together hold a pool of this size. `nodes` None: no placement asked. `mount_free_bytes`: kind tmpfs, on a
    mount with a limit.
    `locked` says that RLIMIT_MEMLOCK counts, `lock_reason` why it does not.
    """

    copies: int = 1
    nodes: NodeRoom | None = None
    mount_free_bytes: int | None = None
    hugetlb: HugetlbRoom | None = None
    locked: bool = False
    lock_reason: str = "nothing is registered"


@dataclass(frozen=True, slots=True)
class Budget:
    """What one pool may take, and the term that ends it. `trial_bytes`: what one trial pool may, where that is less."""

    terms: tuple[Term, ...]
    can_use_bytes: int
    bound: str
    trial_bytes: int | None = None


def budget_of(
    memory: Memory,
    *,
    taken_bytes: int,
    taken_words: str | None = None,
    max_bytes: int | None = None,
    margin_bytes: int | None = None,
    plan: PoolPlan = PoolPlan(),
) -> Budget:
    """Sum up what the pool may take. Pure.

    `taken_bytes` are the run's own other memory (a device pool on the host, key tables), `taken_words` what of it is what; `margin_bytes` stay free (default:
    5 % of the memory, at least 256 MiB), of the nodes of a placement too. Of what the host has room for each of `plan.copies` pools
    gets its part; `max_bytes` is of one. A term that could not be read does not bind and says why.
    """
    total, available = memory.total_bytes.value, memory.available_bytes.value
    margin = max(_LEAST_MARGIN_BYTES, int(_MARGIN * (total or 0))) if margin_bytes is None else margin_bytes
    group = memory.cgroup.memory_room_bytes
    own = taken_bytes + margin
    nodes = plan.nodes
    of_host: dict[str, int | None] = {}
    if plan.hugetlb is not None:
        of_host["free pages of the hugetlb pool"] = plan.hugetlb.free_bytes
        of_host["room under the cgroup limit on hugetlb"] = (
            None if plan.hugetlb.group is None else plan.hugetlb.group_bytes
        )
    else:
        of_host["available memory"] = _less(available, own)
        of_host["room under the cgroup limit"] = _less(group.value, own)
        of_host["room on the tmpfs"] = plan.mount_free_bytes
        if nodes is not None:
            of_host[f"placement {nodes.mode}"] = _less(nodes.host_bytes, own)
    of_pool: dict[str, int | None] = {
        name: None if amount is None else amount // plan.copies for name, amount in of_host.items()
    }
    lock = memory.memlock_bytes.value
    of_pool["locked memory"] = lock if plan.locked else None
    of_pool["--max-bytes"] = max_bytes
    known = {name: amount for name, amount in of_pool.items() if amount is not None}
    bound = min(known, key=lambda name: known[name]) if known else "nothing could be read"
    terms = [
        Term("total", total, memory.total_bytes.reason),
        Term("other use", None if total is None or available is None else total - available, memory.available_bytes.reason),
        Term("hugepages held", memory.hugetlb_bytes.value, memory.hugetlb_bytes.reason),
        Term("room under the cgroup limit", group.value, _group_words(memory.cgroup)),
        Term("locked memory", lock if plan.locked else None, (memory.memlock_bytes.reason or "unlimited") if plan.locked else plan.lock_reason),
        Term("this run's other memory", taken_bytes, taken_words),
        Term("margin", margin),
        Term("--max-bytes", max_bytes, None if max_bytes is not None else "not given"),
    ]  # fmt: skip
    if plan.hugetlb is not None:
        terms += _hugetlb_terms(plan.hugetlb)
    if plan.mount_free_bytes is not None:
        terms.append(Term("free on the tmpfs", plan.mount_free_bytes))
    if nodes is not None:
        terms += [
            Term(f"free on node {node}", amount, None if amount is not None else "not read")
            for node, amount in nodes.free_bytes.items()
        ]
        terms.append(Term(f"placement {nodes.mode}", nodes.host_bytes, nodes.words))
    if plan.copies > 1 and known:
        terms.append(Term(f"one of {plan.copies} copies on the ranks", known[bound]))
    can_use = max(0, known[bound]) if known else 0
    in_trial = None if nodes is None or plan.hugetlb is not None else _less(nodes.trial_bytes, own)
    return Budget(tuple(terms), can_use, bound, None if in_trial is None else max(0, min(can_use, in_trial)))


def _group_words(group: Cgroup) -> str | None:
    """Name the group that leaves least, or say why it is not known."""
    if group.memory_room_bytes.value is None:
        return group.memory_room_bytes.reason
    return f"{group.memory_limited_by.value or 'a group'}{group.memory_limit_words}"


def _hugetlb_terms(room: HugetlbRoom) -> tuple[Term, ...]:
    free = Term("hugetlb pages free", room.free_bytes, f"of {format_bytes(room.page_bytes)}, promised to nobody")
    if room.group is None:
        return free, Term("room under the cgroup limit on hugetlb", None, room.unread or "no limit")
    return free, Term("room under the cgroup limit on hugetlb", room.group_bytes, room.group.name)


def _less(amount: int | None, own: int) -> int | None:
    return None if amount is None else amount - own

"""How many bytes of this host the pool may take: every term of the sum, and which one binds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.host.model import Memory

__all__ = ["Budget", "Term", "budget_of"]

_MARGIN = 0.05
_LEAST_MARGIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the sum; None where it could not be read or is not there, with the reason."""

    name: str
    n_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a pool may take, and the term that ends it."""

    terms: tuple[Term, ...]
    can_use_bytes: int
    bound: str


def budget_of(
    memory: Memory,
    *,
    taken_bytes: int,
    max_bytes: int | None = None,
    margin_bytes: int | None = None,
    registered: bool = False,
) -> Budget:
    """Sum up what the pool may take. Pure.

    `taken_bytes` are the run's own other memory (a device pool on the host, key tables); `margin_bytes` stay free (default:
    5 % of the memory, at least 256 MiB); `registered`: the pool will be locked, so RLIMIT_MEMLOCK counts. A term that
    could not be read does not bind and says why.
    """
    total, available = memory.total_bytes.value, memory.available_bytes.value
    limit, current = memory.cgroup.memory_max_bytes.value, memory.cgroup.memory_current_bytes.value
    margin = max(_LEAST_MARGIN_BYTES, int(_MARGIN * (total or 0))) if margin_bytes is None else margin_bytes
    room = None if limit is None or current is None else max(0, limit - current)
    lock = memory.memlock_bytes.value if registered else None
    own = taken_bytes + margin
    bounds = {
        "available memory": None if available is None else available - own,
        "room under the cgroup limit": None if room is None else room - own,
        "locked memory": lock,
        "--max-bytes": max_bytes,
    }
    known = {name: amount for name, amount in bounds.items() if amount is not None}
    bound = min(known, key=lambda name: known[name]) if known else "nothing could be read"
    terms = (
        Term("total", total, memory.total_bytes.reason),
        Term("other use", None if total is None or available is None else total - available, memory.available_bytes.reason),
        Term("hugepages held", memory.hugetlb_bytes.value, memory.hugetlb_bytes.reason),
        Term("room under the cgroup limit", room, memory.cgroup.memory_max_bytes.reason or memory.cgroup.memory_current_bytes.reason),
        Term("locked memory", lock, (memory.memlock_bytes.reason or "unlimited") if registered else "nothing is registered"),
        Term("this run's other memory", taken_bytes),
        Term("margin", margin),
        Term("--max-bytes", max_bytes, None if max_bytes is not None else "not given"),
    )  # fmt: skip
    return Budget(terms, max(0, known[bound]) if known else 0, bound)

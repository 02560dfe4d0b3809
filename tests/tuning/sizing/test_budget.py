from __future__ import annotations

from dataclasses import replace

from hicachectl.tuning.host.facts import known, unknown
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.model import Memory
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.budget import budget_of

GIB = 1 << 30


def memory(
    total: int = 100, available: int = 80, limit: int | None = None, current: int = 10, lock: int | None = None
) -> Memory:
    """A host's memory in GiB; None: no limit."""
    base = read_memory(HostRoot("/nonexistent"))

    def fact(amount: int | None) -> object:
        return unknown("made up", "no limit") if amount is None else known(amount * GIB, "made up")

    cgroup = replace(base.cgroup, memory_max_bytes=fact(limit), memory_current_bytes=fact(current))  # type: ignore[arg-type]
    return replace(
        base, total_bytes=fact(total), available_bytes=fact(available), memlock_bytes=fact(lock), cgroup=cgroup,  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_is_available_less_margin_and_own_use_binds_where_nothing_is_tighter() -> None:
    found = budget_of(memory(), taken_bytes=5 * GIB)
    assert (found.can_use_bytes, found.bound) == (70 * GIB, "available memory")  # 80 - 5 % of 100 - 5
    assert {term.name: term.n_bytes for term in found.terms}["other use"] == 20 * GIB


def test_the_tightest_of_group_lock_and_flag_binds_and_is_named() -> None:
    assert budget_of(memory(limit=40), taken_bytes=0).bound == "room under the cgroup limit"
    assert budget_of(memory(limit=40), taken_bytes=0).can_use_bytes == 25 * GIB
    assert budget_of(memory(), taken_bytes=0, max_bytes=3 * GIB).bound == "--max-bytes"
    assert budget_of(memory(lock=2), taken_bytes=0, registered=True).bound == "locked memory"
    assert budget_of(memory(lock=2), taken_bytes=0).bound == "available memory"


def test_a_term_that_is_not_there_does_not_bind_and_says_why() -> None:
    terms = {term.name: term for term in budget_of(memory(), taken_bytes=0).terms}
    assert (terms["room under the cgroup limit"].n_bytes, terms["room under the cgroup limit"].reason) == (
        None,
        "no limit",
    )
    assert terms["--max-bytes"].reason == "not given"


def test_too_little_is_none_and_never_negative() -> None:
    assert budget_of(memory(available=1), taken_bytes=5 * GIB).can_use_bytes == 0

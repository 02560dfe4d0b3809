"""One sum for the host, term by term."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicachectl.errors import CapacityError
from hicachectl.runtime.memory.budget import Ask, GroupLimit, HostMemory, HugetlbRoom, ledger, require_node_room

GIB = 1 << 30
HOST = HostMemory(
    total_bytes=1536 * GIB,
    available_bytes=1000 * GIB,
    hugetlb_bytes=200 * GIB,
    hugetlb=HugetlbRoom(2 << 20, 50 * GIB),
)


def test_the_terms_of_the_machine_add_up_to_what_can_be_used() -> None:
    found = ledger(HOST, [Ask("host pool", GIB)], reserve_bytes=128 * GIB)
    assert sum(amount for _, amount in found.terms) == found.room_bytes == 872 * GIB
    assert dict(found.terms)["hugetlb held"] == -200 * GIB


@given(ranks=st.integers(1, 16), pool=st.integers(0, 100), side=st.integers(0, 100), room=st.integers(0, 3000))
def test_a_sum_fits_exactly_when_all_ranks_and_pools_do_together(ranks: int, pool: int, side: int, room: int) -> None:
    host = HostMemory(10_000, room)
    found = ledger(
        host, [Ask("host pool", pool, ranks=ranks), Ask("bounce", side, ranks=ranks, shared=True)], reserve_bytes=0
    )
    assert found.wanted_bytes == pool * ranks + side
    assert found.fits == (pool * ranks + side <= room)
    if not found.fits:
        with pytest.raises(CapacityError) as caught:
            found.require()
        terms = dict(caught.value.terms)
        assert (terms["host pool"], terms["bounce"]) == (pool * ranks, side)
        assert terms["usable memory"] == room


def test_the_tightest_bound_decides_and_is_named_with_its_terms() -> None:
    host = HostMemory(100, 80, group=GroupLimit(60, 25, "cgroup /pod"))
    found = ledger(host, [Ask("host pool", 32)], reserve_bytes=5)
    assert (found.room_bytes, found.bound) == (30, "usable memory under the cgroup limit")
    assert dict(found.terms)["limit of cgroup /pod"] == 60
    with pytest.raises(CapacityError, match="usable memory under the cgroup limit"):
        found.require()
    assert ledger(HostMemory(100, 20, group=GroupLimit(60, 25)), [], reserve_bytes=5).bound == "usable memory"


def test_free_hugetlb_pages_serve_pools_of_that_kind_and_no_other() -> None:
    plain = ledger(HOST, [Ask("host pool", 1001 * GIB)], reserve_bytes=0)
    assert not plain.fits
    both = ledger(
        HOST, [Ask("host pool", 900 * GIB), Ask("huge pool", 25 * GIB, ranks=2, hugetlb=True)], reserve_bytes=0
    )
    assert both.fits
    more = ledger(HOST, [Ask("huge pool", 51 * GIB, hugetlb=True)], reserve_bytes=0)
    with pytest.raises(CapacityError, match="free hugetlb memory is 50"):
        more.require()


def test_each_sum_has_what_draws_on_it_and_no_more() -> None:
    asks = [Ask("device pool", 10 * GIB), Ask("host pool", 51 * GIB, hugetlb=True)]
    with pytest.raises(CapacityError) as reserved:
        ledger(HOST, asks, reserve_bytes=0).require()
    assert dict(reserved.value.terms) == {
        "host pool": 51 * GIB,
        "wanted, the sum of these": 51 * GIB,
        "free pages of 2.0 MiB, promised to nobody": 50 * GIB,
        "free hugetlb memory": 50 * GIB,
    }
    with pytest.raises(CapacityError) as plain:
        ledger(HOST, asks, reserve_bytes=995 * GIB).require()
    assert "host pool" not in dict(plain.value.terms)


def test_a_limit_on_reserved_pages_binds_in_whole_pages() -> None:
    room = HugetlbRoom(2, 50, GroupLimit(20, 5, "cgroup /pod (hugetlb.2MB.max)"))
    found = ledger(HostMemory(100, 80, hugetlb=room), [Ask("host pool", 15, hugetlb=True)], reserve_bytes=0)
    assert (found.hugetlb_room_bytes, found.fits) == (14, False)
    with pytest.raises(CapacityError, match="free hugetlb memory under the cgroup limit is 14"):
        found.require()
    loose = HugetlbRoom(2, 10, GroupLimit(20, 5))
    assert (loose.room_bytes, loose.bound) == (10, "free hugetlb memory")


def test_a_limit_that_is_not_known_is_told_in_the_refusal() -> None:
    with pytest.raises(CapacityError) as caught:
        ledger(HostMemory(100, 80, unread="odd (memory.max)"), [Ask("host pool", 81)], reserve_bytes=0).require()
    assert caught.value.why == "host pool 81 B; it may be less: odd (memory.max)"


EVEN = {0: 1, 1: 1}


def test_a_full_node_refuses_what_is_bound_to_it_and_the_first_full_one_what_is_spread() -> None:
    free = {0: 10, 1: 40}
    require_node_room(free, 10, (0,))
    require_node_room(free, 50, (0, 1))
    require_node_room(free, 20, (0, 1), weights=EVEN)
    require_node_room(free, 50, (0, 1), weights={0: 1, 1: 4})
    require_node_room(free, 1000, (0, 7))
    require_node_room(free, 1000, (0, 1), weights={0: 1})  # a weight that is not known
    for n_bytes, nodes, weights in (
        (11, (0,), None),
        (51, (0, 1), None),
        (21, (0, 1), EVEN),
        (14, (0, 1), {0: 3, 1: 1}),
    ):
        with pytest.raises(CapacityError) as caught:
            require_node_room(free, n_bytes, nodes, weights=weights)
        assert dict(caught.value.terms)["free on node 0"] == 10


def test_what_is_bound_may_use_no_other_node_and_what_is_spread_would_lie_on_others() -> None:
    with pytest.raises(CapacityError) as bound:
        require_node_room({0: 10, 1: 40}, 51, (0, 1))
    assert (bound.value.why, bound.value.hint) == (
        "no other node may be used",
        "make the pool smaller, or place it on more nodes",
    )
    with pytest.raises(CapacityError, match="which have room for 20 B by the placement") as spread:
        require_node_room({0: 10, 1: 40}, 21, (0, 1), weights=EVEN)
    assert spread.value.why == (
        "node 0 is full first: the kernel would take what it lacks from other nodes, and the placement would not hold"
    )
    assert spread.value.hint == "make the pool smaller, free memory on node 0, or give another placement"


def test_a_passed_limit_leaves_no_room_and_no_negative_one() -> None:
    assert ledger(HostMemory(100, 3, group=GroupLimit(5, 9)), [], reserve_bytes=10).room_bytes == 0

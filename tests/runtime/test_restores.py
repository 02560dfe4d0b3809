"""Restores: what comes from storage must leave the tree in its laws whatever lies above it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_driver import NAMESPACES, CacheDriver, Setup, tokens_of
from held_copies import HeldRead
from small_cache import SmallCache

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.write_policy import WritePolicy


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE])
def test_a_page_from_storage_never_hangs_in_the_host_tier_under_one_that_left_it(
    policy: WritePolicy, tmp_path: Path
) -> None:
    with SmallCache(8, 4, tmp_path) as before:
        before.serve([1, 2, 3])
        assert before.cache.drain(30)
    with SmallCache(8, 4, tmp_path, write_policy=policy) as small:
        small.serve([1, 2])
        for other in ([5, 6, 7], [5, 6, 7], [8], [8]):  # the host tier is theirs now, 1 and 2 stay on the device
            small.serve(other)
        assert small.cache.drain(30)
        account = small.serve([1, 2, 3])
        assert (account.device_hit_pages, account.host_hit_pages, account.restored_storage_pages) == (2, 0, 1)
        assert small.cache.drain(30)
        small.cache.check()
        small.serve([1, 2, 3])
        assert small.cache.drain(30)
        small.cache.check()
        assert len(small.resident(Tier.HOST)) == 4


def test_pages_read_from_storage_are_pinned_for_their_request_from_the_moment_they_are_visible() -> None:
    driver = CacheDriver(
        Setup(CacheConfig(restore="always", strict=True), device_slots=4, host_slots=4, storage="memory")
    )
    driver.serve((0, 1), namespace=NAMESPACES[0])
    for path in [(2, 2, 2, 2), (1, 1, 1, 1)]:
        driver.serve(path, namespace=NAMESPACES[0])
        driver.drain()
    caller = driver.arrive((0, 1), namespace=NAMESPACES[0])
    assert caller.request.storage_pages == 2
    driver.restore(caller)
    while driver.control.pending:
        driver.control.finish_all()
        driver.cache.tick()
    other = driver.arrive((3, 3, 3, 3), namespace=NAMESPACES[0])
    driver.restore(other)
    driver.wait(other)
    driver.allocate(other, 4)
    assert other.request.allocated is None, "two of four slots are pinned"
    driver.wait(caller)
    assert caller.request.ready_pages == 2
    driver.close()


def test_no_node_remembers_a_load_that_is_over_however_nodes_were_split_meanwhile() -> None:
    driver = CacheDriver(Setup(CacheConfig(restore="always", strict=True), device_slots=6, host_slots=12))
    driver.serve((0, 1, 2, 3), namespace=NAMESPACES[0])
    driver.serve((5, 5, 5, 5), namespace=NAMESPACES[0])  # takes two of the four from the device
    driver.drain()
    caller = driver.arrive((0, 1, 2, 3), namespace=NAMESPACES[0])
    assert caller.request.match.device_pages == 2
    driver.control.stuck = True
    driver.restore(caller)
    assert driver.cache.tree.match(tokens_of((0,))).node.load is not None
    driver.arrive((0, 7), namespace=NAMESPACES[0])  # splits off a part above the pages being loaded
    driver.control.stuck = False
    driver.wait(caller)
    assert [node.load for node in driver.cache.tree.nodes()] == [None] * driver.cache.tree.n_nodes
    driver.close()


def test_a_request_shares_a_running_load_as_far_as_its_own_path_goes_and_loads_its_branch_itself() -> None:
    driver = CacheDriver(Setup(CacheConfig(restore="always", strict=True), device_slots=8, host_slots=16))
    for path in [(0, 0, 1, 1), (0, 0, 2, 2), (5, 5, 5, 5, 5, 5, 5, 5)]:
        driver.serve(path, namespace=NAMESPACES[0])
        driver.drain()
    first, second = (driver.arrive(path, namespace=NAMESPACES[0]) for path in [(0, 0, 1, 1), (0, 0, 2, 2)])
    assert (first.request.match.device_pages, second.request.match.device_pages) == (0, 0)
    driver.restore(first)
    driver.restore(second)
    assert [len(load.device_slots) for load in second.request.loads] == [4, 2]
    driver.wait(second)
    assert second.request.ready_pages == 4
    driver.wait(first)
    driver.close()


def test_a_page_still_on_its_way_down_is_not_announced_because_storage_brought_it_too() -> None:
    driver = CacheDriver(Setup(CacheConfig(restore="always"), device_slots=8, host_slots=16, storage="memory"))
    before = CacheDriver(Setup(CacheConfig(), device_slots=8, host_slots=8, storage="memory"))
    before.serve((0, 1), namespace=NAMESPACES[0])
    before.close()
    driver.storage.objects.update(before.storage.objects)  # type: ignore[union-attr]
    driver.control.stuck = True
    reader, late = (driver.arrive((0, 1), namespace=NAMESPACES[0]) for _ in range(2))
    driver.restore(reader)
    for step in (driver.restore, lambda caller: driver.wait(caller, patient=False)):
        step(late)
    driver.allocate(late, 2)
    driver.publish(late)  # computed it instead of waiting, and its backup is queued
    for read in [one for one in driver.control.pending if isinstance(one, HeldRead)]:
        read.finish()
    driver.cache.tick()
    for load in [one for one in driver.control.pending if one._queue == "load"]:
        load.finish()
    driver.cache.tick()
    assert not driver.held[Tier.HOST]
    driver.verify()
    driver.close()
    assert len(driver.held[Tier.HOST]) == 2

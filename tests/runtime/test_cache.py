"""The cache's promises, one sentence each, on pools of a few slots; copies end when the test says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cache_driver import NAMESPACES, PAGE_TOKENS, CacheDriver, Setup, keys_of, tokens_of

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.write_policy import WritePolicy

DEVICE, HOST, STORAGE = Tier.DEVICE, Tier.HOST, Tier.STORAGE
EMPTY = NAMESPACES[0]
ALWAYS = CacheConfig(restore="always", strict=True, seen_keys=64)
WRITE_BACK = CacheConfig(restore="always", strict=True, write_policy=WritePolicy.WRITE_BACK)


def small(config: CacheConfig = ALWAYS, **sizes: object) -> CacheDriver:
    return CacheDriver(Setup(config, **{"device_slots": 4, "host_slots": 8, **sizes}))  # type: ignore[arg-type]


def held(driver: CacheDriver, tier: Tier, *paths: tuple[int, ...]) -> list[int]:
    """Return how many leading pages of each path `tier` holds."""
    return [
        next((i for i, key in enumerate(keys_of(EMPTY, path)) if key not in driver.held[tier]), len(path))
        for path in paths
    ]


def missed(driver: CacheDriver) -> dict[str, int]:
    """Return missed pages by reason."""
    return {reason.value: tokens // PAGE_TOKENS for reason, tokens in driver.cache.counters.missed_tokens.items()}


# -- visibility -----------------------------------------------------------------------------------------------------


def test_pages_are_visible_after_publish_and_not_before() -> None:
    driver = small()
    caller = driver.arrive((0, 1), namespace=EMPTY)
    driver.restore(caller)
    driver.wait(caller)
    driver.allocate(caller, 2)
    assert driver.cache.tree.match(tokens_of((0, 1))).logical_pages == 0
    driver.publish(caller)
    assert driver.cache.tree.match(tokens_of((0, 1))).device_pages == 2
    driver.close()


def test_a_restored_page_is_visible_only_after_its_copy() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    caller = driver.arrive((0, 1), namespace=EMPTY)
    driver.restore(caller)
    assert driver.cache.tree.match(tokens_of((0, 1))).device_pages == 0
    driver.control.pending[0].finish()
    driver.cache.tick()
    assert driver.cache.tree.match(tokens_of((0, 1))).device_pages == 2
    driver.close()


def test_a_flipped_byte_in_the_host_pool_is_found_before_its_page_becomes_visible() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    node = driver.cache.tree.match(tokens_of((0, 1))).node
    assert driver.host_pool is not None
    driver.host_pool.page_bytes_view(int(node.slots[HOST][1]))[9] ^= 0x10
    request = driver.cache.match(tokens_of((0, 1)), b"".join(keys_of(EMPTY, (0, 1))))
    driver.cache.restore(request)
    with pytest.raises(AssertionError, match=r"host gave a wrong byte: Mismatch\(page=1.*offset=1"):
        driver.cache.wait_restored(request)
    assert driver.cache.tree.match(tokens_of((0, 1))).device_pages == 0
    driver.cache.release(request)
    driver.cache.check()
    assert driver.cache.tree.active_leases == 0


# -- restores ---------------------------------------------------------------------------------------------------------


def test_two_requests_for_the_same_pages_share_one_load() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    first, second = driver.arrive((0, 1), namespace=EMPTY), driver.arrive((0, 1, 3), namespace=EMPTY)
    driver.restore(first)
    driver.restore(second)
    driver.wait(second)
    driver.wait(first)
    assert (first.request.ready_pages, second.request.ready_pages) == (2, 2)
    assert driver.engine is not None
    assert driver.engine.loads == 1
    driver.close()


def test_a_failed_load_costs_a_recompute_and_says_so() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    driver.control.fates.append(True)
    caller = driver.serve((0, 1), namespace=EMPTY)
    assert caller.request.used_pages == 0
    assert missed(driver)["failed"] == 2
    assert driver.cache.counters.failures == {"transfer_load": 1}
    driver.close()


def test_a_request_that_does_not_wait_computes_and_the_late_copy_gives_its_slots_back() -> None:
    driver = small(device_slots=8, host_slots=16)
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2, 2, 2, 2), namespace=EMPTY)
    driver.serve((3,), namespace=EMPTY)
    driver.drain()
    caller = driver.arrive((0, 1), namespace=EMPTY)
    assert caller.request.match.device_pages == 0
    driver.restore(caller)
    driver.wait(caller, patient=False)
    assert caller.request.ready_pages == 0
    driver.allocate(caller, 2)
    driver.publish(caller)
    driver.release(caller)
    driver.drain()
    assert missed(driver)["in_flight"] == 2
    assert driver.cache.counters.duplicate_pages == 2
    driver.close()


def test_a_page_storage_promised_and_lost_is_a_miss_with_its_reason() -> None:
    driver = small(storage="memory", host_slots=4)
    driver.serve((0, 1), namespace=EMPTY)
    for path in [(2, 2, 2, 2), (1, 1, 1, 1)]:
        driver.serve(path, namespace=EMPTY)
        driver.drain()
    caller = driver.arrive((0, 1), namespace=EMPTY)
    assert caller.request.storage_pages == 2
    driver.storage.corrupt.add(caller.keys[1])  # type: ignore[union-attr]
    driver.restore(caller)
    driver.wait(caller)
    assert caller.request.ready_pages == 1
    driver.release(caller)
    assert missed(driver)["failed"] == 1
    assert driver.storage.corrupt_removed == 1  # type: ignore[union-attr]
    driver.close()


def test_a_new_process_restores_from_the_storage_folder_of_the_old_one(tmp_path: Path) -> None:
    before = small(storage="file", folder=tmp_path)
    before.serve((0, 1, 2), namespace=EMPTY)
    before.close()
    after = small(storage="file", folder=tmp_path)
    assert after.serve((0, 1, 2), namespace=NAMESPACES[1]).request.used_pages == 0, "another namespace, other keys"
    assert after.serve((0, 1, 2, 3), namespace=EMPTY).request.used_pages == 3
    assert after.restored_from[STORAGE] == 3
    after.close()


# -- going down -----------------------------------------------------------------------------------------------------


def test_without_room_for_all_the_first_pages_are_backed_up() -> None:
    driver = small(host_slots=3)
    driver.serve((0, 1, 2, 3), namespace=EMPTY)
    driver.drain()
    assert held(driver, HOST, (0, 1, 2, 3)) == [3]
    assert driver.cache.counters.dropped_pages == 1
    driver.close()


def test_selective_backs_up_at_the_second_request_and_not_at_the_second_insertion() -> None:
    driver = small(CacheConfig(restore="always", write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE))
    caller = driver.arrive((0, 1, 2), namespace=EMPTY)
    driver.restore(caller)
    driver.wait(caller)
    for _ in range(3):  # chunked prefill, a page a chunk, each publish twice
        driver.allocate(caller, 1)
        driver.publish(caller)
        driver.publish(caller)
    driver.release(caller)
    driver.drain()
    assert held(driver, HOST, (0, 1, 2)) == [0]
    driver.serve((0, 1), namespace=EMPTY)
    driver.drain()
    assert held(driver, HOST, (0, 1, 2)) == [2]
    driver.close()


def test_a_prefill_node_that_releases_at_once_still_gets_its_pages_down_intact() -> None:
    driver = small()
    driver.serve((0, 1, 2, 3), namespace=EMPTY)  # released while its backup is queued
    assert len(driver.control.pending) == 1
    driver.serve((2, 2, 2, 2), namespace=EMPTY)  # needs its device slots: waits for the copy
    driver.drain()
    assert held(driver, HOST, (0, 1, 2, 3)) == [4]
    driver.close()


def test_write_back_copies_a_victim_down_and_nothing_before() -> None:
    driver = small(WRITE_BACK)
    driver.serve((0, 1, 2, 3), namespace=EMPTY)
    driver.drain()
    assert not driver.held[HOST]
    driver.serve((3, 3), namespace=EMPTY)
    driver.drain()
    assert held(driver, DEVICE, (0, 1, 2, 3), (3, 3)) == [2, 2]
    assert set(keys_of(EMPTY, (0, 1, 2, 3))[2:]) == driver.held[HOST]
    assert driver.serve((0, 1, 2, 3), namespace=EMPTY).request.used_pages == 4
    driver.close()


@pytest.mark.parametrize("strict", [True, False])
def test_write_back_copies_no_more_victims_than_it_needs_slots(strict: bool) -> None:
    driver = small(CacheConfig(restore="always", strict=strict, write_policy=WritePolicy.WRITE_BACK))
    for symbol in range(4):
        driver.serve((symbol,), namespace=EMPTY)
    driver.serve((5,), namespace=EMPTY)
    assert driver.engine is not None
    assert driver.engine.backups <= 1
    driver.close()


def test_the_ghost_list_backs_up_at_the_first_return_of_a_page_that_left_without_a_copy() -> None:
    config = CacheConfig(restore="always", write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, ghost_entries=16)
    driver = small(config)
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.serve((0, 1), namespace=EMPTY)
    driver.drain()
    assert held(driver, HOST, (0, 1)) == [2]
    assert driver.cache.counters.ghost_hits == 1
    driver.close()


def test_strict_waits_for_the_copy_that_holds_the_next_victim_and_without_it_the_next_but_one_goes() -> None:
    for strict, survivor in [(True, (2, 2)), (False, (0, 1))]:
        driver = small(CacheConfig(restore="always", strict=strict))
        driver.serve((2, 2), namespace=EMPTY)
        driver.drain()
        driver.serve((0, 1), namespace=EMPTY)
        driver.serve((2, 2), namespace=EMPTY)  # (0, 1) is the older one now, and its copy is under way
        driver.serve((3, 3), namespace=EMPTY)
        assert held(driver, DEVICE, survivor, (3, 3)) == [2, 2]
        driver.close()


# -- accounts -------------------------------------------------------------------------------------------------------


def test_every_missed_token_has_one_reason_and_it_is_the_right_one() -> None:
    driver = small(host_slots=4)
    driver.serve((0, 1), namespace=EMPTY)
    assert missed(driver) == {"never_seen": 2}
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.drain()
    driver.serve((0, 1), namespace=EMPTY)
    assert missed(driver) == {"never_seen": 6, "evicted_host": 2}
    caller = driver.arrive((0, 1), namespace=EMPTY, tail=3)
    driver.restore(caller)
    driver.wait(caller)
    driver.release(caller)
    assert driver.cache.counters.missed_tokens[MissReason.PARTIAL_PAGE] == 3
    driver.close()


def test_without_a_host_tier_a_lost_page_was_evicted_from_the_device() -> None:
    driver = small(host_slots=0)
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.serve((0, 1), namespace=EMPTY)
    assert missed(driver) == {"never_seen": 6, "evicted_device": 2}
    driver.close()


def test_a_page_the_policy_did_not_copy_is_called_not_backed_up() -> None:
    driver = small(CacheConfig(restore="always", write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, seen_keys=64))
    driver.serve((0, 1), namespace=EMPTY)
    driver.serve((2, 2, 2, 2), namespace=EMPTY)
    driver.serve((0, 1), namespace=EMPTY)
    assert missed(driver) == {"never_seen": 6, "not_backed_up": 2}
    driver.close()


# -- the caller's mistakes ------------------------------------------------------------------------------------------


def test_allocated_and_unpublished_slots_come_back_at_release() -> None:
    driver = small()
    caller = driver.arrive((0, 1, 2, 3), namespace=EMPTY)
    driver.restore(caller)
    driver.wait(caller)
    driver.allocate(caller, 3)
    assert driver.cache.device_slots.n_free == 1
    driver.release(caller)
    assert driver.cache.device_slots.n_free == 4
    driver.close()


def test_slots_that_cannot_be_had_are_none_and_counted() -> None:
    driver = small()
    first, second = driver.arrive((0, 1, 2), namespace=EMPTY), driver.arrive((3, 3, 3), namespace=EMPTY)
    for caller in (first, second):
        driver.restore(caller)
        driver.wait(caller)
        driver.allocate(caller, 3)
    assert second.request.allocated is None
    assert driver.cache.counters.device_full == 1
    driver.close()


def test_calls_out_of_order_are_refused_by_name() -> None:
    driver = small()
    caller = driver.arrive((0,), namespace=EMPTY)
    for call in (driver.cache.publish, lambda request: driver.cache.allocate(request, 1)):
        with pytest.raises(InvariantBroken, match="matched"):
            call(caller.request)
    driver.restore(caller)
    with pytest.raises(InvariantBroken, match="restoring"):
        driver.cache.restore(caller.request)
    driver.wait(caller)
    driver.allocate(caller, 1)
    with pytest.raises(InvariantBroken, match="1 unpublished"):
        driver.cache.allocate(caller.request, 1)
    driver.release(caller)
    with pytest.raises(InvariantBroken, match="released"):
        driver.cache.release(caller.request)
    driver.close()


def test_a_match_without_the_keys_the_cache_wants_is_refused_and_pins_nothing() -> None:
    driver = small()
    with pytest.raises(UsageError, match="2 page keys wanted, 1 given"):
        driver.cache.match(tokens_of((0, 1)), keys_of(EMPTY, (0, 1))[0])
    driver.cache.check()
    driver.close()


def test_check_names_slots_that_belong_to_two_owners() -> None:
    driver = small()
    driver.serve((0, 1), namespace=EMPTY)
    driver.drain()
    driver.cache.device_slots.free(np.array([0], dtype=np.int32))
    with pytest.raises(InvariantBroken, match="tree 2 \\+ private 0 \\+ free 3 = 5, capacity 4"):
        driver.cache.check()


def test_a_namespace_nobody_uses_any_more_is_forgotten() -> None:
    driver = small()
    for symbol in range(3):
        driver.serve((symbol, 1, 1, 1), namespace=NAMESPACES[symbol])
        driver.drain()
    driver.serve((0, 0, 0, 0), namespace=EMPTY)
    driver.serve((1, 0, 0, 0), namespace=EMPTY)
    driver.serve((2, 0, 0, 0), namespace=EMPTY)
    driver.drain()
    assert [root.namespace for root in driver.cache.tree.roots()] == [EMPTY]
    driver.close()

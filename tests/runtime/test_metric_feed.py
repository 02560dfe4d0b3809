"""The metric feed: what a scrape shows is what the cache did, balanced, cheap, and seen from this machine alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter

import pytest
from small_cache import GEOMETRY, PAGE_TOKENS, RECOMPUTE, SmallCache

from hicachectl.runtime.account import Account
from hicachectl.runtime.cost import Path as CopyPath
from hicachectl.runtime.decide import RestoreReason
from hicachectl.runtime.metric_catalog import CATALOG, MetricKind
from hicachectl.runtime.metric_feed import MetricFeed
from hicachectl.runtime.metrics import Metrics, Sample
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.backends import Direction

Key = tuple[str, str | None]


def read(metrics: Metrics) -> dict[Key, Sample]:
    return {(s.spec.name, s.label_value): s for s in metrics.samples()}


def total(got: dict[Key, Sample], name: str) -> float:
    return sum(sample.value for key, sample in got.items() if key[0] == name)


def n_observed(got: dict[Key, Sample], name: str, label: str | None = None) -> int:
    return sum(got[name, label].counts)


def run_all_tiers(small: SmallCache) -> list[Account]:
    """Push three paths through a device tier of 6, a host tier of 6 and a storage; all come back from each tier."""
    accounts = [small.serve(pages) for pages in ([1, 2, 3], [4, 5, 6], [1, 2, 3, 7], [8, 9, 10], [4, 5, 6], [1, 2, 3])]
    assert small.cache.drain(30)
    return accounts


def test_after_a_run_over_three_tiers_every_metric_of_the_cache_is_there(tmp_path: Path) -> None:
    metrics = Metrics()
    with SmallCache(6, 7, tmp_path) as small:
        feed = MetricFeed(metrics, small.cache, small.engine, verified=lambda: (5, 0))
        run_all_tiers(small)
        small.cache.counters.storage_failed("transient")
        feed.close()
    got = read(metrics)
    assert {name for name, _ in got} == {spec.name for spec in CATALOG}
    for spec in CATALOG:
        if spec.kind is MetricKind.HISTOGRAM:
            assert sum(sum(s.counts) for s in got.values() if s.spec is spec) > 0, spec.name
        elif spec.name != "hicache_mismatched_pages_total":
            assert total(got, spec.name) > 0, spec.name


def test_counters_of_requests_are_the_sums_of_their_accounts(tmp_path: Path) -> None:
    metrics = Metrics()
    with SmallCache(6, 7, tmp_path) as small:
        MetricFeed(metrics, small.cache, small.engine)
        accounts = run_all_tiers(small)
        got = read(metrics)
    page = PAGE_TOKENS
    value = {key: sample.value for key, sample in got.items()}
    input_tokens = sum(a.input_tokens for a in accounts)
    used_pages = sum(a.used_pages for a in accounts)
    assert value["hicache_requests_total", None] == len(accounts)
    assert total(got, "hicache_prompt_tokens_total") == input_tokens
    assert total(got, "hicache_missed_tokens_total") + used_pages * page == input_tokens
    assert total(got, "hicache_missed_tokens_total") == value["hicache_prompt_tokens_total", "computed"]
    assert value["hicache_prompt_tokens_total", "host"] == sum(a.restored_host_pages for a in accounts) * page > 0
    assert value["hicache_prompt_tokens_total", "storage"] == sum(a.restored_storage_pages for a in accounts) * page > 0
    for tier, word in enumerate(("device", "host", "storage")):
        assert value["hicache_hit_pages_total", word] == small.cache.counters.hit_pages[tier]
    for reason in MissReason:
        expected = sum(a.missed_tokens.get(reason, 0) for a in accounts)
        assert value["hicache_missed_tokens_total", reason.value] == expected
    saved = sum(RECOMPUTE.skipped_s(0, a.used_pages * page) for a in accounts)
    assert total(got, "hicache_saved_seconds_total") == pytest.approx(saved)
    assert value["hicache_moved_seconds_total", None] == pytest.approx(
        sum(a.restore_wait_s + a.room_wait_s for a in accounts)
    )
    assert total(got, "hicache_restores_total") == len(accounts)
    assert n_observed(got, "hicache_match_seconds") == len(accounts)
    restored = [a for a in accounts if a.restored_host_pages + a.restored_storage_pages]
    assert n_observed(got, "hicache_restore_seconds") == len(restored)
    assert value["hicache_restore_seconds", None] >= sum(a.restore_wait_s for a in restored) > 0


def test_what_moved_and_left_is_what_the_tiers_counted(tmp_path: Path) -> None:
    metrics = Metrics()
    with SmallCache(6, 7, tmp_path, storage_pages=4) as small:
        MetricFeed(metrics, small.cache, small.engine)
        run_all_tiers(small)
        got = read(metrics)
        counters, engine, storage = small.cache.counters, small.engine, small.storage
        assert engine is not None
        assert storage is not None
        stats = storage.stats()
        value = {key: sample.value for key, sample in got.items()}
        pages = {
            "host_read": counters.loaded_pages,
            "host_write": counters.backup_pages,
            "storage_read": counters.storage_read_pages,
            "storage_write": counters.stored_pages,
        }
        for path, n_pages in pages.items():
            assert value["hicache_moved_tokens_total", path] == n_pages * PAGE_TOKENS
            assert n_observed(got, "hicache_transfer_seconds", path) == n_observed(got, "hicache_queued_seconds", path)
        for path in ("host_read", "host_write", "storage_read"):
            assert value["hicache_moved_bytes_total", path] == pages[path] * GEOMETRY.page_bytes
        assert value["hicache_moved_bytes_total", "storage_write"] == stats.written_bytes > 0
        assert value["hicache_transfer_seconds", "host_read"] == pytest.approx(counters.load_s)
        assert value["hicache_transfer_seconds", "host_write"] == pytest.approx(counters.backup_s)
        assert stats.evictions > 0
        evicted = (*counters.evicted_pages, stats.evictions)
        for word, n_pages in zip(("device", "host", "storage"), evicted, strict=True):
            assert value["hicache_evicted_tokens_total", word] == n_pages * PAGE_TOKENS
        used = (small.cache.tree.n_pages[0], small.cache.tree.n_pages[1], stats.n_objects)
        for word, n_pages in zip(("device", "host", "storage"), used, strict=True):
            assert value["hicache_used_tokens", word] == n_pages * PAGE_TOKENS
            assert value["hicache_used_tokens", word] <= value["hicache_capacity_tokens", word]
        assert value["hicache_capacity_tokens", "device"] == 6 * PAGE_TOKENS
        assert value["hicache_capacity_tokens", "host"] == 7 * PAGE_TOKENS


def test_reading_twice_adds_nothing_and_closing_lets_go(tmp_path: Path) -> None:
    metrics = Metrics()
    with SmallCache(6, 7, tmp_path) as small:
        feed = MetricFeed(metrics, small.cache, small.engine)
        run_all_tiers(small)
        first = metrics.samples()
        assert metrics.samples() == first
        feed.close()
        feed.close()
        small.serve([11])
        assert metrics.samples() == first
    assert metrics.samples() == first


def test_tiers_that_are_not_there_have_no_series() -> None:
    metrics = Metrics()
    with SmallCache(6, 0) as small:
        MetricFeed(metrics, small.cache, small.engine)
        small.serve([1, 2])
        got = read(metrics)
    assert not {label for _, label in got} & {"host", "storage", "host_read", "storage_write"}
    assert got["hicache_prompt_tokens_total", "computed"].value == 9


def test_failures_of_cache_and_storage_with_one_name_are_added_up(tmp_path: Path) -> None:
    metrics = Metrics()
    with SmallCache(6, 7, tmp_path) as small:
        MetricFeed(metrics, small.cache, small.engine)
        assert small.storage is not None
        small.cache.counters.storage_failed("corrupt")
        small.storage._failures["corrupt"] += 2
        small.cache.counters.transfer_failed("backup")
        for _ in range(2):
            got = read(metrics)
            assert got["hicache_failures_total", "storage_corrupt"].value == 3
            assert got["hicache_failures_total", "transfer_backup"].value == 1


def test_what_failed_behind_the_end_of_a_load_is_a_failure_of_its_own_name() -> None:
    metrics = Metrics()
    with SmallCache(6, 7) as small:
        MetricFeed(metrics, small.cache, small.engine)
        assert not {label for name, label in read(metrics) if name == "hicache_failures_total"}
        small.engine._totals[Direction.LOAD].add_late_failure()  # type: ignore[union-attr]
        for _ in range(2):
            assert read(metrics)["hicache_failures_total", "transfer_load_late"].value == 1


def an_account() -> Account:
    missed = {MissReason.NEVER_SEEN: 30 * 16, MissReason.PARTIAL_PAGE: 5, MissReason.EVICTED_HOST: 16}
    return Account(
        70 * 16 + 5 + 31 * 16 - 0, 16, 101, 20, 30, 20, 70, 30, 20, 0.002, missed, 1e-4, RestoreReason.ALL, 0.002
    )


def test_a_request_with_its_copies_and_evictions_costs_less_than_30_microseconds(tmp_path: Path) -> None:
    account = an_account()
    with SmallCache(6, 7, tmp_path) as small:
        feed = MetricFeed(Metrics(), small.cache, small.engine)
        costs = []
        for _ in range(2000):
            began = perf_counter()
            feed.released(account)
            for path in CopyPath:
                feed.moved(path, 30, 0.002, 1e-5)
            feed.evicted(Tier.DEVICE, 31, 1e-4)
            feed.evicted(Tier.HOST, 31, 1e-4)
            costs.append(perf_counter() - began)
    assert statistics.median(costs) < 30e-6


def test_nobody_listening_costs_no_call() -> None:
    with SmallCache(6, 7) as small:
        assert small.cache._core.probe is None
        small.serve([1, 2])

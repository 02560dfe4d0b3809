"""One curve over three tiers, against caches that are stepped one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lru_model import BLOCK, Path, hits_of, paths, traced

from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.levels import Levels, TierRates
from hicachectl.tuning.sizing.window import window_of


def exclusive_hits(requests: list[Path], device: int, host: int) -> int:
    """Two tiers that exclude each other: what L1 drops goes down to L2, what L2 hits comes up and leaves it."""
    touched: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    tier: dict[int, str] = {}
    hits = 0

    def oldest_leaf(of: str) -> int:
        held = [one for one in tier if tier[one] == of]
        below = {parent[one] for one in held}
        return min((one for one in held if one not in below), key=lambda one: touched[one])

    for now, (ids, _) in enumerate(requests):
        hits += next((n for n, one in enumerate(ids) if one not in tier), len(ids))
        for before, one in zip((None, *ids), ids, strict=False):
            touched[one], parent[one], tier[one] = now, before, "device"
        while sum(where == "device" for where in tier.values()) > device:
            tier[oldest_leaf("device")] = "host"
        while sum(where == "host" for where in tier.values()) > host:
            del tier[oldest_leaf("host")]
    return hits


@settings(max_examples=100, deadline=None)
@given(paths(), st.integers(0, 8), st.integers(0, 8))
def test_an_exclusive_host_pool_adds_to_l1_and_an_inclusive_one_reaches_as_far_as_the_larger(
    requests: list[Path], device: int, host: int
) -> None:
    curve = curve_of(window_of(traced(requests), BLOCK))
    inclusive = Levels(curve.hits, curve.total, device)
    exclusive = Levels(curve.hits, curve.total, device, exclusive=True)
    assert exclusive.hits_at(host) == exclusive_hits(requests, device, host)
    assert inclusive.hits_at(host) == sum(len(hit) for hit in hits_of(requests, max(device, host)))
    assert inclusive.hits_at(exclusive.inclusive_pages(host)) == exclusive.hits_at(host)
    for levels in (inclusive, exclusive):
        adds = [levels.host_rate(pages) for pages in range(len(levels.host_rates))]
        assert list(levels.host_rates) == pytest.approx(adds)


CURVE = np.array([0, 10, 20, 30, 40, 50, 60])


def test_each_tier_is_the_curve_at_its_reach_less_that_of_the_tier_above() -> None:
    levels = Levels(CURVE, 100, 2, storage_pages=5)
    assert levels.tiers(3) == TierRates(0.2, pytest.approx(0.1), pytest.approx(0.2))
    assert levels.tiers(6) == TierRates(0.2, pytest.approx(0.4), 0.0)
    assert Levels(CURVE, 100, 2, exclusive=True, storage_pages=5).tiers(3) == TierRates(0.2, pytest.approx(0.3), 0.0)
    assert levels.tiers(0) == TierRates(0.2, 0.0, 0.0)  # storage reads into host pages: without them it serves nothing


def test_storage_serves_anyway_what_lies_within_its_reach() -> None:
    assert Levels(CURVE, 100, 2, storage_pages=5).served_below == 5
    assert Levels(CURVE, 100, 2, exclusive=True, storage_pages=5).served_below == 3
    assert Levels(CURVE, 100, 2, exclusive=True).served_below == 0


def test_the_inclusive_pool_that_hits_as_much_is_larger_by_what_l1_holds() -> None:
    assert Levels(CURVE, 100, 2, exclusive=True).inclusive_pages(3) == 5
    assert Levels(CURVE, 100, 2, exclusive=True).inclusive_pages(0) == 0
    assert Levels(CURVE, 100, 2).inclusive_pages(3) == 3

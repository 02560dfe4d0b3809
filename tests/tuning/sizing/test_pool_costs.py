from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_trials import made_trial, restores

from hicachectl.tuning.sizing.pool_costs import pool_costs
from hicachectl.tuning.sizing.restores import MOST_KEPT, Restores, compare_restores, restores_of


def test_restores_of_the_same_requests_are_compared_and_a_real_slowdown_is_seen() -> None:
    small, large = restores(1000, 1e-3, wobble=0.05), restores(1000, 1.2e-3, wobble=0.05)
    found = compare_restores(10, small, 20, large)
    assert (found.small_pages, found.large_pages, found.n_requests) == (10, 20, 1000)
    assert found.ratio == pytest.approx(1.2)
    assert found.slower_s_per_page == pytest.approx(0.2e-3, rel=0.01)
    assert found.differs


def test_what_lies_within_the_noise_does_not_differ() -> None:
    quiet, loud = restores(1000, 1e-3), restores(1000, 1.02e-3, wobble=0.5)
    found = compare_restores(10, quiet, 20, loud)
    assert found.noise is not None
    assert not found.differs
    assert compare_restores(10, quiet, 20, restores(1000, 1.02e-3)).differs
    assert not compare_restores(10, quiet, 20, restores(1000, 1.02e-3), drift=0.05).differs


def test_only_requests_that_restored_as_many_pages_in_both_are_compared() -> None:
    one, other = restores(500, 1e-3), restores(500, 1e-3)
    changed = Restores(other.requests, tuple(p + (k < 300) for k, p in enumerate(other.pages)), other.wait_s)
    assert compare_restores(1, one, 2, changed).n_requests == 200
    apart = compare_restores(1, one, 2, restores(500, 1e-3, first=450))
    assert (apart.ratio, apart.n_requests) == (None, 0)  # 50 in common, of other sizes
    assert "100 are needed" in str(apart.reason)
    assert compare_restores(1, Restores(), 2, Restores()).ratio is None


def test_of_a_long_window_the_same_requests_are_kept_in_every_step() -> None:
    n = 3 * MOST_KEPT
    kept = restores_of(np.ones(n), np.full(n, 0.25))
    assert len(kept.requests) == MOST_KEPT
    assert kept.requests[:3] == (0, 3, 6)
    assert restores_of(np.array([0.0, 2.0]), np.array([0.0, 0.1])) == Restores((1,), (2,), (0.1,))


def test_making_a_gib_is_the_sum_over_all_steps_and_says_its_range() -> None:
    found = pool_costs([made_trial(0), made_trial(1024, fill_s=1.0, register_s=0.5), made_trial(3072, fill_s=2.0, register_s=0.5)], 3600)  # fmt: skip
    assert (found.populate_s_per_gib, found.register_s_per_gib, found.make_s_per_gib) == (0.75, 0.25, 1.0)
    assert found.make_low_s_per_gib == pytest.approx(2.5 / 3)
    assert (found.make_high_s_per_gib, found.make_reason) == (1.5, None)


def test_what_was_not_registered_is_not_counted_as_free() -> None:
    found = pool_costs([made_trial(1024, fill_s=1.0)], 3600)
    assert (found.register_s_per_gib, found.make_reason, found.make_s_per_gib) == (None, "no driver", 1.0)
    assert (found.carry_s_per_gib_h, found.carry_reason) == (None, "one pool alone: nothing to compare it with")
    none = pool_costs([made_trial(0)], 3600)
    assert (none.make_s_per_gib, none.make_reason, none.restores) == (None, "no step made a pool", ())


def test_carrying_is_the_slowdown_of_the_last_pair_at_the_restores_of_an_hour() -> None:
    at, above = made_trial(1024, restores=restores(1000, 1e-3)), made_trial(2048, restores=restores(1000, 1.1e-3))
    found = pool_costs([at, above], 1800.0, at)
    # 0.1 ms a page more, 400 pages in half an hour, over the one GiB that it is larger
    assert found.carry_s_per_gib_h == pytest.approx(0.1e-3 * 800)
    assert "1.100" in found.carry_reason
    same = pool_costs([at, replace(above, restores=at.restores)], 1800.0, at)
    assert same.carry_s_per_gib_h == 0.0
    assert "cannot be told from 1" in same.carry_reason
    faster = pool_costs([at, replace(above, restores=restores(1000, 0.9e-3))], 1800.0, at)
    assert faster.carry_s_per_gib_h == 0.0
    assert "nothing to carry" in faster.carry_reason
    assert pool_costs([at, above], 0.0, at).carry_s_per_gib_h is None


def test_two_runs_of_one_size_that_differ_as_much_take_the_slowdown_back() -> None:
    at, above = made_trial(1024, restores=restores(1000, 1e-3)), made_trial(2048, restores=restores(1000, 1.1e-3))
    found = pool_costs([at, above], 1800.0, made_trial(1024, restores=restores(1000, 1.08e-3)))
    assert found.again is not None
    assert found.again.ratio == pytest.approx(1.08)
    assert (found.carry_s_per_gib_h, found.restores[0].differs) == (0.0, False)
    missing = pool_costs([at, above], 1800.0, "time budget")
    assert (missing.again, missing.again_reason) == (None, "time budget")
    assert missing.carry_s_per_gib_h is None
    assert missing.carry_reason.endswith("how far two runs of one size are apart is not known: time budget")


def test_without_two_runs_of_one_size_nothing_is_called_slower_or_faster() -> None:
    at, above = made_trial(1024, restores=restores(1000, 1e-3)), made_trial(2048, restores=restores(1000, 2e-3))
    (pair,) = pool_costs([at, above], 1800.0, "time budget").restores
    assert (pair.ratio, pair.differs) == (pytest.approx(2.0), None)
    assert pair.reason == "how far two runs of one size are apart is not known: time budget"
    few = made_trial(1024, restores=restores(10, 1e-3))
    (pair,) = pool_costs([at, above], 1800.0, few).restores
    assert (pair.differs, str(pair.reason).endswith("100 are needed")) == (None, True)
    (known,) = pool_costs([at, above], 1800.0, at).restores
    assert (known.differs, known.reason) == (True, None)
    assert compare_restores(1, Restores(), 2, Restores()).differs is None

"""Restores: what comes from storage must leave the tree in its laws whatever lies above it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cache import SmallCache

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

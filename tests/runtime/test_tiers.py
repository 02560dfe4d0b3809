from __future__ import annotations

from hicachectl.runtime.tiers import Tier


def test_the_next_tier_down_is_one_more() -> None:
    assert [Tier.DEVICE + 1, Tier.HOST + 1] == [Tier.HOST, Tier.STORAGE]


def test_tier_labels_are_the_words_of_the_report() -> None:
    assert [tier.label for tier in Tier] == ["device", "host", "storage"]

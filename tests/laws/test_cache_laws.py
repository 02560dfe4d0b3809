"""The laws of the whole cache, under any order of events. `HICACHECTL_LAW_STEPS` sets the number of verified calls."""

from __future__ import annotations

import os

import pytest
from cache_machine import CacheMachine
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

STEPS = int(os.environ.get("HICACHECTL_LAW_STEPS", "20000"))
SEEDS = 8
SHRINK = os.environ.get("HICACHECTL_LAW_SHRINK", "1") == "1"
SETTINGS = settings(
    max_examples=8,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    verbosity=Verbosity.normal,
)


@pytest.mark.parametrize("number", range(SEEDS))
def test_any_order_of_calls_copies_and_failures_keeps_the_laws_and_every_byte(number: int) -> None:
    class Machine(CacheMachine):
        total_steps = 0
        total_restored = {"host": 0, "storage": 0}  # noqa: RUF012 - one dictionary a class is what is wanted

    round_ = 0
    while Machine.total_steps < STEPS / SEEDS or not all(Machine.total_restored.values()):
        round_ += 1
        run_state_machine_as_test(seed(number * 100_003 + round_)(Machine), settings=SETTINGS)
        assert all(Machine.total_restored.values()) or round_ < 50, "50 rounds that restored nothing prove nothing"

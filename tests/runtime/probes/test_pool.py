"""The pool probe: every operand in every round, refusals that end a case and not the probe, honest ratios."""

from __future__ import annotations

import errno
import os

import pytest
from fake_memory import MIB, FakeDriver, FakeKernel

from hicachectl.errors import CapacityError, ExitCode, UsageError
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.register import NoRegistrar, Refusal
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.probes.pool import PoolCase, default_cases, run_pool_probe

CASES = (PoolCase("a", MappingSpec(n_threads=1)), PoolCase("b", MappingSpec(kind=Kind.MEMFD, n_threads=1)))


class Clock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_every_operand_runs_in_every_round_in_an_order_that_turns_and_what_came_right_before_is_kept() -> None:
    kernel, driver, told = FakeKernel(), FakeDriver(), list[str]()
    probe = run_pool_probe(
        5 * MIB,
        CASES,
        rounds=3,
        registrar=driver,
        baseline=lambda n: (60.0, 1.0),
        calls=kernel,
        clock=Clock(),
        told=told.append,
    )
    assert [line.split(": ")[1] for line in told] == [
        "a", "b", "torch.empty(pin_memory=True)", "b", "torch.empty(pin_memory=True)", "a", "torch.empty(pin_memory=True)", "a", "b",
    ]  # fmt: skip
    assert [len(row.samples) for row in probe.rows] == [3, 3]
    assert len(probe.baseline.samples) == len(probe.baseline.before) == 3
    assert all(sample.registered_bytes == 5 * MIB for row in probe.rows for sample in row.samples)
    assert (probe.registrar, probe.not_registered) == (driver.name, None)
    assert all(len(row.before) == 3 for row in probe.rows)
    assert kernel.holds_nothing
    assert not driver.registered


def test_the_second_of_two_back_to_back_counts() -> None:
    times = iter([90.0, 3.0, 80.0, 5.0])
    probe = run_pool_probe(
        MIB, (), rounds=2, registrar=NoRegistrar("x"), baseline=lambda n: (next(times), None), calls=FakeKernel()
    )
    assert [made for made, _ in probe.baseline.samples] == [3.0, 5.0]
    assert [made for made, _ in probe.baseline.before] == [90.0, 80.0]


def test_the_ratio_is_of_medians_of_the_same_run_and_only_of_pools_that_were_registered() -> None:
    registered = run_pool_probe(
        MIB, CASES, rounds=1, registrar=FakeDriver(), baseline=lambda n: (60.0, None), calls=FakeKernel(), clock=Clock()
    )
    row = registered.rows[0]
    assert row.total_s is not None
    assert registered.times_faster(row) == 60.0 / row.total_s
    plain = run_pool_probe(
        MIB,
        CASES,
        rounds=1,
        registrar=NoRegistrar("no device"),
        baseline=lambda n: (60.0, None),
        calls=FakeKernel(),
        clock=Clock(),
    )
    assert plain.times_faster(plain.rows[0]) is None
    assert plain.not_registered == "no device"
    assert plain.rows[0].samples[0].register_s is None
    assert "register: no device" in plain.rows[0].samples[0].reasons


def test_when_time_is_out_no_round_begins_however_many_were_asked_for() -> None:
    looks = iter([True] * (len(CASES) + 1))
    found = run_pool_probe(
        MIB,
        CASES,
        rounds=10**9,
        registrar=NoRegistrar("x"),
        calls=FakeKernel(),
        clock=Clock(),
        go_on=lambda: next(looks, False),
    )
    assert sum(len(row.samples) for row in found.rows) == len(CASES) + 1


def test_a_case_that_is_refused_ends_with_its_reason_and_the_others_go_on() -> None:
    def refuse(call: str) -> None:
        if call == "shared_memory":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "memfd_create")

    kernel = FakeKernel(refuse)
    cases = (*CASES, PoolCase("c", MappingSpec(), refused="not here"))
    probe = run_pool_probe(MIB, cases, rounds=2, registrar=FakeDriver(), calls=kernel, baseline_reason="no torch")
    assert [len(row.samples) for row in probe.rows] == [2, 0, 0]
    assert "memfd_create: ENOSYS" in (probe.rows[1].refused or "")
    assert [row.refusal and row.refusal.exit_code for row in probe.rows] == [None, ExitCode.UNSUPPORTED, None]
    assert probe.rows[2].refused == "not here"
    assert probe.rows[1].total_s is None
    assert probe.times_faster(probe.rows[0]) is None
    assert probe.baseline.reason == "no torch"
    assert kernel.holds_nothing


def test_a_baseline_that_cannot_give_back_runs_once_and_one_that_fails_ends_with_its_reason() -> None:
    once = run_pool_probe(
        MIB,
        CASES,
        rounds=3,
        registrar=NoRegistrar("x"),
        baseline=lambda n: (1.0, None),
        baseline_once=True,
        calls=FakeKernel(),
    )
    assert len(once.baseline.samples) == 1
    assert once.baseline.before == ()
    assert once.baseline.reason == "torch keeps what it pinned: one sample, with nothing before it"

    def fails(n_bytes: int) -> tuple[float, float | None]:
        raise CapacityError("torch cannot pin", terms=())

    failed = run_pool_probe(MIB, CASES, rounds=3, registrar=NoRegistrar("x"), baseline=fails, calls=FakeKernel())
    assert failed.baseline.samples == ()
    assert failed.baseline.reason == "torch cannot pin"
    assert [len(row.samples) for row in failed.rows] == [3, 3]


def test_a_driver_that_does_not_come_up_is_told_and_the_pools_are_measured_without() -> None:
    no = Refusal("cuInit", 100, "NO_DEVICE", "none", device_lost=True)
    driver = FakeDriver(lambda call, n: no if call == "prepare" else None)
    probe = run_pool_probe(MIB, CASES, rounds=1, registrar=driver, calls=FakeKernel())
    assert probe.not_registered == "cuInit: NO_DEVICE (100), none"
    assert probe.rows[0].samples


def test_the_usual_cases_try_hugetlb_and_a_tmpfs_only_when_asked() -> None:
    names = [case.name for case in default_cases((1, 4))]
    assert names == ["anonymous 4K, 4 threads", "anonymous huge, 1 thread", "anonymous huge, 4 threads", "memfd 4K, 4 threads",
                     "memfd huge, 1 thread", "memfd huge, 4 threads"]  # fmt: skip
    more = [case.spec.kind for case in default_cases((1,), tmpfs="/dev/shm", hugetlb=True)]
    assert more[-2:] == [Kind.TMPFS, Kind.HUGETLB]


def test_where_time_is_over_nothing_more_begins_and_what_ran_is_kept() -> None:
    looks = iter([True, True, False, False])
    probe = run_pool_probe(
        MIB, CASES, rounds=2, registrar=NoRegistrar("x"), calls=FakeKernel(), go_on=lambda: next(looks)
    )
    assert [len(row.samples) for row in probe.rows] == [1, 1]
    assert [row.refused for row in probe.rows] == [None, None]


def test_a_probe_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        run_pool_probe(MIB, CASES, rounds=0, registrar=NoRegistrar("x"))


def test_the_probe_runs_on_this_machine() -> None:
    probe = run_pool_probe(3 * MIB, default_cases((1,)), rounds=1, registrar=NoRegistrar("the tests register nothing"))
    assert all(row.samples or row.refused for row in probe.rows)
    assert all(sample.total_s >= sample.populate_s for row in probe.rows for sample in row.samples)

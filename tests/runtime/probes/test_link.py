"""The link probe on accelerators that move no bytes: which copies run together, rates beside link math, and what is concluded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from fakes.link_rig import FakeFlow, FakeRig, Speed

from hicachectl.errors import CapacityError, UsageError, Vanished
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.probes.link import LinkProbe, LinkRow, run_link_probe
from hicachectl.runtime.probes.link_cases import LinkCase, Scenario, link_cases, one_to_one
from hicachectl.runtime.probes.link_math import FAR_BELOW, ONE_WAY_SHARE, LinkTarget, Way, expect
from hicachectl.runtime.probes.link_verdict import judge_memory, judge_rows

LINK, SIZE, MIB = 63e9, 256 << 20, 1 << 20
A, B, C = "0000:b7:00.0", "0000:b8:00.0", "0000:21:00.0"
PAIR = (
    LinkTarget(A, "X0", "cuda:0", 0, "U0", (B,), LINK, LINK, "link math of 0000:b6:00.0"),
    LinkTarget(B, "X1", "cuda:1", 1, "U0", (A,), LINK, LINK, "link math of 0000:b6:00.0"),
)
OTHER = LinkTarget(C, "X2", "cuda:2", 0, "U1", (), LINK, LINK, "link math of 0000:20:01.0")
NODES = {A: (0, 1), B: (1, 0), C: (0, 1)}
WAYS = (Way.H2D, Way.D2H, Way.BOTH)


def cases(
    targets: Sequence[LinkTarget] = (*PAIR, OTHER), sizes: tuple[int, ...] = (SIZE,), **how: bool
) -> tuple[LinkCase, ...]:
    return link_cases(targets, NODES, ways=WAYS, sizes=sizes, **how)


def fair(flow: FakeFlow, batch: list[FakeFlow]) -> float:
    """A sound host: 87 % of the link, shared among those behind it that go the same way."""
    uplink = {"cuda:0": 0, "cuda:1": 0, "cuda:2": 1}
    same = [one for one in batch if uplink[one.device] == uplink[flow.device] and one.up == flow.up]
    return ONE_WAY_SHARE * LINK / len(same)


def probe(speed: Speed = fair, targets: Sequence[LinkTarget] = (*PAIR, OTHER), **how: bool) -> LinkProbe:
    return run_link_probe(cases(targets, **how), FakeRig(speed), seconds=0.1, rounds=2)


def row(found: LinkProbe, address: str, scenario: Scenario, way: Way, node: int | None = None) -> LinkRow:
    rows = [one for one in found.rows if (one.target.address, one.scenario, one.way) == (address, scenario, way)]
    return next(one for one in rows if node is None or one.node == node)


# -- cases ------------------------------------------------------------------------------------------------------------


def test_every_accelerator_meets_every_node_alone_and_its_neighbours_on_its_first() -> None:
    found = cases()
    alone = Counter(
        (c.busy[0].target.address, c.busy[0].node, c.busy[0].way) for c in found if c.scenario is Scenario.ALONE
    )
    assert alone == Counter((t.address, node, way) for t in (*PAIR, OTHER) for node in (0, 1) for way in WAYS)
    uplink = [case for case in found if case.scenario is Scenario.UPLINK]
    assert [[(one.target.address, one.node) for one in case.busy] for case in uplink] == [[(A, 0), (B, 1)]] * 3
    against = [case for case in found if case.scenario is Scenario.AGAINST]
    assert sorted((case.subject, *(one.way.value for one in case.busy)) for case in against) == [
        (A, "d2h", "h2d"), (A, "h2d", "d2h"), (B, "d2h", "h2d"), (B, "h2d", "d2h"),
    ]  # fmt: skip
    host = [case for case in found if case.scenario is Scenario.HOST]
    assert [[one.target.address for one in case.busy] for case in host] == [[A, B, C]] * 3


def test_memory_of_one_node_is_made_once_for_the_cases_alone() -> None:
    nodes = [case.busy[0].node for case in cases() if case.scenario is Scenario.ALONE]
    assert nodes == sorted(nodes, key=lambda node: node or 0)
    rig = FakeRig(fair)
    run_link_probe(cases(), rig, seconds=0.1, rounds=1)
    assert not rig.held
    assert rig.most_held == 3  # one node's memory of each accelerator, never that of two nodes


def test_one_accelerator_alone_on_its_uplink_has_cases_alone_only() -> None:
    assert {case.scenario for case in cases([OTHER])} == {Scenario.ALONE}


def test_small_sizes_run_alone_on_the_first_node_only() -> None:
    found = [case for case in cases(sizes=(1 << 20, SIZE)) if case.size_bytes == 1 << 20]
    assert {(case.scenario, case.busy[0].node == NODES[case.busy[0].target.address][0]) for case in found} == {
        (Scenario.ALONE, True)
    }
    assert len(found) == 9


def test_concurrent_keeps_of_the_cases_alone_what_the_others_are_compared_with() -> None:
    found = cases(sizes=(1 << 20, SIZE), concurrent_only=True)
    assert sum(case.scenario is Scenario.ALONE for case in found) == 9
    assert {case.size_bytes for case in found} == {SIZE}


def test_a_neighbour_that_is_no_target_is_loaded_and_has_no_case_alone() -> None:
    found = link_cases(PAIR[:1], {A: (0,)}, ways=(Way.D2H,), sizes=(SIZE,), among=PAIR)
    assert [case.scenario for case in found] == [Scenario.ALONE, Scenario.UPLINK, Scenario.AGAINST]
    assert [(one.target.address, one.node) for one in found[1].busy] == [(A, 0), (B, 1)]


def test_neighbours_are_measured_with_nodes_of_their_own_too_and_alone_with_these() -> None:
    both_near = {A: (0,), B: (0,)}
    found = link_cases(PAIR, both_near, ways=(Way.D2H,), sizes=(MIB, SIZE), spread={A: 0, B: 1})
    assert [(c.scenario.value, [one.node for one in c.busy]) for c in found if c.scenario is not Scenario.AGAINST] == [
        ("alone", [0]), ("alone", [0]), ("alone", [0]), ("alone", [0]), ("alone", [1]), ("uplink", [0, 0]), ("spread", [0, 1]),
    ]  # fmt: skip
    only = link_cases(PAIR, both_near, ways=(Way.D2H,), sizes=(MIB, SIZE), spread={A: 0, B: 1}, concurrent_only=True)
    assert [(c.busy[0].target.address, c.busy[0].node) for c in only if c.scenario is Scenario.ALONE] == [
        (A, 0),
        (B, 0),
        (B, 1),
    ]
    for same in ({A: 0, B: 0}, {A: None, B: None}, None):
        assert Scenario.SPREAD not in {
            c.scenario for c in link_cases(PAIR, both_near, ways=(Way.D2H,), sizes=(SIZE,), spread=same)
        }
    assert Scenario.SPREAD not in {
        c.scenario for c in link_cases([OTHER], NODES, ways=(Way.D2H,), sizes=(SIZE,), spread={C: 1})
    }


def test_writers_that_wait_only_where_their_targets_differ_are_found_and_a_far_node_is_not_taken_for_it() -> None:
    asked = link_cases(PAIR, {A: (0,), B: (0,)}, ways=WAYS, sizes=(SIZE,), spread={A: 0, B: 1})

    def strict(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        waits = not flow.up and len({one.node for one in batch if not one.up}) > 1
        return fair(flow, batch) / (4 if waits else 1)

    found = judge_rows(run_link_probe(asked, FakeRig(strict), seconds=0.1, rounds=1).rows)
    assert [(one.code, one.subject) for one in found] == [("HC-UPLINK-SLOW", A), ("HC-UPLINK-SLOW", B)]
    assert all("each with a node of its own" in one.message and "--prove" in one.hint for one in found)
    far = FakeRig(lambda flow, batch: fair(flow, batch) / (3 if flow.node == 1 else 1))
    found = judge_rows(run_link_probe(asked, far, seconds=0.1, rounds=1).rows)
    assert [(one.code, one.subject) for one in found] == [("HC-LINK-FAR", B)]


def test_one_to_one_gives_neighbours_different_nodes() -> None:
    assert one_to_one((*PAIR, OTHER), (2, 5)) == {A: 2, B: 5, C: 2}
    assert one_to_one(PAIR, ()) == {A: None, B: None}


# -- rates ------------------------------------------------------------------------------------------------------------


def test_a_sound_host_gets_what_is_expected_and_nothing_is_found() -> None:
    found = probe()
    assert len(found.rows) == 3 * 2 * 3 + 2 * 3 + 4 + 3 * 3
    assert not [one for one in found.rows if one.is_low]
    assert judge_rows(found.rows) == ()
    assert row(found, A, Scenario.ALONE, Way.D2H).share == pytest.approx(ONE_WAY_SHARE)
    both = row(found, A, Scenario.ALONE, Way.BOTH)
    assert both.bytes_per_s == pytest.approx(2 * ONE_WAY_SHARE * LINK)
    assert both.expected.math_bytes_per_s == 2 * LINK
    assert both.by_way is not None and set(both.by_way) == {Way.H2D, Way.D2H}
    assert all(len(one.samples) == 2 for one in found.rows)


def test_link_math_is_shared_by_those_that_go_the_same_way_behind_the_uplink() -> None:
    found = probe()
    there = [scenario for scenario in Scenario if scenario is not Scenario.SPREAD]
    math = {scenario: row(found, A, scenario, Way.D2H).expected.math_bytes_per_s for scenario in there}
    assert math == {Scenario.ALONE: LINK, Scenario.UPLINK: LINK / 2, Scenario.AGAINST: LINK, Scenario.HOST: LINK / 2}
    assert row(found, C, Scenario.HOST, Way.D2H).expected.math_bytes_per_s == LINK


def test_the_first_run_of_a_case_does_not_count() -> None:
    slow_at_first: set[int] = set()

    def waking(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        first = id(flow) not in slow_at_first and flow.now < 0.2
        return 1e9 if first else LINK

    found = run_link_probe(cases([OTHER]), FakeRig(waking), seconds=0.1, rounds=3)
    assert {round(sample / 1e9) for one in found.rows for sample in one.samples} <= {63, 126}


def test_a_case_without_memory_is_refused_and_the_others_go_on() -> None:
    def refuse(device: str, node: int | None) -> None:
        if node == 1:
            raise CapacityError("node 1 has 0 bytes left")

    found = run_link_probe(cases([OTHER]), FakeRig(fair, refuse_memory=refuse), seconds=0.1, rounds=1)
    assert {(one.node, one.refused is None) for one in found.rows} == {(0, True), (1, False)}
    assert all("0 bytes left" in (one.refused or "") for one in found.rows if one.node == 1)
    assert row(found, C, Scenario.ALONE, Way.D2H, node=1).bytes_per_s is None


def test_a_refused_policy_is_told_with_where_the_pages_lie() -> None:
    found = run_link_probe(cases([OTHER]), FakeRig(fair, unbound=(1,)), seconds=0.1, rounds=1)
    by_node = {one.node: one for one in found.memory}
    assert (by_node[0].placement, by_node[0].reasons) == ("local on node 0", ())
    assert (by_node[1].placement, by_node[1].pages_by_node) == (None, {0: 256})
    assert by_node[1].reasons == ("bind: policy not applied: EPERM",)
    assert {one.node for one in found.sound_rows} == {0}  # what node 1 would give was not measured


def test_copies_of_memory_that_is_not_registered_are_not_held_against_the_link() -> None:
    slow = lambda flow, batch: 0.28 * fair(flow, batch)  # noqa: E731
    rig = FakeRig(slow, unregistered=("cuda:0",))
    found = run_link_probe(cases(), rig, seconds=0.1, rounds=1)
    own = [one for one in found.rows if one.target.address == A]
    assert own and not any(one.is_low for one in own)
    assert all("X0 is not registered (register: cuMemHostRegister_v2" in (one.expected.reason or "") for one in own)
    assert all(one.expected.math_bytes_per_s is not None for one in own)
    beside = row(found, B, Scenario.UPLINK, Way.D2H)
    assert (beside.is_low, "X0 is not registered" in (beside.expected.reason or "")) == (False, True)
    assert row(found, B, Scenario.ALONE, Way.D2H).is_low  # its own copies are
    assert A not in {one.target.address for one in found.sound_rows}
    assert [(one.code, one.subject) for one in judge_memory(found)] == [("HC-LINK-UNREGISTERED", A)]
    assert A not in {one.subject for one in judge_rows(found.sound_rows)}


def test_a_rate_without_registered_memory_is_no_measure_for_another_node() -> None:
    class HalfRig(FakeRig):
        def memory(self, device: str, node: int | None) -> MappingReport:
            self.unregistered = (device,) if node == 0 else ()
            return super().memory(device, node)

    found = run_link_probe(cases([OTHER]), HalfRig(lambda flow, batch: 0.5 * fair(flow, batch)), seconds=0.1, rounds=1)
    assert [one.code for one in judge_rows(found.sound_rows)] == ["HC-LINK-SLOW"]  # not that node 0 is the faster one


def test_a_lost_device_ends_the_probe_and_all_memory_is_given_back() -> None:
    def fail(flow: FakeFlow) -> None:
        if len(rig.batches) == 4:
            raise Vanished("fell off the bus")

    rig = FakeRig(fair, fails=fail)
    with pytest.raises(Vanished) as caught:
        run_link_probe(cases(), rig, seconds=0.1, rounds=1)
    assert not rig.held
    assert caught.value.where is not None and "X" in caught.value.where


def test_a_stop_ends_before_the_next_case_and_keeps_the_rows() -> None:
    asked: list[None] = []

    def stop() -> str | None:
        asked.append(None)
        return "SIGINT" if len(asked) > 6 else None  # a case of one round asks twice

    found = run_link_probe(cases([OTHER]), FakeRig(fair), seconds=0.1, rounds=1, stop=stop)
    assert (len(found.rows), found.stopped) == (3, "SIGINT")


def test_a_stop_in_the_middle_of_a_case_keeps_its_samples_and_says_why_they_are_fewer() -> None:
    asked: list[None] = []

    def stop() -> str | None:
        asked.append(None)
        return "no time" if len(asked) > 3 else None  # before the case, and before each of two rounds

    found = run_link_probe(cases([OTHER])[:1], FakeRig(fair), seconds=0.1, rounds=5, stop=stop)
    (one,) = found.rows
    assert (len(one.samples), one.fewer, one.refused) == (2, "2 of 5 samples: no time", None)
    assert found.stopped == "no time"


def test_a_stop_before_the_first_sample_of_a_case_leaves_it_out() -> None:
    asked: list[None] = []

    def stop() -> str | None:
        asked.append(None)
        return "no time" if len(asked) > 1 else None

    found = run_link_probe(cases([OTHER]), FakeRig(fair), seconds=0.1, rounds=5, stop=stop)
    assert {(one.samples, one.refused) for one in found.rows} == {((), "no time")}
    assert found.stopped == "no time"


def test_what_is_looked_at_under_load_is_looked_at_once_a_case() -> None:
    seen: list[LinkCase] = []
    asked = cases([OTHER])
    run_link_probe(asked, FakeRig(fair), seconds=0.1, rounds=3, under_load=seen.append)
    assert tuple(seen) == asked


def test_no_rounds_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        run_link_probe(cases(), FakeRig(fair), seconds=0.1, rounds=0)


# -- what is expected, and what is concluded --------------------------------------------------------------------------


def test_small_copies_and_unknown_links_are_not_judged_and_say_why() -> None:
    small = expect(OTHER, Way.D2H, 1 << 20, 1)
    assert (small.low_bytes_per_s, small.math_bytes_per_s) == (None, LINK)
    assert "bound by what starting one costs" in (small.reason or "")
    unknown = expect(LinkTarget("a", "X", "cuda:0", math_reason="the other end was not read"), Way.D2H, SIZE, 1)
    assert (unknown.low_bytes_per_s, unknown.math_bytes_per_s, unknown.reason) == (
        None,
        None,
        "the other end was not read",
    )


def test_a_link_that_is_slow_with_every_node_is_one_finding_about_the_link() -> None:
    (found,) = judge_rows(probe(lambda flow, batch: fair(flow, batch) / (2 if flow.device == "cuda:0" else 1)).rows)
    assert (found.code, found.subject) == ("HC-LINK-SLOW", A)
    assert "expected 40.8 GiB/s to 58.7 GiB/s" in found.message or "expected" in found.message
    assert "topo" in found.hint


def test_a_link_that_is_slow_with_the_far_node_only_is_about_the_node() -> None:
    found = judge_rows(
        probe(lambda flow, batch: fair(flow, batch) * (0.4 if flow.device == "cuda:2" and flow.node == 1 else 1)).rows
    )
    assert [(one.code, one.subject) for one in found] == [("HC-LINK-FAR", C)]
    assert "node 1" in found[0].message and "node 0" in found[0].hint


def test_writers_that_wait_for_each_other_behind_the_uplink_are_about_ordering() -> None:
    def strict(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        writers = [one for one in batch if not one.up and one.device != "cuda:2"]
        return fair(flow, batch) / (4 if len(writers) > 1 and flow in writers else 1)

    found = judge_rows(probe(strict).rows)
    assert [(one.code, one.subject) for one in found] == [("HC-UPLINK-SLOW", A), ("HC-UPLINK-SLOW", B)]
    assert all("pcie.ido" in one.hint and "--prove" in one.hint for one in found)


def test_readers_that_are_slow_together_are_not_blamed_on_the_order_of_writes() -> None:
    def slow(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        return fair(flow, batch) / (4 if flow.up and len(batch) == 2 and batch[0].up and batch[1].up else 1)

    found = judge_rows(probe(slow, targets=PAIR).rows)
    assert {one.code for one in found} == {"HC-UPLINK-SLOW"}
    assert not any("pcie.ido" in one.hint for one in found)


def test_just_above_four_fifths_of_what_was_reached_once_is_no_finding() -> None:
    for factor, n in ((FAR_BELOW * 1.01, 0), (FAR_BELOW * 0.99, 1)):
        speed = lambda flow, batch, by=factor: ONE_WAY_SHARE * LINK * by / (1.0 if len(batch) == 1 else 1.13)  # noqa: E731
        assert len(judge_rows(probe(speed, targets=[OTHER]).rows)) == n

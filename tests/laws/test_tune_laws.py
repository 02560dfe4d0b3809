"""Laws of tune on generated hosts: planning is pure, apply then rollback is the identity, a plan survives its file."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.kernel import Temper
from hosts.spec import HostSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tuned_host import CARDS, KNOBS, WANTED, TunedHost, choose, make_host, small_spec

from hicachectl.errors import UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.outcome import ItemResult, RunOutcome, Verdict
from hicachectl.tuning.plan import Plan, differences, make_plan
from hicachectl.tuning.plan_json import plan_from_json, plan_to_json
from hicachectl.tuning.session import probe

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORDS = {
    "thp.enabled": ("always", "madvise", "never"),
    "thp.defrag": ("always", "defer", "defer+madvise", "madvise", "never"),
    "tmpfs.huge": ("never", "always", "within_size", "advise"),
    "numa.balancing": ("0", "1", "2"),
    "pcie.ido": ("0x0000", "0x0100", "0x0200", "0x0300"),
}


def bracketed(word: str, words: tuple[str, ...]) -> str:
    return " ".join(f"[{one}]" if one == word else one for one in words)


@st.composite
def hosts(draw: st.DrawFn) -> HostSpec:
    """A small host with any settings, and cards with any ordering bits, some of which cannot be read."""
    spec = small_spec()
    thp = dict(spec.thp)
    for name in ("enabled", "defrag"):
        words = WORDS[f"thp.{name}"]
        thp[name] = bracketed(draw(st.sampled_from(words)), words)
    huge = draw(st.sampled_from(("", ",huge=always", ",huge=within_size", ",huge=advise")))
    buses = []
    for bus in spec.buses:
        (port,) = bus.functions
        (card,) = port.children
        bits = draw(st.integers(0, 3))
        pcie = replace(card.pcie, ido_request=bool(bits & 1), ido_completion=bool(bits & 2)) if card.pcie else None
        length = draw(st.sampled_from((4096, 4096, 256, 64)))
        card = replace(card, pcie=pcie, config_length=length)
        buses.append(replace(bus, functions=(replace(port, children=(card,)),)))
    sysctl = {**spec.sysctl, "kernel/numa_balancing": draw(st.sampled_from(WORDS["numa.balancing"]))}
    return replace(spec, thp=thp, tmpfs={"/dev/shm": f"rw,size=1048576k{huge}"}, buses=tuple(buses), sysctl=sysctl)


wants = st.dictionaries(st.sampled_from(sorted(WORDS)), st.none(), min_size=1).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(WORDS[name]) for name in names})
)
tempers = st.dictionaries(st.sampled_from(CARDS), st.sampled_from(list(Temper)), max_size=3)


def opened(folder: str, spec: HostSpec) -> TunedHost:
    return make_host(Path(folder), spec)


@FEW
@given(spec=hosts(), wanted=wants)
def test_the_same_look_and_choices_give_the_same_plan_and_change_nothing(
    spec: HostSpec, wanted: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = opened(folder, spec)
        before = host.everything()
        choices = choose(wanted)
        sight = probe(host.root, KNOBS, choices)
        about = host.session.plan(choices).about
        plans = [make_plan(sight, choices, KNOBS, recipes={}, about=about) for _ in range(2)]
        assert plans[0] == plans[1]
        assert host.session.plan(choices).id == plans[0].id
        assert host.everything() == before
        assert host.kernel.log == []


@FEW
@given(spec=hosts(), wanted=wants)
def test_apply_makes_what_the_plan_says_and_rollback_is_the_identity(spec: HostSpec, wanted: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = opened(folder, spec)
        before = host.everything()
        plan = host.session.plan(choose(wanted))
        report = host.session.apply(plan, ApplyOptions())
        assert report.outcome is (RunOutcome.APPLIED if plan.changes else RunOutcome.NOTHING)
        again = host.session.plan(choose(wanted))
        assert again.changes == ()
        assert not plan.changes or {item.verdict for item in host.session.verify().items} == {Verdict.OK}
        host.session.rollback()
        assert host.everything() == before


@FEW
@given(spec=hosts(), wanted=wants, odd=tempers)
def test_whatever_the_devices_do_the_host_ends_in_one_of_two_states_or_is_said_to_be_between(
    spec: HostSpec, wanted: dict[str, str], odd: dict[str, Temper]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = opened(folder, spec)
        before = host.everything()
        plan = host.session.plan(choose(wanted))
        host.kernel.tempers.update(odd)
        report = host.session.apply(plan, ApplyOptions())
        host.kernel.tempers.clear()
        if report.outcome is RunOutcome.UNDONE:
            assert host.everything() == before
        elif report.outcome is RunOutcome.PARTIAL:
            error = report.error()
            assert error is not None
            changed = {name for name, data in host.everything().items() if before[name] != data}
            assert len(changed) == len(error.left)
            assert all(any(left.split("@")[-1] in name for left in error.left) for name in changed)
        else:
            now = {item.id: item for item in host.session.plan(choose(wanted)).items}
            for outcome in report.items:
                wanted_now = outcome.result is ItemResult.OK
                assert (now[outcome.item.id].kind is ItemKind.SAME) == wanted_now, outcome


@FEW
@given(spec=hosts(), wanted=wants)
def test_a_plan_read_back_from_json_is_the_plan(spec: HostSpec, wanted: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = opened(folder, spec).session.plan(choose(wanted))
        read = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
        assert read == plan
        assert differences(read, plan) == ()


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*at, index))
    return found


def read_or_none(value: Any) -> Plan | None:
    try:
        return plan_from_json(value)
    except UsageError:
        return None


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 1 << 70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), junk=JUNK)
def test_junk_anywhere_in_a_plan_file_is_refused_or_changes_no_write(
    data: st.DataObject, junk: Any, plan_here: Any
) -> None:
    document, fresh = plan_here
    value = json.loads(document)
    at = data.draw(st.sampled_from(places(value)))
    if not at:
        value = junk
    else:
        inner = value
        for step in at[:-1]:
            inner = inner[step]
        inner[at[-1]] = junk
    read = read_or_none(value)
    if read is None:
        return
    same = {item.id: item for item in fresh.items}
    refused = {difference.id for difference in differences(read, fresh)}
    for item in read.changes:
        if item.id in refused:
            continue
        assert (item.target, item.wanted) == (same[item.id].target, same[item.id].wanted)


@pytest.fixture(scope="module")
def plan_here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    host = make_host(tmp_path_factory.mktemp("plan"))
    plan = host.session.plan(choose(WANTED))
    return json.dumps(plan_to_json(plan)), host.session.plan(choose(WANTED))

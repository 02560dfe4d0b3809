"""The laws of all memory knobs together: pure, never silent about why not, and never `always` by themselves."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hosts.machines import change, machine
from hosts.shapes import describe
from hosts.spec import HostSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from knob_looks import DEFAULTS, THP, items, look, seen, small, wants

from hicachectl.tuning.host.facts import known
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.table import MEMORY_KNOBS
from hicachectl.tuning.plan import About, make_plan
from hicachectl.tuning.sight import Sight

SHAPES = ("8n8x-4up16", "2n8x", "1n0x-vm", "sparse-ids", "cpuset-container", "config64", "no-vendor", "device-memory")
EVERY = {**DEFAULTS, "khugepaged.pages-to-scan": "8192", "thp.size.64kB": "never"}


def complete(item: Item) -> None:
    """Check what every item must say, whatever its kind."""
    assert item.title and item.why and item.source and item.undo and item.privilege and item.origin == "test"
    assert "docs/facts.md#" in item.why or "Documentation/" in item.why
    if item.kind in (ItemKind.SKIP, ItemKind.REPORT):
        assert item.reason and item.remedy
    if item.kind is ItemKind.CHANGE:
        assert item.target is not None and item.wanted and item.undo.startswith(f"yes: {item.old} is written back")
        assert item.new is not None and item.new != item.old
    if item.kind is ItemKind.SAME:
        assert item.old is not None
    if item.old is None:
        assert item.old_reason and item.kind is ItemKind.SKIP


@pytest.mark.parametrize("shape", SHAPES)
def test_on_every_shape_each_item_says_why_and_the_plan_takes_it(shape: str, tmp_path: Path) -> None:
    choices = wants(**EVERY)
    sight = look(tmp_path, describe(shape), choices)
    found = items(sight, choices)
    assert {item.knob for item in found} == set(EVERY)
    for item in found:
        complete(item)
    plan = make_plan(sight, choices, MEMORY_KNOBS, recipes={}, about=About("0", None, "now"))
    assert plan.items == found


@pytest.mark.parametrize("spec", [small(), small(2)], ids=["one node", "two nodes"])
def test_looking_twice_gives_the_same_and_changes_nothing(spec: HostSpec, tmp_path: Path) -> None:
    choices = wants(**EVERY, bound=True)
    sight = look(tmp_path, spec, choices)
    before = copy.deepcopy((sight, choices))
    assert items(sight, choices) == items(sight, choices)
    assert (sight, choices) == before


def test_a_knob_that_is_not_chosen_is_left_alone(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    sight = look(tmp_path, small(), choices)
    assert [item.id for item in items(sight, choices)] == ["thp.enabled"]
    assert [target.path for target in sight.values] == [f"{THP}/enabled"]


def test_an_empty_host_is_skipped_everywhere_and_never_same(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    sight = Sight(read_machine(HostRoot(tmp_path / "root", name="empty")), {})
    found = items(sight, wants(**EVERY))
    assert {item.kind for item in found} == {ItemKind.SKIP}
    for item in found:
        complete(item)


WORDS = st.sampled_from(
    (
        "always",
        "madvise",
        "never",
        "defer",
        "defer+madvise",
        "advise",
        "within_size",
        "deny",
        "force",
        "inherit",
        "0",
        "1",
        "x",
    )
)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(WORDS, min_size=7, max_size=7),
    blocks=st.lists(st.integers(0, 40_000), min_size=4, max_size=4),
    pinned=st.one_of(st.none(), WORDS),
    container=st.sampled_from(("none", "docker")),
    bound=st.booleans(),
)
def test_on_generated_hosts_the_laws_hold(
    values: list[str], blocks: list[int], pinned: str | None, container: str, bound: bool
) -> None:
    host = machine()
    nodes = tuple(change(node, free_huge_blocks=n) for node, n in zip(host.numa.nodes, blocks, strict=True))
    pins = (
        {}
        if pinned is None
        else {
            "transparent_hugepage": known(pinned, "/proc/cmdline"),
            "numa_balancing": known("enable", "/proc/cmdline"),
        }
    )
    host = machine(
        numa={"nodes": nodes},
        host={"pinned": pins, "container": container},
        memory={"thp": change(host.memory.thp, enabled=values[0])},
    )
    paths = (
        f"{THP}/enabled",
        f"{THP}/defrag",
        f"{THP}/shmem_enabled",
        f"{THP}/hugepages-2048kB/enabled",
        f"{THP}/khugepaged/defrag",
        "/dev/shm",
        "/proc/sys/kernel/numa_balancing",
    )
    sight, choices = seen(host, dict(zip(paths, values, strict=True))), wants(**EVERY, bound=bound)
    found = items(sight, choices)
    assert found == items(sight, choices)
    for item in found:
        complete(item)
        assert not (item.knob == "thp.enabled" and "always" in item.wanted)
        if item.knob == "numa.balancing" and item.kind is ItemKind.CHANGE:
            assert bound
        if item.kind is ItemKind.SAME:
            assert str(item.old) in item.wanted

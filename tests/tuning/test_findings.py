"""Every code appears where it should, weighs what the machine makes it weigh, and stays away where nothing was read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from finding_cases import (
    CARD,
    CASES,
    NIC,
    SAY_WHAT_IS_UNKNOWN,
    Case,
    card,
    displays,
    group,
    large,
    of,
    old_card,
    on_node_zero,
    shm,
    short,
    weights,
    with_nic,
    without_devices,
)
from hosts.machines import (
    GIB,
    accelerator,
    change,
    config,
    link,
    machine,
    paired,
    unread,
    with_device,
)

from hicachectl.tuning.findings import CODES, judge, worst
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import Machine, SlotKind


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_code_appears_with_its_weight_both_values_a_subject_a_source_and_one_command(case: Case) -> None:
    (found, *_) = of(case.code, case.has())
    assert found.severity == case.severity
    assert [word for word in case.both_values if word not in found.message] == []
    assert found.subject
    assert found.source
    assert found.hint
    assert "\n" not in found.hint


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_code_stays_away_where_what_it_rests_on_is_not_known(case: Case) -> None:
    assert of(case.code, case.unknown()) == []


def test_every_code_has_a_case_and_a_page() -> None:
    assert sorted(case.code for case in CASES) == sorted(CODES)
    pages = {path.stem for path in (Path(__file__).parents[2] / "hicachectl/explain").glob("*.md")}
    assert set(CODES) - pages == set()


def test_a_machine_with_nothing_wrong_has_nothing_but_its_node_mode_to_tell() -> None:
    assert [finding.code for finding in judge(machine())] == ["HC-NPS-MODE"]


def test_a_machine_of_which_nothing_could_be_read_is_not_called_good_or_bad() -> None:
    told = {finding.code for finding in judge(unread(machine()))}
    assert "HC-NOTHING-READ" in told
    assert told <= SAY_WHAT_IS_UNKNOWN
    told = {finding.code for finding in judge(unread(machine(), "permission denied"))}
    assert "HC-NEED-ROOT" in told


@pytest.mark.parametrize(
    ("code", "value", "live", "recorded"),
    [
        ("HC-NEED-ROOT", short, "sudo hicachectl topo", "take the snapshot as root: sudo hicachectl topo snapshot FILE.tar.zst"),
        (
            "HC-NEED-ROOT", lambda: unread(machine(), "permission denied"), "sudo hicachectl topo",
            "take the snapshot as root: sudo hicachectl topo snapshot FILE.tar.zst",
        ),
        (
            "HC-SUSPENDED", lambda: card(runtime_status="suspended", config=unread(config(), "asleep")),
            "sudo hicachectl topo --wake", "take it awake: hicachectl topo snapshot FILE.tar.zst --wake",
        ),
        (
            "HC-NOTHING-READ", lambda: unread(machine()), "ls /sys/devices/system/node /sys/bus/pci/devices",
            "on that host: hicachectl topo snapshot FILE.tar.zst",
        ),
    ],
)  # fmt: skip
def test_advice_for_a_recording_is_to_take_it_again_where_it_was_taken(
    code: str, value: Callable[[], Machine], live: str, recorded: str
) -> None:
    assert {f.hint for f in judge(value()) if f.code == code} == {live}
    assert {f.hint for f in judge(value(), recorded=True) if f.code == code} == {recorded}


def test_nodes_or_devices_that_were_not_read_are_an_error_of_their_own_and_an_empty_list_is_none() -> None:
    whole = machine()
    hidden = replace(whole, numa=replace(whole.numa, nodes=(), listed={"nodes": known(0, "/sys/devices/system/node")}))
    (found,) = of("HC-PART-READ", hidden)
    assert (found.severity, found.subject) == ("error", "host")
    assert "no NUMA node could be read: nothing (/sys/devices/system/node)" in found.message
    assert of("HC-PART-READ", without_devices(None)) == of("HC-PART-READ", unread(whole)) == []
    unreadable = replace(whole, devices=unread(whole.devices), listed={"devices": known(8, "/sys/bus/pci/devices")})
    assert "8 listed, none readable (/sys/bus/pci/devices)" in of("HC-PART-READ", unreadable)[0].message


def test_what_may_be_an_accelerator_is_a_warning_beside_known_ones_and_a_monitor_of_a_known_vendor_is_none() -> None:
    one = displays("vendor")
    both = replace(one, devices=(*one.devices, accelerator(CARD)))
    assert weights("HC-KIND-UNKNOWN", both) == ["warn"]
    assert of("HC-KIND-UNKNOWN", displays()) == []
    assert "class of 2 functions unreadable" in of("HC-KIND-UNKNOWN", displays("class_code"))[0].message


@pytest.mark.parametrize(
    ("code", "value", "recorded"),
    [
        ("HC-IDO-OFF", lambda: paired({"ido_request": False}, {"ido_request": False}), "hicachectl tune plan --root SNAPSHOT"),
        ("HC-CGROUP-LIMIT", lambda: group(memory_max_bytes=GIB), "hicachectl topo -o json --root SNAPSHOT | jq .data.memory"),
        ("HC-NPS-MODE", machine, "on that host: lscpu | grep -i numa"),
        ("HC-RC-ORDER-UNKNOWN", paired, "hicachectl explain HC-RC-ORDER-UNKNOWN"),
    ],
)  # fmt: skip
def test_a_command_for_a_recording_reads_the_recording_or_says_that_it_is_for_its_host(
    code: str, value: Callable[[], Machine], recorded: str
) -> None:
    assert [f.hint for f in judge(value(), recorded=True) if f.code == code] == [recorded]


PAGES = Path(__file__).parents[2] / "hicachectl/explain"

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")

SEVERAL = {
    "HC-LINK-WIDTH",
    "HC-LINK-SPEED",
    "HC-NODE-UNKNOWN",
    "HC-PART-READ",
    "HC-THP-OFF",
}  # what to run depends on what was found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_the_command_of_a_finding_is_that_of_its_page(case: Case) -> None:
    (found, *_) = of(case.code, case.has())
    page = (PAGES / f"{case.code}.md").read_text(encoding="utf-8")
    command = page.rstrip().rpartition("\n\n    ")[2]
    if case.code not in SEVERAL and found.hint != f"hicachectl explain {case.code}":
        assert ADDRESS.sub("@", found.hint) == ADDRESS.sub("@", command)
    assert not ADDRESS.search(command) or "example" in page.rpartition("## One command")[2]


def test_a_finding_names_every_thing_its_message_is_about_and_one_of_the_host_names_none() -> None:
    cards = [accelerator(f"0000:1{i}:00.0", config=config(ido_request=False)) for i in range(6)]
    (off,) = of("HC-IDO-OFF", machine(*cards))
    assert sorted(off.named) == [card.address for card in cards]
    low = unread(config(), "needs root")
    short_ones = [accelerator(f"0000:1{i}:00.0", config=change(low, readable_bytes=64)) for i in range(6)]
    assert sorted(of("HC-NEED-ROOT", machine(*short_ones))[0].named) == [card.address for card in short_ones]
    assert "U0" in of("HC-RC-ORDER-UNKNOWN", paired())[0].named
    (far, *_) = of("HC-NIC-FAR", with_nic(3))
    assert {far.subject, CARD, NIC} <= {*far.named}
    (pin,) = of("HC-PIN-LARGE", large(256, 225))
    assert (pin.subject, pin.named) == ("host", ())


def test_one_node_or_one_device_that_was_read_is_not_nothing() -> None:
    whole, nothing = machine(), unread(machine())
    nodes = replace(nothing, numa=replace(nothing.numa, nodes=whole.numa.nodes[:1]), devices=())
    devices = replace(nothing, numa=replace(nothing.numa, nodes=()), devices=whole.devices[:1])
    assert of("HC-NOTHING-READ", nodes) == of("HC-NOTHING-READ", devices) == []
    for empty in (replace(nothing, devices=()), replace(nothing, numa=replace(nothing.numa, nodes=()), devices=())):
        assert len(of("HC-NOTHING-READ", empty)) == 1


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, Fact):
        yield path
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from places(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, (tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def without(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return unknown(value.source, "no such file")
    key, *rest = path
    if isinstance(value, tuple):
        return tuple(without(item, tuple(rest)) if i == key else item for i, item in enumerate(value))
    if isinstance(value, dict):
        return {k: without(item, tuple(rest)) if k == key else item for k, item in value.items()}
    return replace(value, **{key: without(getattr(value, key), tuple(rest))})


@pytest.mark.parametrize(
    "whole", [machine(), paired({"ido_request": False}, acs_redirect=True), with_nic(0), on_node_zero()], ids=range(4)
)
def test_a_fact_that_cannot_be_read_adds_no_code_but_those_that_say_so(whole: Machine) -> None:
    before = {finding.code for finding in judge(whole)}
    if "HC-IDO-UNEQUAL" in before:
        before.add("HC-IDO-OFF")  # of two cards, one off and one not known
    for path in places(whole):
        after = {finding.code for finding in judge(without(whole, path))}
        assert after - before <= SAY_WHAT_IS_UNKNOWN, path


def test_host_settings_weigh_less_without_accelerators() -> None:
    bare = replace(machine(), devices=())
    for value, code in (
        (replace(bare, numa=change(bare.numa, numa_balancing=1)), "HC-NUMA-BALANCING"),
        (replace(bare, host=change(bare.host, kernel="6.12.1")), "HC-KERNEL-GUP"),
        (replace(bare, memory=shm("never").memory), "HC-SHM-4K"),
    ):
        assert weights(code, value) == ["note"]


def test_a_domain_of_type_dma_is_strict_only_where_kernel_or_command_line_say_so() -> None:
    assert of("HC-IOMMU-STRICT", old_card()) == []
    (plain,) = of("HC-IOMMU-TRANSLATED", old_card())
    assert (plain.severity, plain.subject, plain.hint) == ("note", CARD, "sudo dmesg | grep -iE 'IO/?TLB flush'")
    assert (
        "(domain DMA, identity would pass them through); whether they are flushed at each unmap or later is not known"
        in plain.message
    )
    assert (
        "(Linux 5.10.0-136.el9 may print DMA for strict and lazy flushing alike, Linux 5.15 tells them apart)"
        in plain.message
    )
    told = {"intel_iommu": known("on,strict", "/proc/cmdline")}
    (strict,) = of("HC-IOMMU-STRICT", old_card(cpu_vendor="GenuineIntel", pinned=told))
    assert "at each unmap (intel_iommu=strict on the kernel command line)" in strict.message
    assert of("HC-IOMMU-TRANSLATED", old_card(cpu_vendor="GenuineIntel", pinned=told)) == []
    arm = {"architecture": "aarch64", "pinned": {"iommu.strict": known("0", "/proc/cmdline")}}
    (lazy,) = of("HC-IOMMU-TRANSLATED", old_card(**arm))
    assert (
        "(domain DMA, identity would pass them through) and flushed later, in batches (iommu.strict=0" in lazy.message
    )
    neighbour = next(d.address for d in machine().devices if d.kind == SlotKind.ACCELERATOR and d.address != CARD)
    other = with_device(old_card(), neighbour, iommu_domain="DMA-FQ")
    assert [found.subject for found in of("HC-IOMMU-STRICT", other)] == [CARD]
    assert [found.subject for found in of("HC-IOMMU-TRANSLATED", other)] == [neighbour]


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("strict", "HC-IOMMU-STRICT", "domain DMA, identity would pass them through) and flushed at each unmap"),
        (
            "lazy",
            "HC-IOMMU-TRANSLATED",
            "domain DMA-FQ, identity would pass them through) and flushed later, in batches",
        ),
        (
            "translated",
            "HC-IOMMU-TRANSLATED",
            "whether they are flushed at each unmap or later is not known (Linux 5.10.0-136.el9 may",
        ),
    ],
)
def test_the_hosts_mode_is_judged_where_no_device_has_a_domain(mode: str, code: str, words: str) -> None:
    gone = {"iommu_domain": unknown("type", "no such file")}
    value = machine(
        *(change(d, **gone) for d in machine().devices), host={"iommu_mode": mode, "kernel": "5.10.0-136.el9"}
    )
    (found,) = [one for one in judge(value) if one.code.startswith("HC-IOMMU")]
    assert (found.code, found.subject) == (code, "host")
    assert words in found.message


def test_the_worst_comes_first_and_the_order_does_not_change() -> None:
    bad = change(machine().numa, numa_balancing=1)
    value = replace(card(link=link(now=8), iommu_domain="DMA"), numa=bad)
    told = [(finding.severity, finding.code) for finding in judge(value)]
    assert told == [
        ("error", "HC-LINK-WIDTH"),
        ("warn", "HC-NUMA-BALANCING"),
        ("warn", "HC-IOMMU-STRICT"),
        ("note", "HC-NPS-MODE"),
    ]
    assert judge(value) == judge(value)
    assert worst(judge(value)) == "error"
    assert worst(()) is None

"""Every code appears where it should, weighs what the machine makes it weigh, and stays away where nothing was read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hosts.machines import (
    GIB,
    accelerator,
    change,
    config,
    device,
    four_nodes,
    link,
    lost,
    machine,
    nic,
    node,
    paired,
    port,
    unread,
    uplink,
    with_device,
)

from hicachectl.tuning.finding import Finding, Sight
from hicachectl.tuning.findings import CODES, judge, worst
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import Machine, SlotKind

ROOT, CARD, NIC = "0000:10:01.0", "0000:11:00.0", "0000:51:00.0"
SAY_WHAT_IS_UNKNOWN = {
    "HC-NOTHING-READ", "HC-PART-READ", "HC-KIND-UNKNOWN", "HC-NODE-UNKNOWN", "HC-NEED-ROOT", "HC-SUSPENDED", "HC-DEVICE-GONE",
}  # fmt: skip


def of(code: str, value: Machine) -> list[Finding]:
    return [finding for finding in judge(value) if finding.code == code]


def card(**new: Any) -> Machine:
    return with_device(machine(), CARD, **new)


def memory(**new: Any) -> Machine:
    return machine(memory=new)


def thp(**new: Any) -> Machine:
    return machine(memory={"thp": change(machine().memory.thp, **new)})


def shm(huge: Any, **new: Any) -> Machine:
    mount = machine().memory.tmpfs[0]
    mount = change(mount, huge=huge) if huge is not None else lost(mount, "huge")
    return machine(memory={"tmpfs": (mount,), "thp": change(machine().memory.thp, **new)})


def group(**new: Any) -> Machine:
    return machine(memory={"cgroup": change(machine().memory.cgroup, **new)})


def with_nic(on: int | None, **new: Any) -> Machine:
    """Cards on every node, and one RDMA NIC."""
    found = nic(NIC, "0000:50:01.0", node=on if on is not None else unknown("numa_node", "no such file"), **new)
    return machine(*machine().devices, port("0000:50:01.0", node=0), found)


def nodes(*changes: dict[str, Any], **numa: Any) -> Machine:
    told = (*changes, {}, {}, {}, {})[:4]
    return machine(
        numa={"nodes": tuple(change(one, **new) for one, new in zip(four_nodes(), told, strict=True)), **numa}
    )


def on_node_zero(**numa: Any) -> Machine:
    return machine(port(ROOT), accelerator(CARD, ROOT, node=0), numa=numa)


def large(each_gib: int, available_gib: int, *kinds: str, **new: Any) -> Machine:
    """An NVIDIA card and four nodes of one size; the host's MemAvailable counts them all, as the kernel does."""
    told = {"memory_total_bytes": each_gib * GIB, "memory_available_bytes": available_gib * GIB}
    value = nodes(*({**told, "kind": kind} for kind in (*kinds, *["memory"] * 4)[:4]))
    whole = {"total_bytes": 4 * each_gib * GIB, "available_bytes": 4 * available_gib * GIB, **new}
    return replace(with_device(value, CARD, vendor="10de"), memory=change(value.memory, **whole))


def nodeless(**new: Any) -> Machine:
    """A large host whose kernel lists no nodes."""
    value = large(256, 225, **new)
    return replace(value, numa=change(value.numa, nodes=()))


def gone() -> Machine:
    why = "device gone (config reads all ones)"
    return card(config=unread(config(), why))


def short(config64: bool = True) -> Machine:
    return card(config=change(unread(config(), "needs root (CAP_SYS_ADMIN)"), readable_bytes=64 if config64 else 256))


def flagged(relaxed: bool | None, vendor: str = "8086") -> Machine:
    found = config(relaxed_ordering=relaxed) if relaxed is not None else lost(config(), "relaxed_ordering")
    return machine(port(ROOT, vendor=vendor, device="6f02"), accelerator(CARD, ROOT, config=found))


@dataclass(frozen=True)
class Case:
    """A machine that has a finding, and one in which the fact it rests on is not known."""

    code: str
    severity: str
    has: Callable[[], Machine]
    unknown: Callable[[], Machine]
    both_values: tuple[str, ...] = ()


CASES = (
    Case("HC-DEVICE-GONE", "error", gone, lambda: card(config=unread(config())), ("all ones",)),
    Case(
        "HC-LINK-WIDTH", "error", lambda: card(link=link(now=8)), lambda: card(link=lost(link(8), "width_now")), ("x8", "x16")
    ),
    Case(
        "HC-LINK-SPEED", "note", lambda: card(link=link(gt_s=2.5)), lambda: card(link=lost(link(gt_s=2.5), "speed_now_gt_s")),
        ("2.5", "16", "idle?"),
    ),
    Case("HC-UPLINK-SHARED", "note", paired, lambda: replace(paired(), uplinks=()), ("29.3 GiB/s", "14.7 GiB/s")),
    Case(
        "HC-MPS-MISMATCH", "warn", lambda: paired({"max_payload_bytes": 512}),
        lambda: paired(*[{"max_payload_bytes": unknown("config", "needs root")}] * 2), ("512", "256"),
    ),
    Case(
        "HC-ASPM-ON", "warn", lambda: card(config=config(aspm="L1")), lambda: card(config=lost(config(), "aspm")), ("L1",)
    ),
    Case(
        "HC-AER-RISING", "warn", lambda: card(aer={"fatal": Fact(2, "aer_dev_fatal")}),
        lambda: card(aer={"fatal": unknown("aer_dev_fatal", "no such file")}), ("2 fatal",),
    ),
    Case(
        "HC-BAR-SMALL", "note", lambda: card(bar_bytes=GIB // 4), lambda: lost_card("bar_bytes"), ("256.0 MiB",),
    ),
    Case(
        "HC-IDO-OFF", "warn", lambda: paired(*[{"ido_request": False}] * 2),
        lambda: paired(*[{"ido_request": unknown("config", "needs root")}] * 2), ("off (0; 1 is on)",),
    ),
    Case(
        "HC-IDO-UNEQUAL", "warn", lambda: paired({"ido_request": False}),
        lambda: paired({"ido_request": unknown("config", "needs root")}), ("on (1)", "off (0)"),
    ),
    Case("HC-RC-ORDER-UNKNOWN", "note", paired, lambda: replace(paired(), uplinks=()), ("Hygon",)),
    Case(
        "HC-RO-OFF", "note", lambda: card(config=config(relaxed_ordering=False)),
        lambda: card(config=lost(config(), "relaxed_ordering")), ("off (0",),
    ),
    Case("HC-RO-FORBIDDEN", "warn", lambda: flagged(True), lambda: unnamed_root(), ("8086:6f02", "on (1)")),
    Case(
        "HC-ACS-REDIRECT", "warn", lambda: paired(acs_control=0x1D, acs_redirect=True),
        lambda: paired(acs_control=unknown("config", "needs root"), acs_redirect=unknown("config", "needs root")), ("0x001d", "0x000c"),
    ),
    Case(
        "HC-NODE-UNKNOWN", "warn", lambda: lost_card("node", reason="firmware gives no node: '-1'"), machine, ("-1", "node 0")
    ),
    Case("HC-NIC-FAR", "warn", lambda: with_nic(0), lambda: with_nic(None), ("32", "16")),
    Case(
        "HC-INTERLEAVE-ALL", "warn", lambda: machine(numa={"process_policy": "interleave:0-3"}),
        lambda: machine(numa={"process_policy": unknown("numa_maps", "permission denied")}), ("interleave:0-3", "default"),
    ),
    Case(
        "HC-NUMA-BALANCING", "warn", lambda: machine(numa={"numa_balancing": 1}),
        lambda: machine(numa={"numa_balancing": unknown("numa_balancing", "no such file")}), ("is 1", "0"),
    ),
    Case(
        "HC-NODE-LOW", "note", lambda: nodes({}, {"memory_available_bytes": 20 * GIB}),
        lambda: nodes(
            {}, {"memory_available_bytes": unknown("meminfo", "none"), "memory_free_bytes": unknown("meminfo", "none")}
        ),
        ("20.0 GiB", "56.0 GiB"),
    ),
    Case(
        "HC-BIND-HALF", "note", on_node_zero, lambda: with_device(on_node_zero(), CARD, node=unknown("numa_node", "none")),
        ("64.0 GiB of 256.0 GiB", "1 of 4"),
    ),
    Case(
        "HC-CPUSET", "warn", lambda: machine(numa={"allowed_nodes": (0, 1)}),
        lambda: machine(numa={"allowed_nodes": unknown("status", "permission denied")}), ("2 of the host's 4",),
    ),
    Case("HC-NPS-MODE", "note", machine, lambda: machine(numa={"nodes_a_socket": unknown("cpu", "none")}), ("2 ", "1 ")),
    Case(
        "HC-MEMPOLICY-DENIED", "warn", lambda: machine(numa={"mempolicy_calls": False}),
        lambda: machine(numa={"mempolicy_calls": unknown("set_mempolicy", "asked of a live host only")}), ("EPERM",),
    ),
    Case(
        "HC-THP-OFF", "warn", lambda: thp(enabled="never"), lambda: thp(enabled=unknown("enabled", "no such file")),
        ("never", "madvise"),
    ),
    Case(
        "HC-THP-STALL", "warn", lambda: nodes({"free_huge_blocks": 512}),
        lambda: nodes(*[{"free_huge_blocks": unknown("buddyinfo", "permission denied")}] * 4), ("2% of node 0", "50%"),
    ),
    Case("HC-SHM-4K", "warn", lambda: shm("never"), lambda: shm(None), ("huge=never", "huge=advise")),
    Case(
        "HC-CGROUP-LIMIT", "warn", lambda: group(memory_max_bytes=64 * GIB, memory_limited_by="/engine"),
        lambda: group(memory_max_bytes=unknown("memory.max", "permission denied")), ("64.0 GiB", "256.0 GiB", "1.0 GiB"),
    ),
    Case(
        "HC-MEMLOCK-LOW", "warn", lambda: replace(with_nic(0), memory=change(machine().memory, memlock_bytes=8 << 20)),
        lambda: with_nic(0), ("8.0 MiB", "256.0 GiB"),
    ),
    Case(
        "HC-HUGETLB-HELD", "warn", lambda: memory(hugetlb_bytes=16 * GIB, hugetlb_free_bytes=8 * GIB),
        lambda: memory(hugetlb_bytes=16 * GIB, hugetlb_free_bytes=unknown("meminfo", "none")), ("8.0 GiB of 16.0 GiB",),
    ),
    Case(
        "HC-PIN-LARGE", "warn", lambda: large(256, 225), lambda: nodeless(total_bytes=unknown("meminfo", "none")),
        ("512.0 GiB", "900.0 GiB available", "1.0 TiB"),
    ),
    Case(
        "HC-KERNEL-GUP", "warn", lambda: machine(host={"kernel": "6.11.0-8-generic"}),
        lambda: machine(host={"kernel": unknown("osrelease", "none")}), ("6.11.0-8-generic", "6.13"),
    ),
    Case(
        "HC-IOMMU-STRICT", "warn", lambda: card(iommu_domain="DMA"), lambda: lost_card("iommu_domain"), ("DMA", "identity")
    ),
    Case(
        "HC-IOMMU-TRANSLATED", "note", lambda: card(iommu_domain="DMA-FQ"), lambda: lost_card("iommu_domain"),
        ("DMA-FQ", "identity"),
    ),
    Case(
        "HC-CSTATE-DEEP", "note", lambda: machine(host={"deepest_idle_state": "C6", "deepest_idle_exit_us": 190}),
        lambda: machine(host={"deepest_idle_exit_us": unknown("cpuidle", "none")}), ("190 us", "100 us"),
    ),
    Case(
        "HC-CONTAINER", "note", lambda: machine(host={"container": "docker"}),
        lambda: machine(host={"container": unknown("cgroup", "none")}), ("docker",),
    ),
    Case("HC-NEED-ROOT", "note", short, lambda: short(config64=False), ("64 bytes", "256 or 4096")),
    Case(
        "HC-SUSPENDED", "note", lambda: card(runtime_status="suspended", config=unread(config(), "asleep")),
        lambda: lost_card("runtime_status"), ("suspended", "active"),
    ),
    Case(
        "HC-NOTHING-READ", "error", lambda: unread(machine()), lambda: lost_card("vendor"),
        ("no NUMA node", "no PCI device"),
    ),
    Case(
        "HC-PART-READ", "error", lambda: without_devices("no such file"), lambda: without_devices(None),
        ("no PCI device could be read: no such file (/sys/bus/pci/devices)",),
    ),
    Case(
        "HC-KIND-UNKNOWN", "error", lambda: displays("vendor"), lambda: displays("revision"),
        ("vendor of 2 display devices unreadable (no such file)", "no accelerator is known"),
    ),
    Case("HC-VF", "note", lambda: card(is_vf=True), lambda: lost_card("is_vf"), ("virtual",)),
)  # fmt: skip


def without_devices(reason: str | None) -> Machine:
    """A machine whose nodes were read and whose list of devices was not, or is really empty."""
    listed: Fact[int] = known(0, "/sys/bus/pci/devices") if reason is None else unknown("/sys/bus/pci/devices", reason)
    return replace(machine(), devices=(), listed={"devices": listed})


def displays(*names: str, **new: Any) -> Machine:
    """Two VGA controllers that are no accelerators by what is known, with these facts missing."""
    values = {"class_code": "030000", "vendor": "1a03", "device": "2000", **new}
    return machine(*(lost(device(f"0000:0{i}:00.0", **values), *names) for i in (1, 2)))


def lost_card(name: str, reason: str = "no such file") -> Machine:
    before = machine()
    old = next(d for d in before.devices if d.address == CARD)
    return with_device(before, CARD, **{name: unknown(getattr(old, name).source, reason)})


def unnamed_root() -> Machine:
    return machine(lost(port(ROOT, vendor="8086", device="6f02"), "device"), accelerator(CARD, ROOT))


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
SEVERAL = {"HC-NODE-UNKNOWN", "HC-PART-READ", "HC-THP-OFF"}  # what to run depends on what was found


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


def test_functions_with_a_short_config_space_are_counted_as_they_are_listed() -> None:
    low = change(unread(config(), "needs root"), readable_bytes=64)
    others = [device(f"0000:2{i}:00.0", config=low) for i in range(2)]
    (found,) = of("HC-NEED-ROOT", machine(*others, accelerator(CARD, config=low)))
    assert found.message.startswith("config space of 3 functions ends after 64 bytes")
    assert f"not known of {CARD}, 0000:20:00.0 and 0000:21:00.0" in found.message
    (found,) = of("HC-NEED-ROOT", machine(accelerator(CARD, config=low)))
    assert found.message.startswith("config space of 1 function ends")


def test_a_board_with_all_slots_on_one_socket_is_a_note_and_counts_the_root_buses_of_all_that_it_names() -> None:
    ways = [(port(f"0000:{n}0:01.0"), accelerator(f"0000:{n}1:00.0", f"0000:{n}0:01.0", node=0)) for n in (1, 2)]
    cards = [one for way in ways for one in way]
    (found,) = of("HC-NODE-UNKNOWN", machine(*cards))
    assert found.severity == "note"
    assert "below 2 root buses" in found.message
    assert "or the board has all slots on one socket" in found.message
    (more,) = of("HC-NODE-UNKNOWN", machine(*cards, device("0000:90:00.0", kind=SlotKind.NVME)))
    assert "below 3 root buses" in more.message


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


@pytest.mark.parametrize("names", [("memory_total_bytes", "kind"), ("cpus", "kind")])
def test_half_the_memory_is_not_counted_while_a_node_was_not_read(names: tuple[str, ...]) -> None:
    value = on_node_zero()
    assert of("HC-BIND-HALF", value)
    first, *rest, last = value.numa.nodes
    for nodes_read in ((lost(first, *names), *rest, last), (first, *rest, lost(last, *names))):
        half = replace(value, numa=replace(value.numa, nodes=nodes_read))
        assert of("HC-BIND-HALF", half) == []
    outside = replace(
        value, numa=change(replace(value.numa, nodes=(first, *rest, lost(last, *names))), allowed_nodes=(0, 1, 2))
    )
    assert "1 of 3 memory nodes" in of("HC-BIND-HALF", outside)[0].message


def test_no_node_is_the_low_one_while_another_was_not_read() -> None:
    low = {"memory_available_bytes": 20 * GIB}
    assert of("HC-NODE-LOW", nodes(low))
    first, *rest, last = nodes(low).numa.nodes
    value = nodes(low)
    assert (
        of(
            "HC-NODE-LOW",
            replace(value, numa=replace(value.numa, nodes=(first, *rest, lost(last, "memory_total_bytes", "kind")))),
        )
        == []
    )


def test_a_cpuset_says_of_how_many_nodes_the_memory_was_not_read() -> None:
    value = machine(numa={"allowed_nodes": (0, 1)})
    first, *rest = value.numa.nodes
    half = replace(value, numa=replace(value.numa, nodes=(lost(first, "memory_total_bytes"), *rest)))
    assert "1 of the host's 3 memory nodes (1 more not read)" in of("HC-CPUSET", half)[0].message
    assert "not read" not in of("HC-CPUSET", value)[0].message


@pytest.mark.parametrize(
    "near",
    [
        {"kind": SlotKind.NIC, "listed": {"interfaces": unknown("/infiniband", "permission denied")}},
        {"kind": SlotKind.NIC, "vendor": unknown("vendor", "permission denied")},
        {"kind": SlotKind.OTHER, "class_code": unknown("class", "permission denied")},
    ],
)
def test_no_nic_is_far_while_a_nearer_one_may_be_an_rdma_nic_and_was_not_read(near: dict[str, Any]) -> None:
    far = with_nic(0)
    assert of("HC-NIC-FAR", far)
    second = nic("0000:61:00.0", "0000:60:01.0", node=3)
    read = machine(*far.devices, port("0000:60:01.0", node=3), change(second, kind=SlotKind.NIC))
    assert of("HC-NIC-FAR", read)
    assert of("HC-NIC-FAR", machine(*far.devices, port("0000:60:01.0", node=3), change(second, **near))) == []


def test_interfaces_that_may_not_be_listed_are_told_of() -> None:
    denied = {"interfaces": unknown("/sys/bus/pci/devices/0000:51:00.0/infiniband", "permission denied")}
    (found,) = of("HC-NEED-ROOT", with_nic(0, listed=denied))
    assert found.subject == "/sys/bus/pci/devices/0000:51:00.0/infiniband"


# -- weight by context ------------------------------------------------------------------------------------------------


def weights(code: str, value: Machine) -> list[str]:
    return [finding.severity for finding in of(code, value)]


def test_a_narrow_link_is_an_error_for_an_accelerator_a_warning_for_a_disk_a_note_where_the_slot_ends() -> None:
    for kind, severity in ((SlotKind.ACCELERATOR, "error"), (SlotKind.NVME, "warn")):
        narrow = machine(port(ROOT, link=link(now=2)), device(CARD, ROOT, kind=kind, link=link(now=2)))
        assert weights("HC-LINK-WIDTH", narrow) == [severity]
    slot = machine(port(ROOT, link=link(now=8, most=8)), accelerator(CARD, ROOT, link=link(now=8)))
    assert weights("HC-LINK-WIDTH", slot) == ["note"]
    half_known = machine(port(ROOT, link=unread(link())), accelerator(CARD, ROOT, link=link(now=8)))
    assert weights("HC-LINK-WIDTH", half_known) == ["note"]


def test_a_slow_link_of_which_one_end_was_not_read_is_not_measured_by_the_other_alone() -> None:
    idle = link(gt_s=8.0, most_gt_s=32.0)
    half_known = machine(port(ROOT, link=lost(idle, "speed_max_gt_s")), accelerator(CARD, ROOT, link=idle))
    (found,) = of("HC-LINK-SPEED", half_known)
    assert found.severity == "note"
    assert "is at 8 of at most 32 GT/s" in found.message
    assert f"the top speed of {ROOT} is not known: no such file" in found.message
    (both,) = of("HC-LINK-SPEED", machine(port(ROOT, link=idle), accelerator(CARD, ROOT, link=idle)))
    assert "at most" not in both.message
    (alone,) = of("HC-LINK-SPEED", machine(accelerator(CARD, link=idle)))
    assert "at most 32 GT/s" in alone.message and "no port above it is listed" in alone.message


def test_a_shared_link_says_which_of_its_numbers_is_not_known() -> None:
    pair = paired()
    (one,) = pair.uplinks
    half = replace(pair, uplinks=(lost(one, "busy_bytes_per_s", "oversubscription", reason="a link is not known"),))
    (found,) = of("HC-UPLINK-SHARED", half)
    assert (
        "29.3 GiB/s by link math; what each gets when all are busy is not known (a link is not known)" in found.message
    )


def test_a_small_card_in_a_wide_slot_is_no_finding() -> None:
    fits = machine(port(ROOT, link=link(now=4)), device(CARD, ROOT, kind=SlotKind.NVME, link=link(now=4, most=4)))
    assert of("HC-LINK-WIDTH", fits) == []


def test_ordering_bits_are_warned_of_behind_a_shared_uplink_and_noted_elsewhere() -> None:
    alone = machine(
        port(ROOT), accelerator(CARD, ROOT, config=config(ido_request=False)),
        port("0000:20:01.0"), accelerator("0000:21:00.0", "0000:20:01.0"),
    )  # fmt: skip
    assert weights("HC-IDO-UNEQUAL", alone) == ["note"]
    assert weights("HC-IDO-OFF", card(config=config(ido_request=False))) == []
    off = machine(port(ROOT), accelerator(CARD, ROOT, config=config(ido_request=False)))
    assert weights("HC-IDO-OFF", off) == ["note"]


def test_an_uplink_that_is_off_says_when_another_is_on() -> None:
    first, second = paired(*[{"ido_request": False}] * 2), machine()
    both = replace(first, devices=(*first.devices, *second.devices[:2]))
    (found,) = of("HC-IDO-OFF", both)
    assert found.message.endswith("on behind another uplink")
    assert found.subject == "0000:21:00.0"


def test_cards_whose_bit_was_not_read_are_named_where_the_others_are_judged() -> None:
    unread_bit, off = {"ido_request": unknown("config", "needs root")}, {"ido_request": False}
    (shared,) = of("HC-IDO-OFF", paired(off, unread_bit))
    assert shared.message.endswith("; not known in 0000:24:00.0 (needs root)")
    cards = [
        one
        for i, bits in enumerate((off, {}, unread_bit, unread_bit))
        for one in (port(f"0000:{i + 1}0:01.0"), accelerator(f"0000:{i + 1}1:00.0", f"0000:{i + 1}0:01.0", config=config(**bits)))
    ]  # fmt: skip
    (unequal,) = of("HC-IDO-UNEQUAL", machine(*cards))
    assert unequal.message.endswith("; not known in 0000:31:00.0 and 0000:41:00.0 (needs root)")
    (alone,) = of("HC-IDO-OFF", machine(*cards[:2], *cards[4:]))
    assert alone.message.endswith("; not known in 0000:31:00.0 and 0000:41:00.0 (needs root)")


def test_cards_of_a_narrower_uplink_below_are_not_counted_as_unread() -> None:
    pair = paired(*[{"ido_request": False}] * 2)
    (one,) = pair.uplinks
    inner = replace(pair, uplinks=(replace(one, accelerators=one.accelerators[:1]),))
    (found,) = of("HC-IDO-OFF", inner)
    assert "not known" not in found.message and "could not be read" not in found.message


def test_an_uplink_that_is_off_says_what_else_behind_it_was_not_identified() -> None:
    pair = paired(*[{"ido_request": False}] * 2)
    (one,) = pair.uplinks
    stranger = change(
        device("0000:25:00.0", "0000:20:01.0"), kind=SlotKind.OTHER, class_code=unknown("class", "permission denied")
    )
    more = replace(
        pair, devices=(*pair.devices, stranger), uplinks=(replace(one, shared_by=(*one.shared_by, stranger.address)),)
    )
    (found,) = of("HC-IDO-OFF", more)
    assert found.message.endswith("; what 0000:25:00.0 is was not read (permission denied)")
    assert "was not read" not in of("HC-IDO-OFF", pair)[0].message


def test_the_bits_of_a_virtual_function_are_not_judged() -> None:
    assert of("HC-IDO-OFF", card(is_vf=True, config=config(ido_request=False))) == []


def redirecting(*controls: int | None) -> Machine:
    """Two cards behind one switch whose downstream ports have these ACS controls; None was not read."""
    pair, names = paired(), ("0000:22:00.0", "0000:22:01.0")
    for name, control in zip(names, controls, strict=True):
        told = (control, bool(control & 0xC)) if control is not None else (unknown("config", "needs root"),) * 2
        bits = config(port_type="downstream", acs_control=told[0], acs_redirect=told[1])
        pair = with_device(pair, name, config=bits)
    return pair


def test_redirect_names_the_ports_that_have_the_bit_and_whose_traffic_it_is() -> None:
    (found,) = of("HC-ACS-REDIRECT", redirecting(0x1D, 0))
    assert found.subject == "0000:22:00.0"
    assert "requests and completions of 0000:23:00.0 to its neighbours" in found.message
    assert "ACS control 0000:22:00.0 0x001d" in found.message
    assert "0000:24:00.0" not in found.message and "0000:22:01.0" not in found.message
    (both,) = of("HC-ACS-REDIRECT", redirecting(0x1D, 0x04))
    assert "requests and completions of 0000:23:00.0" in both.message and "requests of 0000:24:00.0" in both.message
    (last,) = of("HC-ACS-REDIRECT", redirecting(0, 0x08))
    assert "completions of 0000:24:00.0" in last.message and "requests" not in last.message
    assert of("HC-ACS-REDIRECT", redirecting(0, 0x10)) == []


def test_ports_whose_redirect_bits_were_not_read_are_counted() -> None:
    (found,) = of("HC-ACS-REDIRECT", redirecting(0x1D, None))
    assert found.message.endswith("; not known of 0000:22:01.0 (needs root)")


def test_relaxed_ordering_that_is_off_under_a_flagged_port_is_as_it_should_be() -> None:
    assert weights("HC-RO-FORBIDDEN", flagged(False)) == ["note"]
    assert of("HC-RO-OFF", flagged(False)) == []
    assert of("HC-RO-FORBIDDEN", flagged(True, vendor="1d94")) == []


def test_errors_that_were_corrected_are_a_note() -> None:
    assert weights("HC-AER-RISING", card(aer={"correctable": Fact(7, "aer_dev_correctable")})) == ["note"]


def test_a_missing_node_matters_less_for_a_disk_and_not_where_there_is_one_node() -> None:
    lost_disk = lost(device("0000:60:00.0", kind=SlotKind.NVME), "node")
    assert weights("HC-NODE-UNKNOWN", machine(*machine().devices, lost_disk)) == ["note"]
    one = {"nodes": (node(0, {0: 10}),), "nodes_a_socket": 1, "sockets": 1}
    assert of("HC-NODE-UNKNOWN", machine(lost_disk, numa=one)) == []


def test_tables_nobody_can_believe_are_told() -> None:
    flat = nodes(*[{"distances": dict.fromkeys(range(4), 10)}] * 4)
    assert [f.subject for f in of("HC-NODE-UNKNOWN", flat)] == ["node distances"]
    twice = nodes(*[{"cpus": tuple(range(8))}] * 4)
    assert [f.subject for f in of("HC-NODE-UNKNOWN", twice)] == ["node CPUs"]
    zero = machine(*(change(d, node=0) for d in machine().devices))
    assert [f.subject for f in of("HC-NODE-UNKNOWN", zero)] == ["host"]


def test_a_nic_on_the_same_socket_is_near() -> None:
    assert [f.subject for f in of("HC-NIC-FAR", with_nic(1))] == ["node 2", "node 3"]


def test_host_settings_weigh_less_without_accelerators() -> None:
    bare = replace(machine(), devices=())
    for value, code in (
        (replace(bare, numa=change(bare.numa, numa_balancing=1)), "HC-NUMA-BALANCING"),
        (replace(bare, host=change(bare.host, kernel="6.12.1")), "HC-KERNEL-GUP"),
        (replace(bare, memory=shm("never").memory), "HC-SHM-4K"),
    ):
        assert weights(code, value) == ["note"]


@pytest.mark.parametrize(("kernel", "hit"), [("6.10.9", False), ("6.11.0", True), ("6.13.7", True), ("6.14.0", False)])
def test_the_kernels_with_the_pin_fault_are_6_11_to_6_13(kernel: str, hit: bool) -> None:
    assert bool(of("HC-KERNEL-GUP", machine(host={"kernel": kernel}))) is hit


def test_never_at_the_top_with_always_for_two_megabytes_is_not_off() -> None:
    sizes = {"hugepages-2048kB/enabled": Fact("always", "hugepages-2048kB/enabled")}
    assert of("HC-THP-OFF", thp(enabled="never", sizes=sizes)) == []


def test_a_launcher_that_switched_huge_pages_off_is_found() -> None:
    (found,) = of("HC-THP-OFF", thp(process_enabled=False))
    assert found.source == "/proc/self/status"


def test_force_and_deny_reach_past_the_mount_option() -> None:
    assert of("HC-SHM-4K", shm("never", shmem_enabled="force")) == []
    assert weights("HC-SHM-4K", shm("advise", shmem_enabled="deny")) == ["warn"]


def test_a_process_that_may_lock_everything_is_not_warned_of_the_limit() -> None:
    limited = replace(with_nic(0), memory=change(machine().memory, memlock_bytes=8 << 20))
    assert of("HC-MEMLOCK-LOW", replace(limited, host=change(limited.host, capabilities=("CAP_IPC_LOCK",)))) == []
    assert of("HC-MEMLOCK-LOW", replace(limited, host=lost(limited.host, "capabilities"))) == []


def test_one_registration_of_512_gib_is_a_hazard_only_with_the_driver_it_was_reported_for() -> None:
    assert of("HC-PIN-LARGE", with_device(large(256, 225), CARD, vendor="1d22")) == []
    assert weights("HC-PIN-LARGE", large(256, 225)) == ["warn"]
    assert of("HC-PIN-LARGE", large(64, 60)) == []


def test_a_pool_that_does_not_fit_now_is_not_said_to_fit() -> None:
    (found,) = of("HC-PIN-LARGE", large(256, 100))
    assert found.severity == "note"
    assert "does not fit now (400.0 GiB available of 1.0 TiB on nodes 0, 1, 2 and 3)" in found.message
    (bound,) = of("HC-PIN-LARGE", large(256, 225, available_bytes=300 * GIB))
    assert (
        "does not fit now (300.0 GiB available of" in bound.message
    )  # MemAvailable, where it is less than the nodes' sum


def test_the_memory_of_accelerators_holds_no_pool_to_register() -> None:
    (found,) = of("HC-PIN-LARGE", large(300, 250, "memory", "memory", "device-memory", "cpu-less"))
    assert found.severity == "note"
    assert "does not fit now (500.0 GiB available of 600.0 GiB on nodes 0 and 1)" in found.message
    assert of("HC-PIN-LARGE", large(300, 290, "memory", "device-memory", "device-memory", "device-memory")) == []


def test_a_control_group_and_reserved_huge_pages_are_terms_of_what_fits() -> None:
    value = large(256, 225)
    limited = change(value.memory.cgroup, memory_max_bytes=600 * GIB, memory_current_bytes=100 * GIB)
    (found,) = of("HC-PIN-LARGE", replace(value, memory=change(value.memory, cgroup=limited)))
    assert found.severity == "note"
    assert (
        "900.0 GiB available of 1.0 TiB on nodes 0, 1, 2 and 3, 500.0 GiB left in the control group)" in found.message
    )
    for part in (
        {"memory_max_bytes": unknown("memory.max", "permission denied")},
        {"memory_current_bytes": unknown("m", "odd")},
    ):
        (lost_limit,) = of("HC-PIN-LARGE", replace(value, memory=change(value.memory, cgroup=change(limited, **part))))
        assert lost_limit.severity == "note" and "whether a pool of 512.0 GiB fits is not known" in lost_limit.message
    (huge,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=520 * GIB))
    assert huge.severity == "warn" and "520.0 GiB in free hugetlb pages" in huge.message


def test_whether_a_pool_fits_is_not_known_while_a_node_was_not_read() -> None:
    value = large(256, 225)
    first, *rest = value.numa.nodes
    for broken in (
        lost(first, "memory_total_bytes"),
        lost(first, "kind"),
        lost(first, "memory_available_bytes", "memory_free_bytes"),
    ):
        (found,) = of("HC-PIN-LARGE", replace(value, numa=change(value.numa, nodes=(broken, *rest))))
        assert found.severity == "note"
        assert "whether a pool of 512.0 GiB fits is not known (node 0: no such file" in found.message
    (blind,) = of("HC-PIN-LARGE", large(256, 225, available_bytes=unknown("meminfo", "odd")))
    assert blind.severity == "warn"  # the nodes tell
    (bare,) = of("HC-PIN-LARGE", nodeless(available_bytes=unknown("meminfo", "odd")))
    assert bare.severity == "note" and "is not known (odd" in bare.message
    (all_there,) = of("HC-PIN-LARGE", nodeless())
    assert all_there.severity == "warn" and "900.0 GiB available of 1.0 TiB on the host" in all_there.message


def test_files_that_are_denied_are_counted_in_words_that_fit() -> None:
    one = card(vendor=unknown("/a/vendor", "permission denied"))
    two = with_device(one, CARD, device=unknown("/a/device", "permission denied"))
    (found,) = of("HC-NEED-ROOT", one)
    assert "permission denied for 1 file, so what they say is not known: /a/vendor" in found.message
    (found,) = of("HC-NEED-ROOT", two)
    assert "permission denied for 2 files, so what they say is not known: /a/device and /a/vendor" in found.message


DENIED = unknown("/sys/kernel/mm/hugepages", "permission denied")


def test_reserved_pages_that_were_not_read_are_not_none() -> None:
    (found,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=DENIED, hugetlb_bytes=DENIED))
    assert found.severity == "note"
    assert "fits is not known (free hugetlb pages: permission denied; 400.0 GiB available" in found.message
    assert "? in free hugetlb pages" in found.message
    (fits,) = of("HC-PIN-LARGE", large(256, 225, hugetlb_free_bytes=DENIED, hugetlb_bytes=DENIED))
    assert fits.severity == "warn"
    for held in (0, 100 * GIB):  # what is free is no more than what is held
        (small,) = of("HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=DENIED, hugetlb_bytes=held))
        assert "does not fit now (400.0 GiB available" in small.message
    no_file = unknown("/sys/kernel/mm/hugepages", "no such file")
    (none,) = of(
        "HC-PIN-LARGE", large(256, 100, hugetlb_free_bytes=no_file, hugetlb_bytes=no_file, listed={"hugetlb": no_file})
    )
    assert "does not fit now (400.0 GiB available" in none.message  # a kernel without them


@pytest.mark.parametrize("huge", [0, 520 * GIB])
def test_a_pool_fits_on_no_nodes_that_this_process_may_not_be_allowed(huge: int) -> None:
    status = unknown("/proc/self/status", "permission denied")
    value = large(256, 225, hugetlb_free_bytes=huge, hugetlb_bytes=huge)
    blind = replace(value, numa=change(value.numa, allowed_nodes=status))
    (found,) = of("HC-PIN-LARGE", blind)
    assert found.severity == "note"
    assert "fits is not known (nodes of this process: permission denied; 900.0 GiB" in found.message
    small = large(256, 100)
    (certain,) = of("HC-PIN-LARGE", replace(small, numa=change(small.numa, allowed_nodes=status)))
    assert "does not fit now" in certain.message
    one = replace(
        blind,
        numa=replace(
            blind.numa,
            nodes=(change(blind.numa.nodes[0], memory_total_bytes=1024 * GIB, memory_available_bytes=900 * GIB),),
        ),
    )
    assert weights("HC-PIN-LARGE", one) == ["warn"]


def test_nodes_that_could_not_be_listed_are_not_a_host_without_them() -> None:
    folder = "/sys/devices/system/node"
    for reason, severity in (("permission denied", "note"), ("no such file", "warn")):
        value = nodeless()
        value = replace(value, numa=replace(value.numa, listed={"nodes": unknown(folder, reason)}))
        (found,) = of("HC-PIN-LARGE", value)
        assert found.severity == severity
        assert ("fits is not known (nodes: permission denied" in found.message) == (severity == "note")


def test_where_no_node_takes_a_pool_none_is_said_to_fit() -> None:
    value = large(300, 290, *["device-memory"] * 4)
    assert of("HC-PIN-LARGE", value) == []


# -- order ------------------------------------------------------------------------------------------------------------


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


def test_a_link_shared_by_many_is_judged_once_and_named_by_its_uplink() -> None:
    pair = paired()
    narrow = with_device(pair, "0000:21:00.0", link=link(now=8))
    (found,) = of("HC-LINK-WIDTH", narrow)
    assert (found.subject, found.severity) == ("0000:21:00.0", "error")
    assert "0000:23:00.0 and 0000:24:00.0" in found.message


def test_the_inside_of_a_switch_is_no_link_whether_its_types_were_read_or_not() -> None:
    for value in (
        paired(),
        replace(paired(), devices=tuple(replace(d, config=unread(d.config)) for d in paired().devices)),
    ):
        ends = [(one.upper.address if one.upper else None, one.lower.address) for one in Sight(value).links]
        assert ends == [
            ("0000:20:01.0", "0000:21:00.0"),
            ("0000:22:00.0", "0000:23:00.0"),
            ("0000:22:01.0", "0000:24:00.0"),
        ]


def test_an_uplink_whose_capacity_holds_all_members_is_not_called_shared() -> None:
    pair = paired()
    cards = tuple(d for d in pair.devices if d.kind == SlotKind.ACCELERATOR)
    wide = uplink(cards, "0000:21:00.0", "0000:20:01.0", oversubscription=1.0)
    assert of("HC-UPLINK-SHARED", replace(pair, uplinks=(wide,))) == []

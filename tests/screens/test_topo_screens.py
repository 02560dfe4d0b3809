"""Golden screens of `topo`, its matrix and its diff, from made-up hosts. UPDATE_SCREENS=1 rewrites them; read them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hosts.builder import write_shape
from hosts.machines import accelerator, change, config, device, link, lost, nic, paired, port
from hosts.machines import machine as made_up

from hicachectl.envelope import Diagnostic, Severity
from hicachectl.render.findings import print_findings
from hicachectl.render.screen import Screen
from hicachectl.render.topo_diff import draw_diff
from hicachectl.render.topo_matrix import draw_matrix
from hicachectl.render.topo_screen import Seen, Topology, draw_topology
from hicachectl.render.topo_words import _GENERATIONS, ido, link_text, names_of
from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.diff import compare
from hicachectl.tuning.host.facts import known, unknown
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.matrix import find_matrix
from hicachectl.tuning.host.model import Link, Machine
from hicachectl.tuning.host.pcie_caps import SPEEDS_GT_S
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.uplinks import find_uplinks
from hicachectl.tuning.placement import placements

FOLDER = Path(__file__).parent
HOSTS = (
    "8n8x-4up16", "2n8x", "2n4x-plx", "1n0x-vm", "cpuset-container", "sparse-ids", "odd-links", "no-vendor", "device-memory", "empty",
)  # fmt: skip
WIDTHS = (80, 100, 120)


@cache
def machine(name: str) -> Machine:
    with TemporaryDirectory() as folder:
        return read_machine(HostRoot(write_shape(name, Path(folder) / name), name=name))


def seen(name: str) -> Seen:
    return Seen(name, "2026-11-29T14:02:11Z", 3 * 86400.0)


def topology(screen: Screen, name: str) -> None:
    one = machine(name)
    findings = judge(one, recorded=True)
    shown = [Diagnostic(f.code, Severity(f.severity), f.message, f.subject, f.hint, f.source) for f in findings]
    place = placements(one) if any(d.kind == "accelerator" for d in one.devices) else ()
    draw_topology(
        screen, Topology(one, shown, flatten(one)["facts"], seen(name), place, about=[f.named for f in findings])
    )
    print_findings(screen, shown)


def matrix(screen: Screen, name: str) -> None:
    one = machine(name)
    draw_matrix(screen, one, find_matrix(one), names_of(one), seen(name))


def diff(screen: Screen, name: str) -> None:
    a, _, b = name.partition("+")
    draw_diff(screen, compare(flatten(machine(a)), flatten(machine(b))), seen(a), seen(b))


DRAWN: dict[str, tuple[Callable[[Screen, str], None], str, bool]] = {
    **{f"topo-{name}": (topology, name, False) for name in HOSTS},
    "topo-wide-8n8x-4up16": (topology, "8n8x-4up16", True),
    "topo-wide-2n4x-plx": (topology, "2n4x-plx", True),
    "topo-matrix-8n8x-4up16": (matrix, "8n8x-4up16", False),
    "topo-matrix-2n8x": (matrix, "2n8x", False),
    "topo-matrix-no-vendor": (matrix, "no-vendor", False),
    "topo-matrix-1n0x-vm": (matrix, "1n0x-vm", False),
    "topo-diff": (diff, "8n8x-4up16+cpuset-container", False),
}


def draw(name: str, width: int) -> str:
    function, host, wide = DRAWN[name]
    stream = io.StringIO()
    function(Screen(stream, width=width, ascii=True, wide=wide), host)
    return stream.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DRAWN)
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    text, path = draw(name, width), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize("name", [name for name in DRAWN if name != "topo-diff"])
def test_no_address_is_cut_at_any_width(name: str) -> None:
    addresses = [device.address for device in machine(DRAWN[name][1]).devices if device.kind == "accelerator"]
    for width in (20, 40, 60, 200):
        text = draw(name, width)
        assert all(address in text for address in addresses)


def drawn(one: Machine, width: int = 120) -> str:
    """The screen without findings of a machine that no recording has."""
    stream = io.StringIO()
    draw_topology(Screen(stream, width=width, ascii=True), Topology(one, (), flatten(one)["facts"], seen("made-up")))
    return stream.getvalue()


def row(screen: str, starts_with: str) -> str:
    return next(line for line in screen.splitlines() if line.startswith(starts_with))


def test_a_capacity_that_one_end_alone_tells_is_no_number_and_the_screen_says_why() -> None:
    link = Link(*(known(value, "link") for value in (8.0, 32.0, 16, 16)))
    ends = (
        port("0000:10:01.0", link=lost(link, "speed_max_gt_s")),
        accelerator("0000:11:00.0", "0000:10:01.0", link=link),
    )
    one = made_up(*ends, uplinks=find_uplinks(ends))
    screen = drawn(one)
    assert "3x16 / ?x16  " in row(screen, "U0") and row(screen, "U0").split()[5] == "?"
    assert "at most 32 GT/s: the other end's top speed is not known" in screen
    note = flatten(one)["facts"]["/uplinks/0/capacity_bytes_per_s"]
    assert (flatten(one)["uplinks"][0]["capacity_bytes_per_s"], note["confidence"]) == (None, "derived")
    assert note["reason"].startswith("at most 32 GT/s")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {}, "on / on  "),
        ({"ido_request": False}, {}, "mixed / on  "),
        ({"ido_request": None}, {}, "on / on, 1 unread  "),
        ({"ido_request": None, "ido_completion": None}, {}, "on / on, 1 unread  "),
        ({"ido_request": None}, {"ido_completion": None}, "on / on, 2 unread  "),
        ({"ido_request": None}, {"ido_request": None}, "? / on  "),
        ({"ido_request": None, "ido_completion": None}, {"ido_request": None}, "? / on, 1 unread  "),
    ],
)
def test_ordering_bits_of_cards_that_were_not_read_are_not_those_of_the_others(
    first: dict[str, bool | None], second: dict[str, bool | None], words: str
) -> None:
    unread = unknown("config", "needs root")
    bits = [{name: unread if bit is None else bit for name, bit in told.items()} for told in (first, second)]
    assert f"  {words}" in row(drawn(paired(*bits)), "U0")


def test_an_uplink_with_one_bit_on_one_off_and_one_unread_is_mixed_and_says_so() -> None:
    told = [config(ido_request=bit) for bit in (True, False, unknown("config", "needs root"))]
    assert ido(told) == "mixed / on, 1 unread"
    assert ido([]) == "? / ?"


def test_a_limit_that_was_not_read_is_told_below_the_sizes() -> None:
    one = made_up()
    group = change(one.memory.cgroup, memory_max_bytes=unknown("memory.max", "permission denied"))
    one = replace(one, memory=replace(one.memory, cgroup=group))
    stream = io.StringIO()
    shown = Topology(one, (), flatten(one)["facts"], seen("made-up"), placements(one))
    draw_topology(Screen(stream, width=120, ascii=True), shown)
    assert (
        "the control group's limit is not known (permission denied; memory.max): it may allow less" in stream.getvalue()
    )


def test_every_row_that_a_finding_names_is_marked_and_no_row_for_one_of_the_host() -> None:
    lines = draw("topo-8n8x-4up16", 100).splitlines()
    number = {line.split("]")[1].split()[1]: line.split("]")[0].strip(" [") for line in lines if line.startswith(" [")}

    def marked(code: str) -> set[str]:
        rows = [line for line in lines if line[:1] in "UXND" and line[1:2].isdigit()]
        return {line.split()[0] for line in rows if f"[{number[code]}]" in line}

    assert marked("HC-RC-ORDER-UNKNOWN") == {"U0", "U1", "U2", "U3"}
    assert marked("HC-IDO-OFF") == {"U2", "X4", "X5"}
    assert marked("HC-NIC-FAR") == {"X0", "X1", "N0"}
    assert marked("HC-NPS-MODE") == set()
    (note,) = [line for line in lines if line.startswith("note ")]
    assert f"[{number['HC-NIC-FAR']}]" in note


def test_the_marks_of_findings_stay_on_a_narrow_screen_and_it_says_how_to_see_the_rest() -> None:
    text = draw("topo-8n8x-4up16", 80)
    head = next(line for line in text.splitlines() if line.startswith("UPLINK"))
    assert head.split()[-1] == "NOTE"
    assert "(not shown at 80 columns: IDO req/cpl; all at " in text
    assert "or -o json)" in text


def test_findings_that_say_the_same_of_several_things_are_one_block_and_each_with_wide() -> None:
    alike = [
        Diagnostic("HC-A", Severity.NOTE, f"U{i}: 0000:{i}1:00.0 at 29.3 GiB/s", f"0000:{i}0:00.0", "look")
        for i in range(4)
    ]
    other = Diagnostic("HC-A", Severity.NOTE, "U4: 0000:51:00.0 at 14.7 GiB/s", "0000:50:00.0", "look")

    def text(wide: bool) -> str:
        stream = io.StringIO()
        print_findings(Screen(stream, width=200, ascii=True, wide=wide), [*alike, other])
        return stream.getvalue()

    assert text(False).count("HC-A") == 2
    assert "; likewise [2] 0000:10:00.0, [3] 0000:20:00.0, [4] 0000:30:00.0 (-o wide: each)\n" in text(False)
    assert "[5] note  HC-A 0000:50:00.0: U4" in text(False)
    assert text(True).count("HC-A") == 5


def test_a_card_that_left_the_bus_has_no_numbers() -> None:
    text = draw("topo-odd-links", 120)
    assert "8 accelerators (1 gone)" in text
    assert row(text, "U7").split()[:5] == ["U7", "0000:80:01.1", "gone", "-", "X7(gone)"]
    assert row(text, "X7").split()[5:7] == ["gone", "gone"]


def test_pools_say_what_their_sizes_and_columns_mean() -> None:
    text = " ".join(draw("topo-8n8x-4up16", 120).split())
    assert "of what is available, or free where that is not known. INSTALLED: memory of the nodes in use" in text
    assert row(draw("topo-8n8x-4up16", 120), "available GiB")
    wide = " ".join(draw("topo-wide-8n8x-4up16", 120).split())
    assert "one-to-one: each card's pool has a node for itself, the nearest that is left" in wide
    assert "the card that is farthest from its bytes has a mean distance of 16" in wide


def test_a_function_without_link_files_has_no_link_and_a_disk_of_a_virtual_machine_is_listed() -> None:
    nothing = lost(device("0000:00:02.0").link, "speed_now_gt_s", "speed_max_gt_s", "width_now", "width_max")
    disk = device("0000:00:02.0", class_code="010000", interfaces=("vda",), link=nothing)
    line = row(drawn(made_up(disk)), "D0")
    assert line.split() == ["D0", "0000:00:02.0", "-", "0", "disk", "no", "link", "vda", "-"]


def differences(a: Machine, b: Machine) -> str:
    stream = io.StringIO()
    draw_diff(Screen(stream, width=120, ascii=True), compare(flatten(a), flatten(b)), seen("a"), seen("b"))
    return stream.getvalue()


def test_a_difference_says_limits_in_words_sizes_in_units_and_of_long_lists_what_came_and_went() -> None:
    one = made_up()
    low = change(one, memory=change(one.memory, memlock_bytes=65536))
    assert "  ~ /memory/memlock_bytes unlimited -> 64.0 KiB\n" in differences(one, low)
    assert "DIFF  1 changed" in differences(one, low)
    many = change(one, host=change(one.host, capabilities=("a", "b", "c", "d", "e")))
    fewer = change(one, host=change(one.host, capabilities=("a", "b", "c", "d", "f")))
    assert "  ~ /host/capabilities only in A: e; only in B: f\n" in differences(many, fewer)


def test_a_difference_of_a_list_that_was_not_read_is_one_line() -> None:
    hidden = replace(made_up(), devices=(), listed={"devices": unknown("/sys/bus/pci/devices", "no such file")})
    text = differences(made_up(), hidden)
    assert "  ? devices: not readable in B (no such file); 8 devices in A\n" in text
    assert "8 devices in B\n" in differences(hidden, made_up())
    assert "nothing differs in what was read\n" in differences(hidden, hidden)


def test_every_recorded_topology_screen_is_drawn() -> None:
    ours = {f"{name}-{width}.txt" for name in DRAWN for width in WIDTHS}
    assert {path.name for path in FOLDER.glob("topo*.txt")} == ours


def test_installed_memory_of_which_a_part_was_not_read_is_no_number() -> None:
    whole = made_up()
    first, *rest = whole.numa.nodes
    lost_node = lost(first, "memory_total_bytes", "memory_free_bytes", "memory_available_bytes", "kind")
    half = replace(whole, numa=replace(whole.numa, nodes=(lost_node, *rest)))
    stream = io.StringIO()
    screen = Screen(stream, width=120, ascii=True)
    draw_topology(screen, Topology(half, (), flatten(half)["facts"], seen("made-up"), placements(half)))
    assert "192 of ?" in stream.getvalue()
    assert "of 192" not in stream.getvalue()
    placed = flatten(half, (), placements(half))["placement"]
    assert {one["installed_bytes"] for one in placed} == {None}
    assert all("node 0" in one["installed_bytes_reason"] for one in placed)
    assert "installed_bytes_reason" not in flatten(whole, (), placements(whole))["placement"][0]


NO_ACS = unknown("config", "no ACS capability")
UNREAD = unknown("config", "needs root (CAP_SYS_ADMIN)")


@pytest.mark.parametrize(
    ("root", "upstream", "downstream", "word"),
    [
        (True, False, False, "direct"),  # a root port redirects what comes up through it, which turned round below
        (True, NO_ACS, False, "direct"),
        (UNREAD, NO_ACS, False, "direct"),
        (NO_ACS, NO_ACS, NO_ACS, "direct"),
        (False, NO_ACS, True, "redirect"),
        (False, UNREAD, True, "redirect"),
        (False, UNREAD, False, "?"),
        (False, NO_ACS, UNREAD, "?"),
        (True, None, None, "no switch"),
    ],
)
def test_the_acs_column_judges_the_ports_below_the_root_port(
    root: object, upstream: object, downstream: object, word: str
) -> None:
    chain = ("0000:10:01.0", "0000:11:00.0", "0000:12:00.0")
    kinds = ("root-port", "upstream", "downstream")
    told = [
        (at, kind, acs)
        for at, kind, acs in zip(chain, kinds, (root, upstream, downstream), strict=True)
        if acs is not None
    ]
    ports = [
        port(at, *chain[:depth], kind=kind, config=change(config(), port_type=kind, acs_redirect=acs))
        for depth, (at, kind, acs) in enumerate(told)
    ]
    one = made_up(*ports, accelerator("0000:13:00.0", *(at for at, _, _ in told)))
    stream = io.StringIO()
    screen = Screen(stream, width=250, ascii=True, wide=True)
    draw_topology(screen, Topology(one, (), flatten(one)["facts"], seen("made-up")))
    head, row = (
        next(line for line in stream.getvalue().splitlines() if line.startswith(name)) for name in ("ACCEL", "X0")
    )
    assert row[head.index("ACS") : head.index("HOPS")].strip() == word


def test_interfaces_that_were_not_read_are_no_empty_cell() -> None:
    port_, card = "0000:50:01.0", nic("0000:51:00.0", "0000:50:01.0", node=0)
    denied = {"interfaces": unknown("/sys/bus/pci/devices/0000:51:00.0/infiniband", "permission denied")}
    for listed, cell in ((denied, "?"), ({}, "-")):
        one = made_up(*made_up().devices, port(port_, node=0), change(card, listed=listed, interfaces=()))
        stream = io.StringIO()
        flat = flatten(one)
        draw_topology(Screen(stream, width=120, ascii=True), Topology(one, (), flat["facts"], seen("made-up")))
        (row,) = [line for line in stream.getvalue().splitlines() if line.startswith("N0 ")]
        assert row.split()[-2] == cell
        at = f"/devices/{len(one.devices) - 1}/interfaces"
        assert flat["facts"].get(at, {}).get("reason") == ("permission denied" if listed else None)


def test_the_bits_of_virtual_functions_are_not_those_of_their_uplink() -> None:
    on, off = ({"ido_request": True, "ido_completion": True}, {"ido_request": False, "ido_completion": False})
    pair = paired(on, off)
    virtual = replace(pair, devices=tuple(change(d, is_vf=d.address == "0000:24:00.0") for d in pair.devices))
    for one, bits in ((pair, "mixed / mixed"), (virtual, "on / on")):
        stream = io.StringIO()
        draw_topology(Screen(stream, width=120, ascii=True), Topology(one, (), flatten(one)["facts"], seen("made-up")))
        (row,) = [line for line in stream.getvalue().splitlines() if line.startswith("U0")]
        assert f" {bits} " in row
        assert "unread" not in row


@pytest.mark.parametrize(("gt_s", "word"), [(64.0, "6x16"), (128.0, "7x16")])
def test_every_speed_that_is_decoded_has_a_generation(gt_s: float, word: str) -> None:
    assert link_text(link(gt_s=gt_s, now=16, most=16, most_gt_s=gt_s)) == f"{word} / {word}"
    assert set(_GENERATIONS) == set(SPEEDS_GT_S)

"""Shared links by shape and by numbers; every tree here is a path and a link a function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pci_trees import LinkSpec, add_function

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import Link, PciDevice, Uplink
from hicachectl.tuning.host.pci import read_devices
from hicachectl.tuning.host.pcie_caps import unread_config
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.uplinks import find_uplinks, is_unidentified, link_bytes_per_s

GEN4X16, GEN4X8, GEN4X4 = (16.0, 16, 16.0, 16), (16.0, 8, 16.0, 8), (16.0, 4, 16.0, 4)
X16 = link_bytes_per_s(16.0, 16)
NOTHING: Fact[object] = unknown("", "not in this test")


def function(
    path: str,
    link: LinkSpec | None = GEN4X16,
    *,
    kind: str = "accelerator",
    node: int | None = 0,
    class_code: str = "120000",
) -> PciDevice:
    """A function at "root/port/.../address"; words are short names in place of addresses."""
    *above, address = path.split("/")
    ends = (known(v, "link") for v in link) if link else (unknown("link", "no such file") for _ in range(4))
    speed_now, width_now, speed_max, width_max = ends
    n: Fact[object] = NOTHING
    return PciDevice(
        address=address, class_code=known(class_code, "class"), vendor=n, device=n, revision=n, subsystem=n, name=n, kind=kind, kind_rule="",
        driver=n, node=unknown("numa_node", "firmware gives no node") if node is None else known(node, "numa_node"), node_fallback=n,
        local_cpus=n, iommu_group=n, iommu_domain=n, sriov_vfs=n, is_vf=known(False, ""), bar_bytes=n, runtime_status=n, aer={},
        link=Link(speed_now, speed_max, width_now, width_max), config=unread_config("config", "64 bytes"), path=tuple(above),
        parent=above[-1] if above else None,
    )  # type: ignore[arg-type]  # fmt: skip


def port(path: str, link: LinkSpec | None = GEN4X16, node: int | None = 0) -> PciDevice:
    return function(path, link, kind="bridge", node=node, class_code="060400")


def switch(root: str, *below: PciDevice, link: LinkSpec | None = GEN4X16) -> list[PciDevice]:
    """A root port, a switch on it, a downstream port for each function of `below` (paths "ROOT/up/dN/...")."""
    downs = [port(f"{root}/{root}u/{one.parent}", one_link(one)) for one in below]
    return [port(root, link), port(f"{root}/{root}u", link), *downs, *below]


def one_link(one: PciDevice) -> LinkSpec | None:
    link = one.link
    if link.width_now.value is None or link.speed_now_gt_s.value is None:
        return None
    return (link.speed_now_gt_s.value, link.width_now.value, link.speed_max_gt_s.value or 0, link.width_max.value or 0)


def only(devices: list[PciDevice]) -> Uplink:
    (uplink,) = find_uplinks(devices)
    return uplink


# -- link math -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gt_s", "width", "gb_per_s"),
    [
        (2.5, 1, 0.25),
        (5.0, 16, 8.0),
        (8.0, 16, 15.753846),
        (16.0, 8, 15.753846),
        (32.0, 16, 63.015385),
        (64.0, 16, 121.0),
    ],
)
def test_link_math_takes_off_the_encoding_of_each_generation(gt_s: float, width: int, gb_per_s: float) -> None:
    assert link_bytes_per_s(gt_s, width) == pytest.approx(gb_per_s * 1e9, rel=1e-6)


# -- shapes --------------------------------------------------------------------------------------------------------------


def test_two_accelerators_behind_one_switch_share_its_uplink() -> None:
    found = only(switch("r", function("r/ru/d0/a0"), function("r/ru/d1/a1")))
    assert (found.id, found.port, found.root_port) == ("U0", "ru", "r")
    assert found.shared_by == found.accelerators == ("a0", "a1")
    assert found.capacity_bytes_per_s.value == pytest.approx(X16)
    assert found.busy_bytes_per_s.value == pytest.approx(X16 / 2)
    assert found.oversubscription.value == pytest.approx(2.0)
    assert {k: v.value for k, v in found.solo_bytes_per_s.items()} == {
        "a0": pytest.approx(X16),
        "a1": pytest.approx(X16),
    }


def test_devices_on_two_root_ports_are_no_pair() -> None:
    found = find_uplinks(
        [port("03.1", GEN4X8), function("03.1/0a", GEN4X8), port("03.2", GEN4X8), function("03.2/0b", GEN4X8)]
    )
    assert [(one.port, one.root_port, one.shared_by) for one in found] == [
        ("03.1", "03.1", ("0a",)),
        ("03.2", "03.2", ("0b",)),
    ]
    assert [one.oversubscription.value for one in found] == [1.0, 1.0]


def test_a_nic_below_the_same_port_counts() -> None:
    found = only(
        switch(
            "r",
            function("r/ru/d0/nic", kind="rdma-nic"),
            function("r/ru/d1/a0"),
            function("r/ru/d2/disk", GEN4X4, kind="nvme"),
        )
    )
    assert found.shared_by == ("a0", "nic", "disk")
    assert found.accelerators == ("a0",)
    assert found.busy_bytes_per_s.value == pytest.approx(
        X16 * 6 / 16
    )  # the disk takes its 4 lanes, the others halve the rest
    assert found.oversubscription.value == pytest.approx(36 / 16)


def test_functions_of_one_card_count_its_link_once() -> None:
    two_ports = [function("r/ru/d0/nic.0", kind="nic"), function("r/ru/d0/nic.1", kind="nic")]
    devices = switch("r", function("r/ru/d1/a0"), two_ports[0])
    found = only([*devices, two_ports[1]])
    assert found.shared_by == ("a0", "nic.0", "nic.1")
    assert found.oversubscription.value == pytest.approx(2.0)
    assert found.busy_bytes_per_s.value == pytest.approx(X16 / 2)


def test_an_audio_function_and_a_bridge_move_no_data() -> None:
    audio = function("r/a0.1", kind="other", class_code="040300")
    found = only([port("r"), function("r/a0"), audio])
    assert found.shared_by == ("a0",)


def test_storage_that_is_no_nvme_moves_data() -> None:
    raid = function("r/ru/d1/raid", GEN4X8, kind="other", class_code="010400")
    assert only(switch("r", function("r/ru/d0/a0"), raid)).shared_by == ("a0", "raid")


def test_of_two_switch_levels_the_one_that_leaves_least_is_named() -> None:
    devices = [port("r"), port("r/top")]
    for side in "xy":
        base = f"r/top/t{side}"
        devices += [port(base), port(f"{base}/{side}u")]
        devices += [port(f"{base}/{side}u/{side}{i}") for i in range(2)]
        devices += [function(f"{base}/{side}u/{side}{i}/{side}a{i}") for i in range(2)]
    found = only(devices)
    assert (found.port, len(found.accelerators)) == ("top", 4)
    assert found.busy_bytes_per_s.value == pytest.approx(X16 / 4)


def test_a_narrow_lower_switch_is_its_own_groups_uplink_and_leaves_the_rest_to_others() -> None:
    base = "r/top/t0"
    devices = [port("r"), port("r/top"), port(base, GEN4X4), port(f"{base}/low", GEN4X4)]
    devices += [port(f"{base}/low/l{i}") for i in range(2)] + [function(f"{base}/low/l{i}/a{i}") for i in range(2)]
    devices += [port("r/top/t1"), function("r/top/t1/a2")]
    low, top = sorted(find_uplinks(devices), key=lambda one: one.port)
    assert (low.port, low.accelerators) == ("low", ("a0", "a1"))
    assert low.busy_bytes_per_s.value == pytest.approx(X16 * 2 / 16)
    assert (top.port, top.accelerators, top.shared_by) == ("top", ("a2",), ("a0", "a1", "a2"))
    assert top.busy_bytes_per_s.value == pytest.approx(X16 * 12 / 16)


def test_an_uplink_as_wide_as_its_members_together_is_still_the_one_they_share() -> None:
    found = only(switch("r", function("r/ru/d0/a0", GEN4X8), function("r/ru/d1/a1", GEN4X8)))
    assert (found.port, found.oversubscription.value) == ("ru", pytest.approx(1.0))


def test_an_uplink_wider_than_its_members_limits_none_of_them() -> None:
    found = find_uplinks(switch("r", function("r/ru/d0/a0", GEN4X4), function("r/ru/d1/a1", GEN4X4)))
    assert [(one.port, one.shared_by) for one in found] == [("d0", ("a0",)), ("d1", ("a1",))]


@pytest.mark.parametrize(
    ("class_code", "shares"), [(None, True), ("078000", True), ("040300", False), ("0c0330", False)]
)
def test_a_function_that_may_be_an_accelerator_shares_while_its_ids_were_not_read(
    class_code: str | None, shares: bool
) -> None:
    one = function("r/ru/d1/x", kind="other", class_code="078000")  # without ids; Kunlun is of this class
    stranger = replace(
        one, class_code=known(class_code, "class") if class_code else unknown("class", "permission denied")
    )
    found = only(switch("r", function("r/ru/d0/a0"), stranger))
    assert found.shared_by == (("a0", "x") if shares else ("a0",))
    assert found.busy_bytes_per_s.value == pytest.approx(X16 / (2 if shares else 1))
    assert is_unidentified(stranger) is shares
    named = replace(stranger, class_code=known("078000", "class"), vendor=known("1d22", "v"), device=known("0001", "d"))
    assert not is_unidentified(named)


def test_a_switch_whose_class_was_not_read_is_still_a_switch() -> None:
    devices = switch("r", function("r/ru/d0/a0"), function("r/ru/d1/a1"))
    classless = [
        replace(d, kind="other", class_code=unknown("class", "x")) if d.kind == "bridge" else d for d in devices
    ]
    assert [(u.port, u.shared_by, u.busy_bytes_per_s.value) for u in find_uplinks(classless)] == [
        (u.port, u.shared_by, u.busy_bytes_per_s.value) for u in find_uplinks(devices)
    ]


def test_an_accelerator_alone_behind_a_switch_has_the_switchs_link() -> None:
    assert only(switch("r", function("r/ru/d0/a0"))).port == "ru"


def test_an_integrated_accelerator_or_one_without_a_recorded_tree_has_no_uplink() -> None:
    assert find_uplinks([function("a0")]) == ()


def test_nics_alone_make_no_uplink() -> None:
    assert find_uplinks([port("r"), function("r/n", kind="nic")]) == ()


# -- what the ends say ---------------------------------------------------------------------------------------------------


def test_an_idle_link_is_counted_at_the_speed_it_takes_under_load() -> None:
    idle = (2.5, 16, 16.0, 16)
    found = only(switch("r", function("r/ru/d0/a0", idle), function("r/ru/d1/a1", idle)))
    assert (found.port, found.oversubscription.value) == ("ru", pytest.approx(2.0))
    own = only([port("r", idle), function("r/a0", idle)])
    assert own.capacity_bytes_per_s.value == pytest.approx(X16)
    assert own.present_bytes_per_s.value == pytest.approx(link_bytes_per_s(2.5, 16))
    assert own.link.speed_now_gt_s.value == 2.5


def test_lanes_that_are_missing_now_are_missing_under_load() -> None:
    found = only([port("r"), function("r/a0", (16.0, 8, 16.0, 16))])
    assert found.capacity_bytes_per_s.value == pytest.approx(X16 / 2)
    assert (found.link.width_now.value, found.link.width_max.value) == (8, 16)


def test_a_wide_card_in_a_narrow_slot_is_no_fault() -> None:
    found = only([port("r", (16.0, 8, 16.0, 8)), function("r/a0", (16.0, 8, 32.0, 16))])
    assert (found.link.width_max.value, found.link.speed_max_gt_s.value) == (8, 16.0)


def test_a_made_up_port_of_a_virtual_machine_is_not_believed() -> None:
    found = only([port("r", (2.5, 1, 2.5, 1)), function("r/a0")])
    assert found.capacity_bytes_per_s.value == pytest.approx(X16)


def test_a_card_that_does_not_tell_is_known_by_its_port() -> None:
    assert only([port("r"), function("r/a0", None)]).capacity_bytes_per_s.value == pytest.approx(X16)


IDLE = (8.0, 16, 32.0, 16)


def without_top(one: PciDevice, *names: str) -> PciDevice:
    """The same function, of which what its link can do at most was not read."""
    lost = {name: unknown(f"{one.address}/{name}", "permission denied") for name in names or ("speed_max_gt_s",)}
    return replace(one, link=replace(one.link, **lost))


@pytest.mark.parametrize("which", ["port", "card"])
def test_an_end_whose_top_speed_was_not_read_is_not_taken_to_have_the_other_ends(which: str) -> None:
    root, card = port("r", IDLE), function("r/a0", IDLE)
    devices = [without_top(one) if name == which else one for name, one in (("port", root), ("card", card))]
    found = only(devices)
    solo = found.solo_bytes_per_s["a0"]
    for fact in (
        found.capacity_bytes_per_s,
        found.link.speed_max_gt_s,
        found.busy_bytes_per_s,
        found.oversubscription,
        solo,
    ):
        assert fact.value is None
        assert fact.reason == "at most 32 GT/s: the other end's top speed is not known (permission denied)"
    assert found.present_bytes_per_s.value == pytest.approx(link_bytes_per_s(8.0, 16))


def test_a_link_that_runs_at_the_top_speed_of_one_end_needs_no_word_of_the_other() -> None:
    """What runs now both ends can do: the one that was read allows no more."""
    found = only([without_top(port("r", (32.0, 16, 32.0, 16))), function("r/a0", (32.0, 16, 32.0, 16))])
    assert found.capacity_bytes_per_s.value == pytest.approx(link_bytes_per_s(32.0, 16))


def test_the_speed_that_runs_now_is_not_taken_for_the_top_speed_of_ends_that_do_not_tell() -> None:
    found = only([without_top(port("r")), without_top(function("r/a0"))])
    assert (found.capacity_bytes_per_s.value, found.capacity_bytes_per_s.reason) == (None, "permission denied")
    assert found.present_bytes_per_s.value == pytest.approx(X16)


def test_a_port_that_is_not_listed_is_an_end_that_was_not_read() -> None:
    found = only([function("r/a0", IDLE)])
    assert found.capacity_bytes_per_s.value is None
    assert "the other end's top speed is not known (r is not listed)" in (found.capacity_bytes_per_s.reason or "")
    assert only([function("r/a0")]).capacity_bytes_per_s.value == pytest.approx(X16)


def test_ends_that_both_say_less_than_what_runs_now_are_not_believed() -> None:
    found = only([port("r", (2.5, 1, 2.5, 1)), function("r/a0", (16.0, 16, 8.0, 16))])
    assert found.capacity_bytes_per_s.value is None
    assert found.capacity_bytes_per_s.reason == "8 and 2.5 GT/s are below 16 GT/s, which runs now"


def test_the_width_both_ends_have_is_not_that_of_the_one_that_was_read() -> None:
    half = (16.0, 8, 16.0, 16)
    found = only([without_top(port("r", half), "width_max"), function("r/a0", half)])
    assert found.link.width_max.reason == "at most x16: the other end's top width is not known (permission denied)"
    assert found.capacity_bytes_per_s.value == pytest.approx(X16 / 2)  # missing lanes stay missing


def test_what_is_left_for_each_is_not_known_while_a_member_has_a_link_of_unknown_capacity() -> None:
    nic = without_top(function("r/ru/d1/nic", IDLE, kind="nic"))
    found = only(switch("r", function("r/ru/d0/a0"), nic))
    assert found.capacity_bytes_per_s.value == pytest.approx(X16)
    assert (found.busy_bytes_per_s.value, found.oversubscription.value) == (None, None)
    assert found.busy_bytes_per_s.reason == "the capacity of a link below r is not known"


def test_without_any_link_files_the_shape_still_groups_and_no_number_is_made_up() -> None:
    found = only(switch("r", function("r/ru/d0/a0", None), function("r/ru/d1/a1", None), link=None))
    assert (found.port, found.accelerators) == ("ru", ("a0", "a1"))
    for fact in (
        found.capacity_bytes_per_s,
        found.busy_bytes_per_s,
        found.oversubscription,
        *found.solo_bytes_per_s.values(),
    ):
        assert fact.value is None and fact.reason == "no such file"


def test_the_node_is_the_ports_or_else_the_one_all_members_have() -> None:
    assert only([port("r", node=3), function("r/a0", node=1)]).node.value == 3
    assert only([port("r", node=None), function("r/a0", node=1)]).node.value == 1
    devices = [port("r", node=None), port("r/u", node=None), port("r/u/d0"), port("r/u/d1")]
    mixed = only([*devices, function("r/u/d0/a0", node=1), function("r/u/d1/a1", node=2)])
    assert (mixed.node.value, mixed.node.reason) == (None, "members are on different nodes")


# -- from files ----------------------------------------------------------------------------------------------------------


def test_the_x570_switch_of_case_12_from_a_tree_on_disk(tmp_path: Path) -> None:
    """topologies/cases/12: 01.1 leads to a switch; the two GPUs hang on root ports 03.1 and 03.2."""
    bus = "pci0000:00"
    for at in ("01.1", "03.1", "03.2"):
        add_function(tmp_path, f"{bus}/0000:00:{at}", class_code="0x060400", ids="1022:1453", link=GEN4X8)
    add_function(tmp_path, f"{bus}/0000:00:01.1/0000:01:00.0", class_code="0x060400", ids="1022:57ad", link=GEN4X4)
    for slot in ("00", "01", "04", "08", "09", "0a"):
        add_function(
            tmp_path, f"{bus}/0000:00:01.1/0000:01:00.0/0000:02:{slot}.0", class_code="0x060400", ids="1022:57a3"
        )
    for name, gpu in (("03.1", "0a"), ("03.2", "0b")):
        at = f"{bus}/0000:00:{name}/0000:{gpu}:00"
        add_function(tmp_path, f"{at}.0", class_code="0x030000", ids="10de:2204", link=GEN4X8)
        add_function(tmp_path, f"{at}.1", class_code="0x040300", ids="10de:1aef", link=GEN4X8)
    found = find_uplinks(read_devices(HostRoot(tmp_path, name="t")))
    assert [(one.id, one.root_port, one.shared_by) for one in found] == [
        ("U0", "0000:00:03.1", ("0000:0a:00.0",)),
        ("U1", "0000:00:03.2", ("0000:0b:00.0",)),
    ]


# -- laws ----------------------------------------------------------------------------------------------------------------

WIDTHS = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def trees(draw: st.DrawFn) -> list[PciDevice]:
    devices: list[PciDevice] = []

    def grow(path: str, depth: int) -> None:
        name = path.rpartition("/")[2]
        width = draw(WIDTHS)
        link = (16.0, width, 16.0, width)
        devices.append(port(path, link))
        if depth and draw(st.booleans()):
            devices.append(port(f"{path}/{name}u", link))
            for index in range(draw(st.integers(1, 3))):
                grow(f"{path}/{name}u/{name}{index}", depth - 1)
        else:
            kind = draw(st.sampled_from(["accelerator", "accelerator", "nic"]))
            devices.append(function(f"{path}/{name}x", link, kind=kind))

    for index in range(draw(st.integers(1, 2))):
        grow(f"r{index}", 2)
    return devices


@given(trees())
@settings(max_examples=150, deadline=None)
def test_every_accelerator_has_one_uplink_and_shares_never_exceed_it(devices: list[PciDevice]) -> None:
    found = find_uplinks(devices)
    listed = sorted(address for one in found for address in one.accelerators)
    assert listed == sorted(device.address for device in devices if device.kind == "accelerator")
    by_address = {device.address: device for device in devices}
    for one in found:
        capacity, busy = one.capacity_bytes_per_s.value, one.busy_bytes_per_s.value
        assert capacity is not None and busy is not None
        assert set(one.accelerators) <= set(one.shared_by)
        assert busy * len(one.accelerators) <= capacity * (1 + 1e-6)
        assert {by_address[address].path[0] for address in one.shared_by} == {one.root_port}
        for address in one.accelerators:
            solo = one.solo_bytes_per_s[address].value
            assert solo is not None and busy <= solo * (1 + 1e-6) and solo <= capacity * (1 + 1e-6)

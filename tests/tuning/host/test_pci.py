"""The reader on small trees: every file, every way it can be missing or odd."""

from __future__ import annotations

import shutil
import tarfile
import time
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pci_trees import add_function, config, link_files
from shared_data import shared_path

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import PciDevice
from hicachectl.tuning.host.pci import is_pci_address, parse_link_speed, parse_link_width, read_devices
from hicachectl.tuning.host.pcie_caps import ASLEEP, GONE, NEEDS_ROOT
from hicachectl.tuning.host.root import HostRoot

AT = "pci0000:00/0000:00:01.0/0000:01:00.0"


def only(root: Path, *, wake: bool = False) -> PciDevice:
    (device,) = read_devices(HostRoot(root, name="t"), wake=wake)
    return device


def every_file(**more: str | bytes) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {
        "revision": "0x02", "subsystem_vendor": "0x1d22", "subsystem_device": "0x0001", "sriov_numvfs": "2", "power/runtime_status": "active",
        "resource": "0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n" + "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 12,
        "aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3", "aer_dev_nonfatal": "DLP 0\nTOTAL_ERR_NONFATAL 0", "aer_dev_fatal": "DLP 1\nTOTAL_ERR_FATAL 1",
    }  # fmt: skip
    return files | more


def facts_of(device: PciDevice) -> dict[str, Fact[object]]:
    """Every fact of a device by dotted name."""
    found: dict[str, Fact[object]] = {f"aer.{kind}": fact for kind, fact in device.aer.items()}
    for owner, value in (("", device), ("link.", device.link), ("config.", device.config)):
        for field in fields(value):
            if isinstance(getattr(value, field.name), Fact):
                found[owner + field.name] = getattr(value, field.name)
    return found


# -- addresses and link files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("0000:00:00.0", True), ("10000:00:04.0", True), ("1a2b3c4d:ff:1f.7", True), ("000:00:00.0", False), ("123456789:00:00.0", False),
        ("0000:00:20.0", False), ("0000:00:00.8", False), ("0000:0:00.0", False), ("0000:00:00", False), ("0000:0g:00.0", False),
        ("0000:00:00.0:pcie001", False), ("", False), (":::", False), ("0000:AA:00.0", False),
    ],
)  # fmt: skip
def test_an_address_has_a_domain_of_four_to_eight_digits(text: str, is_one: bool) -> None:
    assert is_pci_address(text) is is_one


@pytest.mark.parametrize(
    ("text", "gt_s"),
    [
        ("8 GT/s", 8.0), ("8.0 GT/s PCIe", 8.0), ("2.5 GT/s PCIe", 2.5), ("2.5 GT/s", 2.5), ("64.0 GT/s PCIe", 64.0), ("Unknown", None),
        ("Unknown speed", None), ("", None), ("nan GT/s", None), ("9 GT/s", None), ("8.0", None), ("8.0 GB/s", None),
    ],
)  # fmt: skip
def test_link_speeds_in_every_wording(text: str, gt_s: float | None) -> None:
    assert parse_link_speed(text) == gt_s


@pytest.mark.parametrize(
    ("text", "lanes"),
    [("16", 16), ("1", 1), ("12", 12), ("0", None), ("255", None), ("63", None), ("x8", None), ("-8", None)],
)
def test_link_widths_0_and_255_are_unknown(text: str, lanes: int | None) -> None:
    assert parse_link_width(text) == lanes


def test_where_sysfs_has_no_link_the_registers_speak(tmp_path: Path) -> None:
    data = config(lnkcap=0x104, lnksta=0x83, lnkcap2=0x1E)
    odd = {"current_link_speed": "Unknown", "current_link_width": "0", "max_link_width": "255"}
    add_function(tmp_path, AT, data=data, files=dict(odd))
    link = only(tmp_path).link
    assert (link.speed_now_gt_s.value, link.width_now.value, link.speed_max_gt_s.value, link.width_max.value) == (
        8.0,
        8,
        16.0,
        16,
    )
    assert link.width_now.source.endswith("config CAP_EXP+12")


def test_sysfs_goes_before_the_registers(tmp_path: Path) -> None:
    add_function(tmp_path, AT, link=(32.0, 16, 32.0, 16), data=config(lnksta=0x83))
    link = only(tmp_path).link
    assert (link.speed_now_gt_s.value, link.width_now.value) == (32.0, 16)


def test_an_odd_link_without_registers_is_unknown_with_what_was_read(tmp_path: Path) -> None:
    add_function(
        tmp_path, AT, data=config(size=64), files={"current_link_speed": "Unknown", "current_link_width": "255"}
    )
    link = only(tmp_path).link
    assert link.speed_now_gt_s.reason == "not known to the kernel: 'Unknown'"
    assert link.width_now.reason == "not known to the kernel: '255'"
    assert link.width_max.reason == "no such file"


# -- config space --------------------------------------------------------------------------------------------------------


def test_64_bytes_of_config_are_unknown_for_want_of_root_and_still_name_the_revision(tmp_path: Path) -> None:
    add_function(tmp_path, AT, class_code="0x078000", data=config(size=64, devctl2=0x300))
    device = only(tmp_path)
    assert device.config.ido_request.reason == NEEDS_ROOT
    assert device.config.readable_bytes.value == 64
    assert (device.revision.value, device.subsystem.value) == ("02", "1d22:0001")
    assert device.kind_rule == "id 1d22:3684 (Kunlun 2)"


def test_a_device_that_is_gone_has_no_values_and_keeps_its_ids(tmp_path: Path) -> None:
    add_function(tmp_path, AT, data=b"\xff" * 4096)
    device = only(tmp_path)
    assert device.config.ido_request.reason == GONE
    assert device.vendor.value == "1d22"
    assert device.revision.reason == "no such file"


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_sleeping_device_is_left_alone_unless_woken(tmp_path: Path, status: str) -> None:
    files = dict(every_file()) | {"power/runtime_status": status}
    add_function(tmp_path, AT, link=(16.0, 16, 16.0, 16), data=config(devctl2=0x100), files=files)
    root = HostRoot(tmp_path, name="t")
    (device,) = read_devices(root)
    assert {device.config.ido_request.reason, device.link.width_now.reason, device.config.readable_bytes.reason} == {
        ASLEEP
    }
    read = {path.rpartition("/")[2] for path in root.touched.files}
    assert read.isdisjoint({"config", *link_files((1, 1, 1, 1))})
    assert (device.revision.value, device.runtime_status.value) == ("02", status)
    assert only(tmp_path, wake=True).config.ido_request.value is True


@pytest.mark.parametrize(
    ("class_code", "ids", "has"),
    [("0x060400", "10b5:8747", True), ("0x020000", "15b3:1021", True), ("0x0c0330", "8086:1111", False)],
)
def test_access_control_is_looked_for_on_ports_and_on_what_moves_data(
    tmp_path: Path, class_code: str, ids: str, has: bool
) -> None:
    add_function(tmp_path, AT, class_code=class_code, ids=ids, data=config(acs=0x1D))
    found = only(tmp_path).config
    assert found.acs_control.value == (0x1D if has else None)
    assert found.readable_bytes.value == (4096 if has else 256)
    assert found.ido_request.value is False


def test_config_of_a_function_without_extended_space_stays_256_bytes(tmp_path: Path) -> None:
    add_function(tmp_path, AT, data=config(size=256, acs=0x1D))
    found = only(tmp_path).config
    assert found.readable_bytes.value == 256
    assert "extended" in (found.acs_control.reason or "")


def test_nothing_is_ever_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    add_function(tmp_path, AT, data=config(acs=0), files=every_file())
    flags: list[int] = []
    real = os.open

    def watched(path: object, flag: int, *args: object, **kwargs: object) -> int:
        flags.append(flag)
        return real(path, flag, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watched)
    only(tmp_path)
    assert flags and not any(flag & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for flag in flags)


# -- place in the tree ---------------------------------------------------------------------------------------------------


def test_the_path_runs_from_the_root_port_down(tmp_path: Path) -> None:
    add_function(tmp_path, "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0")
    device = only(tmp_path)
    assert device.path == ("0000:17:00.0", "0000:18:00.0", "0000:19:04.0")
    assert (device.parent, device.host_bridge.value) == ("0000:19:04.0", "0000:17")


def test_a_function_on_the_root_bus_has_no_parent(tmp_path: Path) -> None:
    add_function(tmp_path, "pci10000:00/10000:00:04.0")
    device = only(tmp_path)
    assert (device.path, device.parent, device.host_bridge.value) == ((), None, "10000:00")


def test_behind_a_volume_management_device_a_new_root_bus_starts(tmp_path: Path) -> None:
    add_function(tmp_path, "pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0")
    device = only(tmp_path)
    assert (device.path, device.host_bridge.value) == (("10000:00:02.0",), "10000:00")


def test_a_recorded_folder_in_place_of_the_link_leaves_the_tree_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0035:05:00.0"
    folder.mkdir(parents=True)
    (folder / "class").write_text("0x030200\n")
    device = only(tmp_path)
    assert (device.path, device.parent, device.kind) == ((), None, "accelerator")
    assert device.vendor.reason == "no such file"
    assert not device.host_bridge.is_known


def test_functions_come_in_the_order_of_domains_as_numbers(tmp_path: Path) -> None:
    for address in ("10000:00:00.0", "0000:02:00.1", "0000:02:00.0", "1000:00:00.0"):
        add_function(tmp_path, f"pci{address[:-5]}/{address}")
    (tmp_path / "sys/bus/pci/devices/not-an-address").mkdir()
    found = [device.address for device in read_devices(HostRoot(tmp_path, name="t"))]
    assert found == ["0000:02:00.0", "0000:02:00.1", "1000:00:00.0", "10000:00:00.0"]


def test_a_host_without_the_folder_has_no_functions(tmp_path: Path) -> None:
    assert read_devices(HostRoot(tmp_path, name="t")) == ()


# -- node ----------------------------------------------------------------------------------------------------------------


def add_nodes(root: Path, cpus: dict[int, str]) -> None:
    for node, listed in cpus.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed + "\n")


def test_node_minus_1_is_unknown_with_the_nodes_of_the_local_cpus(tmp_path: Path) -> None:
    add_nodes(tmp_path, {0: "0-1", 8: "2-3", 250: ""})
    add_function(tmp_path, AT, node=-1, files={"local_cpulist": "2-3"})
    device = only(tmp_path)
    assert device.node.value is None and device.node.reason == "firmware gives no node: '-1'"
    assert device.node_fallback.value == (8,)
    assert device.local_cpus.value == (2, 3)


def test_local_cpus_of_every_node_say_nothing_about_one(tmp_path: Path) -> None:
    add_nodes(tmp_path, {0: "0-1", 1: "2-3"})
    add_function(tmp_path, AT, node=-1)
    assert only(tmp_path).node_fallback.value == (0, 1)


def test_a_mask_serves_where_the_list_is_missing(tmp_path: Path) -> None:
    add_nodes(tmp_path, {0: "0-1", 1: "2-3"})
    folder = add_function(tmp_path, AT, node=None, files={"local_cpus": "00000000,0000000c"})
    (folder / "local_cpulist").unlink()
    device = only(tmp_path)
    assert (device.node.reason, device.node_fallback.value) == ("no such file", (1,))


def test_a_known_node_needs_no_fallback(tmp_path: Path) -> None:
    add_function(tmp_path, AT, node=3)
    device = only(tmp_path)
    assert (device.node.value, device.node_fallback.value) == (3, None)


@pytest.mark.parametrize("text", ["0-99999999999", "garbage", ""])
def test_local_cpus_that_make_no_sense_are_no_cpus_at_all(tmp_path: Path, text: str) -> None:
    add_nodes(tmp_path, {0: "0-1"})
    add_function(tmp_path, AT, node=-1, files={"local_cpulist": text})
    assert not only(tmp_path).node_fallback.is_known


# -- the other files -----------------------------------------------------------------------------------------------------


def test_every_file_becomes_its_fact(tmp_path: Path) -> None:
    folder = add_function(tmp_path, AT, link=(16.0, 8, 32.0, 16), data=config(devctl2=0x100), files=every_file())
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/kunlun")
    (folder / "iommu_group").symlink_to("../../../../kernel/iommu_groups/12")
    group = tmp_path / "sys/kernel/iommu_groups/12"
    group.mkdir(parents=True)
    (group / "type").write_text("DMA-FQ\n")
    device = only(tmp_path)
    assert (device.class_code.value, device.vendor.value, device.device.value) == ("120000", "1d22", "3684")
    assert (device.driver.value, device.iommu_group.value, device.iommu_domain.value) == ("kunlun", "12", "DMA-FQ")
    assert (device.sriov_vfs.value, device.is_vf.value, device.bar_bytes.value) == (2, False, 1 << 35)
    assert {kind: fact.value for kind, fact in device.aer.items()} == {"correctable": 3, "nonfatal": 0, "fatal": 1}
    assert (device.link.width_now.value, device.link.width_max.value) == (8, 16)
    assert device.config.ido_request.value is True


def test_a_virtual_function_names_its_physical_one(tmp_path: Path) -> None:
    folder = add_function(tmp_path, AT)
    (folder / "physfn").symlink_to("../0000:01:00.7")
    device = only(tmp_path)
    assert (device.is_vf.value, device.physical_function.value) == (True, "0000:01:00.7")


@pytest.mark.parametrize(
    ("n_bytes", "readable", "reason"),
    [
        (64, 64, NEEDS_ROOT),
        (256, 256, "256 bytes of config were read: no extended space, the file ends there"),
        (259, 256, "256 bytes of config were read: no extended space, the file ends there"),
        (260, 260, "config ends after 260 bytes, within its extended capabilities"),
        (0x148, 260, "config ends after 260 bytes, within its extended capabilities"),
        (0x14A, 0x14A, "config ends after 330 bytes, within its extended capabilities"),
        (0x14C, 0x14C, "config ends after 332 bytes, within its extended capabilities"),
        (0x14E, 0x14E, "config ends after 334 bytes, within its extended capabilities"),
        (0x150, 4096, None),
    ],
)
def test_a_config_file_that_ends_early_tells_nothing_of_access_control(
    n_bytes: int, readable: int, reason: str | None, tmp_path: Path
) -> None:
    folder = add_function(tmp_path, AT)
    (folder / "config").write_bytes(config(acs=0x1D)[:n_bytes])
    space = only(tmp_path).config
    assert (space.readable_bytes.value, space.acs_control.reason, space.acs_redirect.reason) == (
        readable,
        reason,
        reason,
    )
    assert space.acs_control.value == (0x1D if reason is None else None)


class Leaving(HostRoot):
    """A host from whose bus a device goes after so many reads of its config: all ones, or an error."""

    n_reads, ones = 0, True

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        self.n_reads -= 1
        if self.n_reads >= 0:
            return super().piece(path, offset, n_bytes)
        return known(b"\xff" * n_bytes, path) if self.ones else unknown(path, "No such device")


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("acs", [None, 0x1D])
@pytest.mark.parametrize("n_reads", range(4))
def test_a_device_that_leaves_between_two_reads_does_not_lack_access_control(
    n_reads: int, acs: int | None, ones: bool, tmp_path: Path
) -> None:
    (add_function(tmp_path, AT) / "config").write_bytes(config(acs=acs))
    root = Leaving(tmp_path, name="t")
    root.n_reads, root.ones = n_reads, ones
    (device,) = read_devices(root)
    last = 1 if acs is None else 3  # headers, and the registers
    told = (device.config.acs_control.value, device.config.acs_control.reason)
    assert told == (
        (acs, None if acs else "no ACS capability") if n_reads >= last else (None, GONE if ones else "No such device")
    )
    assert device.config.ido_request.is_known


def test_access_control_behind_more_capabilities_than_are_walked_is_not_missing(tmp_path: Path) -> None:
    data = bytearray(config())
    for i in range(100):
        at, following = 0x100 + 8 * i, 0x108 + 8 * i
        data[at : at + 4] = (0x0001 | 1 << 16 | following << 20).to_bytes(4, "little")
    (add_function(tmp_path, AT) / "config").write_bytes(data)
    assert only(tmp_path).config.acs_control.reason == "extended capability list has no end within 64 steps"


class Denied(HostRoot):
    """A recording of which some folders may not be listed."""

    denied: tuple[str, ...] = ()

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return unknown(path, "permission denied") if path.endswith(self.denied) else super().names(path)


@pytest.mark.parametrize(
    ("denied", "kind", "rule", "interfaces"),
    [
        ((), "rdma-nic", "infiniband folder", ("irdma0", "eth2")),
        (("/net",), "rdma-nic", "infiniband folder", ("irdma0",)),
        (("/infiniband",), "nic", "base class 02; infiniband folder not read (permission denied)", ("eth2",)),
    ],
)
def test_interfaces_that_may_not_be_listed_are_not_none(
    denied: tuple[str, ...], kind: str, rule: str, interfaces: tuple[str, ...], tmp_path: Path
) -> None:
    folder = add_function(tmp_path, AT, class_code="0x020000", ids="8086:1592")
    for name in ("infiniband/irdma0", "net/eth2"):
        (folder / name).mkdir(parents=True)
    root = Denied(tmp_path, name="t")
    root.denied = denied
    (device,) = read_devices(root)
    assert (device.kind, device.kind_rule, device.interfaces) == (kind, rule, interfaces)
    listed = device.listed["interfaces"]
    assert (listed.value, listed.reason) == ((2, None) if not denied else (None, "permission denied"))
    assert not denied or listed.source.endswith(denied)


def test_the_ordering_bits_of_a_virtual_function_are_no_answer(tmp_path: Path) -> None:
    folder = add_function(tmp_path, AT)
    (folder / "config").write_bytes(config(devctl2=0, devctl=0))
    assert only(tmp_path).config.ido_request.value is False
    (folder / "physfn").symlink_to("../0000:01:00.7")
    space = only(tmp_path).config
    for fact in (
        space.ido_request,
        space.ido_completion,
        space.relaxed_ordering,
        space.max_payload_bytes,
        space.max_read_request_bytes,
    ):
        assert fact.value is None
        assert fact.reason == "nothing there: reserved in a virtual function, see 0000:01:00.7"
    assert space.device_control_2.value == 0


def test_an_infiniband_folder_makes_a_nic_an_rdma_nic(tmp_path: Path) -> None:
    folder = add_function(tmp_path, AT, class_code="0x020000", ids="8086:1592")
    for name in ("infiniband/irdma0", "net/eth2"):
        (folder / name).mkdir(parents=True)
    device = only(tmp_path)
    assert (device.kind, device.kind_rule, device.interfaces) == ("rdma-nic", "infiniband folder", ("irdma0", "eth2"))


def test_interfaces_and_disks_of_a_virtio_function_are_one_level_down(tmp_path: Path) -> None:
    for number, (code, name) in enumerate((("0x020000", "net/eth0"), ("0x010000", "block/vda"))):
        folder = add_function(tmp_path, f"pci0000:00/0000:00:0{number + 2}.0", class_code=code, ids="1af4:1041")
        (folder / f"virtio{number}" / name).mkdir(parents=True)
    nic, disk = read_devices(HostRoot(tmp_path, name="t"))
    assert (nic.kind, nic.interfaces) == ("nic", ("eth0",))
    assert (disk.kind, disk.interfaces) == ("other", ("vda",))


@pytest.mark.parametrize(
    ("class_code", "express", "reason"),
    [
        ("0x120000", True, "256 bytes of config were read: no extended space, the file ends there"),
        ("0x0c0330", True, "256 bytes of config were read: its extended space is not asked for: neither a port nor something that moves data"),
        ("0x120000", False, "no PCI Express capability, so no extended space was looked for"),
    ],
)  # fmt: skip
def test_why_the_extended_space_was_not_read_is_the_true_reason(
    class_code: str, express: bool, reason: str, tmp_path: Path
) -> None:
    data = config() if express else bytes(256 * [1])[:6] + bytes(250)
    whole = data[:256].ljust(256, b"\0") + (b"" if class_code == "0x120000" and express else bytes(3840))
    ids = "1d22:3684" if class_code == "0x120000" else "1b21:2142"
    add_function(tmp_path, AT, class_code=class_code, ids=ids, data=whole)
    assert only(tmp_path).config.acs_control.reason == reason


def test_an_unbound_function_says_so(tmp_path: Path) -> None:
    add_function(tmp_path, AT)
    device = only(tmp_path)
    assert (device.driver.reason, device.iommu_group.reason, device.sriov_vfs.reason) == (
        "no driver bound",
        "no IOMMU group",
        "no SR-IOV",
    )


FILES = [
    "class", "vendor", "device", "revision", "subsystem_vendor", "subsystem_device", "numa_node", "local_cpulist", "resource", "sriov_numvfs",
    "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", "power/runtime_status", "config", *link_files((1, 1, 1, 1)),
]  # fmt: skip


ELSEWHERE = {"revision", "subsystem_vendor", "subsystem_device", *link_files((1, 1, 1, 1))}
"""Files whose value the config space holds too."""


@pytest.mark.parametrize("how", ["unreadable", "missing", "empty", "garbage"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_gives_nothing_gives_no_default(tmp_path: Path, name: str, how: str) -> None:
    folder = add_function(
        tmp_path, AT, link=(16.0, 8, 32.0, 16), data=config(lnksta=0x84, lnkcap=0x105, lnkcap2=0x3E), files=every_file()
    )
    before = facts_of(only(tmp_path))
    (folder / name).unlink()
    if how == "unreadable":
        (folder / name).mkdir()  # reading a folder fails for root too
    elif how != "missing":
        (folder / name).write_bytes(b"" if how == "empty" else b"\xfe\x00 gar\nbage \xe2\x82")
    after = facts_of(only(tmp_path))
    assert after.keys() == before.keys()
    for key, fact in after.items():
        if fact.value is None:
            assert fact.reason, key
        elif (key, how) not in {("config.readable_bytes", "garbage"), ("local_cpus", "empty")}:
            assert fact.value == before[key].value, key
    if name not in ELSEWHERE and (name, how) != ("local_cpulist", "empty"):
        assert any(not fact.is_known and before[key].is_known for key, fact in after.items())


@given(st.dictionaries(st.sampled_from(FILES), st.binary(max_size=200), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_of_any_file_makes_the_reader_raise(tmp_path: Path, files: dict[str, bytes]) -> None:
    where = tmp_path / "root"
    shutil.rmtree(where, ignore_errors=True)
    add_function(where, AT, files={**every_file(), **files})
    for fact in facts_of(only(where)).values():
        assert (fact.value is None) == (fact.reason is not None)


# -- size and recorded machines ------------------------------------------------------------------------------------------


def test_500_functions_take_well_under_half_a_second(tmp_path: Path) -> None:
    data = config(acs=0)
    for bus in range(100):
        port = f"pci0000:00/0000:00:{bus // 8:02x}.{bus % 8}"
        add_function(
            tmp_path,
            port,
            class_code="0x060400",
            ids="8086:0001",
            link=(16.0, 16, 16.0, 16),
            data=data,
            files=every_file(),
        )
        for function in range(4):
            at = f"{port}/0000:{bus + 1:02x}:00.{function}"
            add_function(tmp_path, at, link=(16.0, 16, 16.0, 16), data=data, files=every_file())
    root = HostRoot(tmp_path, name="t")
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        devices = read_devices(root)
        best = min(best, time.process_time() - began)
    assert len(devices) == 500
    assert best < 0.5
    assert len(root.touched.files) <= 500 * 18


@pytest.mark.shared
def test_the_recorded_vector_engines_are_read_with_their_links(tmp_path: Path) -> None:
    archive = shared_path("topologies/hwloc/32intel64-2p8co2t+8ve.tar.bz2")
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar.getmembers() if (m.isfile() or m.isdir() or m.issym()) and "/sys/" in m.name + "/"]
        for member in wanted:
            member.mode |= 0o700
        tar.extractall(tmp_path, members=wanted, filter="tar") if hasattr(tarfile, "tar_filter") else tar.extractall(
            tmp_path, members=wanted
        )
    (root,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    devices = read_devices(HostRoot(root, name="t"))
    kinds = [device.kind for device in devices]
    assert (len(devices), kinds.count("accelerator"), kinds.count("rdma-nic"), kinds.count("nic")) == (28, 8, 2, 2)
    for device in devices:
        if device.kind == "accelerator":
            assert (device.vendor.value, device.device.value, device.node.value) == ("1bcf", "001c", 0)
            assert (device.link.speed_now_gt_s.value, device.link.width_max.value) == (8.0, 16)
            assert device.config.ido_request.reason == NEEDS_ROOT

"""What a recipe plans on each made-up host: change, same, skip or report-only, each with its reason, remedy and code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.kernel import FakeKernel, FakeRoot
from hosts.config_space import PCIE_AT
from hosts.shapes import SHAPES
from recipe_looks import KNOBS, SHIPPED, describe, edited, look, root_of, sight_of, wants

from hicachectl.errors import UsageError
from hicachectl.tuning.access import read_target, write_target
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.recipe import RecipeKnob
from hicachectl.tuning.plan import About, make_plan
from hicachectl.tuning.target import Method, Register, Target

IDO = {"pcie.ido-request": "on"}
ALL = {
    "pcie.ido-request": "on", "pcie.ido-completion": "on", "pcie.relaxed-ordering": "on", "pcie.read-request": "4096",
    "pcie.payload": "report", "pcie.ext-tag": "report", "pcie.10bit-tag": "report", "acs.p2p-redirect": "off",
    "intel.ddio-port": "report", "intel.ddio-ways": "report", "amd.lclk-dpm": "highest", "nvidia.ro": "on", "mlx.wr-ordering": "report",
    "rc.ordering-policy": "report",
}  # fmt: skip


def of(items: dict[str, Item], kind: ItemKind, knob: str = "") -> list[str]:
    return [item.id for item in items.values() if item.kind is kind and item.knob.startswith(knob)]


def with_pcie(**new: Any) -> Any:
    return lambda pcie: replace(pcie, **new)


# -- the host with four uplinks ---------------------------------------------------------------------------------------


def test_ido_is_changed_where_it_is_off_and_the_rest_is_the_same(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, IDO)
    off = ["0000:63:00.0", "0000:64:00.0", "0000:84:00.0"]
    assert of(items, ItemKind.CHANGE) == [f"pcie.ido-request@{address}" for address in off]
    assert len(of(items, ItemKind.SAME)) == 5
    one = items["pcie.ido-request@0000:63:00.0"]
    assert one.target == Target(
        Method.PCI_CONFIG, "/sys/bus/pci/devices/0000:63:00.0/config", Register(PCIE_AT + 0x28, 16, 0x0100)
    )
    assert (one.old, one.new, one.wanted) == (0x0000, 0x0100, (0x0100,))
    assert (one.uplink, one.ordering, one.probe, one.on_not_implemented) == ("U2", True, "d2h-concurrent", "skip")
    assert (one.recipe, one.recipe_sha256) == ("pcie-ido-request", SHIPPED["pcie-ido-request"].sha256)
    assert "support unknown until written" in one.notes
    assert (one.why, one.origin) == ("because", "--set pcie.ido-request")


def test_the_bit_and_the_root_complex_are_two_items_on_every_uplink(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, IDO)
    policies = [item for item in items.values() if item.knob == "rc.ordering-policy"]
    assert [(p.subject, p.uplink) for p in policies] == [
        ("0000:20:01.1", "U0"), ("0000:40:01.1", "U1"), ("0000:60:01.1", "U2"), ("0000:80:01.1", "U3"),
    ]  # fmt: skip
    for policy in policies:
        assert (policy.kind, policy.target, policy.old) == (ItemKind.REPORT, None, None)
        assert policy.reason == "no public address is known for it"
        assert policy.remedy == "hicachectl tune recipe checklist hygon"
        assert policy.code == "HC-RC-ORDER-UNKNOWN"


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
def test_the_policy_of_other_root_complexes_is_shown_too_and_not_that_of_unknown_ones(
    vendor: str, tmp_path: Path
) -> None:
    host = describe("8n8x-4up16")
    for name, n in ((vendor, 4), ("CentaurHauls", 0)):
        items = look(replace(host, cpu_vendor=name, hostname=name), tmp_path, IDO)
        assert len(of(items, ItemKind.REPORT, "rc.")) == n


def test_off_is_a_choice_as_well_and_clears_only_its_bit(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, {"pcie.ido-request": "off"})
    one = items["pcie.ido-request@0000:23:00.0"]
    assert (one.kind, one.old, one.new) == (ItemKind.CHANGE, 0x0300, 0x0200)


def test_the_read_request_size_is_given_in_bytes(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, {"pcie.read-request": "4096"})
    one = items["pcie.read-request@0000:23:00.0"]
    assert one.old == 0x2930
    assert one.new == 0x5930
    assert one.target is not None
    assert one.target.register == Register(PCIE_AT + 8, 16, 0x7000, 0x8000)
    assert set(of(look("8n8x-4up16", tmp_path, {"pcie.read-request": "512"}), ItemKind.SAME)) == set(items)


def test_a_reset_bit_that_was_read_as_1_is_not_written_back(tmp_path: Path) -> None:
    spec = describe("8n8x-4up16")
    host = root_of(spec, tmp_path)
    path = host.at("/sys/bus/pci/devices/0000:23:00.0/config")
    data = bytearray(path.read_bytes())
    data[PCIE_AT + 9] |= 0x80
    path.write_bytes(data)
    one = look(spec, tmp_path, {"pcie.read-request": "4096"})["pcie.read-request@0000:23:00.0"]
    assert one.old == 0xA930
    assert one.new == 0x5930


def test_what_must_agree_along_the_path_is_reported_with_what_it_is(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, {"pcie.payload": "256", "pcie.ext-tag": "on", "pcie.10bit-tag": "on"})
    assert of(items, ItemKind.REPORT) == list(items)
    assert items["pcie.payload@0000:23:00.0"].notes == ("it is 256 here",)
    assert items["pcie.ext-tag@0000:23:00.0"].notes == ("it is on here",)
    assert items["pcie.10bit-tag@0000:23:00.0"].notes == ("it is off here",)


def test_a_knob_nobody_asked_for_is_not_read_and_gives_no_item(tmp_path: Path) -> None:
    assert look("8n8x-4up16", tmp_path, {}) == {}
    machine = read_machine(root_of("8n8x-4up16", tmp_path))
    assert all(knob.targets(machine, wants({})) == () for knob in KNOBS.values())


def test_a_word_the_recipe_does_not_have_is_refused_with_where_it_was_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        look("8n8x-4up16", tmp_path, {"pcie.read-request": "4000"})
    assert (caught.value.where, "128, 256, 512" in caught.value.what) == ("--set pcie.read-request", True)


def test_what_is_planned_is_a_plan(tmp_path: Path) -> None:
    choices, knobs = wants(IDO), list(KNOBS.values())
    sight = sight_of(root_of("8n8x-4up16", tmp_path), choices, knobs)
    hashes = {recipe.id: recipe.sha256 for recipe in SHIPPED.values()}
    plan = make_plan(sight, choices, knobs, recipes=hashes, about=About("0", "h", "now"))
    assert plan.counts() == {"change": 3, "same": 5, "skip": 0, "report-only": 4}
    assert set(plan.fingerprint.recipes) == {"pcie-ido-request", "rc-ordering-policy"}


# -- what stands in the way -------------------------------------------------------------------------------------------


def test_without_root_each_function_is_skipped_with_its_code(tmp_path: Path) -> None:
    items = look("config64", tmp_path, {"pcie.read-request": "4096"})
    assert of(items, ItemKind.SKIP) == ["pcie.read-request@0000:21:00.0", "pcie.read-request@0000:a1:00.0"]
    for item in items.values():
        assert (item.code, item.target, item.old) == ("HC-NEED-ROOT", None, None)
        assert "64 bytes" in (item.reason or "")
        assert item.remedy == "sudo hicachectl tune plan"


def test_a_container_changes_nothing_and_knows_nothing_of_the_root_complex(tmp_path: Path) -> None:
    items = look("cpuset-container", tmp_path, IDO)
    assert of(items, ItemKind.REPORT, "pcie.") == list(items)
    assert len(items) == 8
    assert {item.code for item in items.values()} == {"HC-CONTAINER"}


def test_a_virtual_machine_reports_once_where_there_is_nothing(tmp_path: Path) -> None:
    items = look("1n0x-vm", tmp_path, ALL)
    assert of(items, ItemKind.REPORT) == [
        "acs.p2p-redirect", "amd.lclk-dpm", "intel.ddio-port", "intel.ddio-ways", "pcie.10bit-tag", "pcie.ext-tag",
        "pcie.ido-completion", "pcie.ido-request", "pcie.payload", "pcie.read-request", "pcie.relaxed-ordering",
    ]  # fmt: skip
    assert of(items, ItemKind.SKIP) == ["nvidia.ro"]
    assert "virtual machine (kvm)" in (items["pcie.ido-request"].reason or "")


def test_in_a_virtual_machine_with_cards_nothing_is_changed(tmp_path: Path) -> None:
    host = replace(describe("8n8x-4up16"), cpu_flags="fpu lm hypervisor", dmi=("QEMU", "Standard PC"))
    items = look(host, tmp_path, IDO)
    assert of(items, ItemKind.REPORT, "pcie.") == list(items)
    assert items["pcie.ido-request@0000:63:00.0"].old == 0


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_lockdown_skips_what_would_be_written_and_says_what_is_the_same(mode: str, tmp_path: Path) -> None:
    text = "none integrity confidentiality".replace(mode, f"[{mode}]")
    items = look(replace(describe("8n8x-4up16"), lockdown=text, hostname=mode), tmp_path, IDO)
    assert len(of(items, ItemKind.SKIP)) == 3
    assert len(of(items, ItemKind.SAME)) == 5
    one = items["pcie.ido-request@0000:63:00.0"]
    assert (one.reason, one.code) == (f"kernel lockdown is {mode}, which refuses such writes", "HC-UNSUPPORTED")


def test_a_kernel_without_lockdown_has_none_and_an_unreadable_one_is_not_known(tmp_path: Path) -> None:
    host = replace(describe("8n8x-4up16"), lockdown=None)
    assert len(of(look(host, tmp_path, IDO), ItemKind.CHANGE)) == 3
    odd = replace(host, lockdown="nonsense without a choice", hostname="odd")
    skipped = look(odd, tmp_path, IDO)["pcie.ido-request@0000:63:00.0"]
    assert skipped.kind is ItemKind.SKIP
    assert "lockdown is not known" in (skipped.reason or "")


def test_what_sleeps_is_left_asleep_and_what_is_gone_is_told(tmp_path: Path) -> None:
    items = look("odd-links", tmp_path, {"pcie.read-request": "4096"})
    asleep, gone = items["pcie.read-request@0000:71:00.0"], items["pcie.read-request@0000:81:00.0"]
    assert (asleep.kind, asleep.code, asleep.target) == (ItemKind.SKIP, "HC-SUSPENDED", None)
    assert (gone.kind, gone.code, gone.target) == (ItemKind.SKIP, "HC-DEVICE-GONE", None)
    assert len(of(items, ItemKind.CHANGE)) == 6


def test_a_device_that_goes_between_two_looks_is_gone(tmp_path: Path) -> None:
    choices, knobs = wants(IDO), list(KNOBS.values())
    root = root_of(describe("8n8x-4up16"), tmp_path)
    machine = read_machine(root)
    path = root.at("/sys/bus/pci/devices/0000:63:00.0/config")
    path.write_bytes(b"\xff" * 4096)
    sight = sight_of(root, choices, knobs)
    items = {i.id: i for k in knobs for i in k.items(replace(sight, machine=machine), choices)}
    assert items["pcie.ido-request@0000:63:00.0"].kind is ItemKind.SKIP
    assert items["pcie.ido-request@0000:64:00.0"].kind is ItemKind.CHANGE


def test_where_nothing_shares_the_uplink_ordering_is_left_alone(tmp_path: Path) -> None:
    for item in look("domain8", tmp_path, IDO).values():
        assert item.kind is ItemKind.SKIP
        assert "only 1 shares its uplink" in (item.reason or "")
        assert item.old == 0x0300  # read all the same


def test_a_version_1_capability_has_no_such_register(tmp_path: Path) -> None:
    host = edited(describe("8n8x-4up16"), "0000:63:00.0", pcie=with_pcie(version=1))
    items = look(host, tmp_path, {**IDO, "pcie.read-request": "4096"})
    one = items["pcie.ido-request@0000:63:00.0"]
    assert (one.kind, one.target) == (ItemKind.SKIP, None)
    assert "version 1" in (one.reason or "")
    assert items["pcie.read-request@0000:63:00.0"].kind is ItemKind.CHANGE


def test_a_virtual_function_is_skipped_and_its_physical_one_named(tmp_path: Path) -> None:
    host = edited(describe("8n8x-4up16"), "0000:64:00.0", physfn="0000:63:00.0")
    one = look(host, tmp_path, IDO)["pcie.ido-request@0000:64:00.0"]
    assert (one.kind, one.code, one.remedy) == (ItemKind.SKIP, "HC-VF", "set it on 0000:63:00.0")


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci", "nvgrace-gpu-vfio-pci", "pci-stub"])
def test_a_device_given_to_a_guest_is_only_reported(driver: str, tmp_path: Path) -> None:
    host = edited(describe("8n8x-4up16"), "0000:63:00.0", driver=driver)
    items = look(host, tmp_path, IDO)
    one = items["pcie.ido-request@0000:63:00.0"]
    assert one.kind is ItemKind.REPORT
    assert f"0000:63:00.0 is bound to {driver}" in (one.reason or "")
    assert items["pcie.ido-request@0000:64:00.0"].kind is ItemKind.CHANGE


def test_pending_transactions_are_told(tmp_path: Path) -> None:
    host = edited(describe("8n8x-4up16"), "0000:63:00.0", pcie=with_pcie(transactions_pending=True))
    one = look(host, tmp_path, IDO)["pcie.ido-request@0000:63:00.0"]
    assert any("transactions were pending" in note for note in one.notes)


def test_on_a_read_only_mount_what_differs_is_skipped_and_the_same_is_the_same(tmp_path: Path) -> None:
    root = root_of(describe("8n8x-4up16"), tmp_path)
    table = root.at("/proc/self/mountinfo")
    table.write_text(table.read_text().replace("/sys rw,nosuid", "/sys ro,nosuid"))
    items = look(describe("8n8x-4up16"), tmp_path, IDO)
    assert len(of(items, ItemKind.SKIP)) == 3
    assert len(of(items, ItemKind.SAME)) == 5
    one = items["pcie.ido-request@0000:63:00.0"]
    assert one.code == "HC-DENIED"
    assert "is on a read-only mount (/proc/self/mountinfo (/sys))" in (one.reason or "")


# -- relaxed ordering -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [("8086", "6f01"), ("8086", "2f0e"), ("1022", "1a02")])
def test_below_a_flagged_root_port_relaxed_ordering_is_refused_and_off_is_explained(
    ids: tuple[str, str], tmp_path: Path
) -> None:
    host = edited(describe("8n8x-4up16"), "0000:60:01.1", vendor=ids[0], device=ids[1])
    host = edited(host, "0000:63:00.0", pcie=with_pcie(relaxed_ordering=False))
    items = look(host, tmp_path, {"pcie.relaxed-ordering": "on"})
    for address in ("0000:63:00.0", "0000:64:00.0"):
        one = items[f"pcie.relaxed-ordering@{address}"]
        assert (one.kind, one.code) == (ItemKind.SKIP, "HC-RO-FORBIDDEN")
        assert f"0000:60:01.1 [{ids[0]}:{ids[1]}]" in (one.reason or "")
    assert "it is off here: Linux clears it" in items["pcie.relaxed-ordering@0000:63:00.0"].notes[0]
    assert "it is on here" in items["pcie.relaxed-ordering@0000:64:00.0"].notes[0]
    assert items["pcie.relaxed-ordering@0000:83:00.0"].kind is ItemKind.SAME
    off = look(host, tmp_path, {"pcie.relaxed-ordering": "off"})
    assert off["pcie.relaxed-ordering@0000:64:00.0"].kind is ItemKind.CHANGE
    assert off["pcie.relaxed-ordering@0000:63:00.0"].kind is ItemKind.SAME


# -- access control ---------------------------------------------------------------------------------------------------

ACS = {"acs.p2p-redirect": "off"}
PORTS = ["0000:06:00.0", "0000:06:04.0", "0000:06:08.0", "0000:06:0c.0"]


def test_redirection_is_cleared_only_with_the_flag(tmp_path: Path) -> None:
    items = look("2n4x-plx", tmp_path, ACS)
    assert of(items, ItemKind.SKIP) == [f"acs.p2p-redirect@{port}" for port in PORTS]
    assert {(item.code, item.old) for item in items.values()} == {("HC-ACS-REDIRECT", 0x001D)}
    assert all("--allow-isolation-loss" in (item.remedy or "") for item in items.values())
    allowed = look("2n4x-plx", tmp_path, ACS, allow_isolation_loss=True)
    assert of(allowed, ItemKind.CHANGE) == of(items, ItemKind.SKIP)
    assert {(item.old, item.new) for item in allowed.values()} == {(0x001D, 0x0001)}
    assert not any(item.ordering for item in allowed.values())


def test_a_port_that_does_not_redirect_is_the_same_without_the_flag(tmp_path: Path) -> None:
    items = look("8n8x-4up16", tmp_path, ACS)
    assert of(items, ItemKind.SAME) == list(items)
    assert len(items) == 8


def test_with_a_guests_device_in_the_group_isolation_stays(tmp_path: Path) -> None:
    host = edited(describe("2n4x-plx"), "0000:07:00.0", iommu_group=9)
    host = edited(host, "0000:06:00.0", iommu_group=9)
    host = edited(host, "0000:81:00.0", iommu_group=9, driver="vfio-pci")
    items = look(host, tmp_path, ACS, allow_isolation_loss=True)
    one = items["acs.p2p-redirect@0000:06:00.0"]
    assert one.kind is ItemKind.SKIP
    assert one.reason == "0000:81:00.0 is bound to vfio-pci and shares IOMMU group 9"
    assert items["acs.p2p-redirect@0000:06:04.0"].kind is ItemKind.CHANGE


def test_with_a_guests_device_below_the_same_root_port_isolation_stays(tmp_path: Path) -> None:
    host = edited(describe("2n4x-plx"), "0000:08:00.0", driver="vfio-pci")
    items = look(host, tmp_path, ACS, allow_isolation_loss=True)
    assert of(items, ItemKind.SKIP) == [f"acs.p2p-redirect@{port}" for port in PORTS]
    assert "0000:08:00.0" in (items[f"acs.p2p-redirect@{PORTS[0]}"].reason or "")


def test_without_extended_config_space_there_is_no_access_control(tmp_path: Path) -> None:
    host = edited(describe("2n4x-plx"), "0000:06:00.0", config_length=256)
    one = look(host, tmp_path, ACS, allow_isolation_loss=True)["acs.p2p-redirect@0000:06:00.0"]
    assert (one.kind, one.target) == (ItemKind.SKIP, None)
    assert "no extended space" in (one.reason or "")


# -- other ways in ----------------------------------------------------------------------------------------------------


def test_where_there_is_no_such_device_one_item_says_so(tmp_path: Path) -> None:
    (item,) = look("8n8x-4up16", tmp_path, {"nvidia.ro": "on"}, persist_files=True).values()
    assert (item.id, item.kind) == ("nvidia.ro", ItemKind.SKIP)
    assert item.reason == "no PCI function here is accelerator, vendor 10de"


def test_cache_registers_are_reported_where_the_cpu_is_the_recipes(tmp_path: Path) -> None:
    wanted = {"intel.ddio-port": "report", "intel.ddio-ways": "report"}
    host = edited(describe("2n4x-plx"), "0000:04:02.0", vendor="8086", device="2030")  # Skylake: family 6, model 85
    items = look(host, tmp_path, wanted)
    assert list(items) == ["intel.ddio-port@0000:04:02.0", "intel.ddio-ways@socket0", "intel.ddio-ways@socket1"]
    port = items["intel.ddio-port@0000:04:02.0"]
    assert (port.kind, port.old, port.uplink) == (ItemKind.REPORT, 0, "U0")
    second = items["intel.ddio-ways@socket1"].target
    assert second == Target(Method.MSR, "/dev/cpu/10/msr", Register(0xC8B, 64, 0x7FF))
    other = look("2n8x", tmp_path, wanted)  # Sapphire Rapids: model 143
    assert {item.reason for item in other.values()} == {"the CPU's model is 143, the recipe is for 63, 79, 85, 86"}


def test_the_hub_clock_has_a_place_for_every_socket_and_nbio(tmp_path: Path) -> None:
    host = replace(describe("8n8x-4up16"), cpu_vendor="AuthenticAMD", cpu_family=25, cpu_model=17, hostname="amd")
    items = look(host, tmp_path, {"amd.lclk-dpm": "highest"})
    assert list(items) == [f"amd.lclk-dpm@socket{s}.nbio{n}" for s in range(2) for n in range(4)]
    target = items["amd.lclk-dpm@socket1.nbio2"].target
    assert target == Target(Method.HSMP, "/dev/hsmp", Register(1 << 32 | 2 << 16 | 0x12, 16, 0x0303))
    hygon = look("8n8x-4up16", tmp_path, {"amd.lclk-dpm": "highest"})
    assert [item.reason for item in hygon.values()] == ["the CPU is HygonGenuine, the recipe is for AuthenticAMD"]


def test_a_firmware_setting_of_each_adapter_is_reported_with_the_vendors_command(tmp_path: Path) -> None:
    items = look("2n8x", tmp_path, {"mlx.wr-ordering": "report"})
    assert len(items) == 4
    for item in items.values():
        assert (item.kind, item.target) == (ItemKind.REPORT, None)
        assert "mlxconfig" in (item.remedy or "")


def test_a_vendors_recipe_nobody_asked_for_is_shown_and_written_when_asked_for(tmp_path: Path) -> None:
    vendor = replace(SHIPPED["pcie-ido-request"], id="x-order", knob="x.order", shipped=False, where="/etc/x.yaml")
    shown = look("8n8x-4up16", tmp_path, {}, recipes=[vendor])
    assert of(shown, ItemKind.REPORT) == list(shown)
    assert len(shown) == 8
    assert {(item.reason, item.origin) for item in shown.values()} == {("nobody asked for it", "/etc/x.yaml")}
    asked = look("8n8x-4up16", tmp_path, {"x.order": "on"}, recipes=[vendor])
    assert len(of(asked, ItemKind.CHANGE)) == 3


def test_a_register_counted_from_the_start_does_not_reach_the_capability_by_the_back_door(tmp_path: Path) -> None:
    bare = SHIPPED["pcie-ido-request"]
    reach = replace(bare.reach, capability=None, min_version=1, offset=PCIE_AT + 0x28)
    vendor = replace(bare, id="x-order", knob="x.order", shipped=False, reach=reach)
    items = look("8n8x-4up16", tmp_path, {"x.order": "on"}, recipes=[vendor])
    assert of(items, ItemKind.SKIP) == list(items)
    assert "inside the function's PCI Express capability" in (items["x.order@0000:63:00.0"].reason or "")


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("8n8x-4up16", {"pcie.ido-request": "on", "pcie.read-request": "128"}),
        ("2n4x-plx", {**ACS, "pcie.relaxed-ordering": "off"}),
    ],
)
def test_each_change_is_one_write_of_its_width_and_its_old_value_puts_every_byte_back(
    host: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    root = FakeRoot(root_of(describe(host), tmp_path).path)
    kernel = FakeKernel(root)
    changes = [
        i for i in look(describe(host), tmp_path, wanted, allow_isolation_loss=True).values() if i.new is not None
    ]
    before = {i.target.path: root.at(i.target.path).read_bytes() for i in changes if i.target is not None}
    for item in changes:
        present = None if item.target is None else read_target(root, item.target).value
        assert item.target is not None and item.target.register is not None and isinstance(present, int)
        new = item.target.register.merged(present, int(item.wanted[0]))
        write_target(kernel, root, item.target, new)
        assert read_target(root, item.target).value == new
        offset = item.target.register.offset
        assert kernel.log[-1] == (item.target.path, f"{offset:#x}={new.to_bytes(2, 'little').hex()}")
    assert len(kernel.log) == len(changes) > 3
    for item in reversed(changes):
        assert item.target is not None and item.target.register is not None
        present = read_target(root, item.target).value
        assert isinstance(present, int) and isinstance(item.old, int)
        write_target(kernel, root, item.target, item.target.register.merged(present, item.old))
    assert {path: root.at(path).read_bytes() for path in before} == before


# -- laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_on_every_host_each_item_carries_its_reason_and_writes_only_its_own_bits(name: str, tmp_path: Path) -> None:
    items = look(name, tmp_path, ALL, allow_isolation_loss=True, persist_files=True)
    for item in items.values():
        assert item.subject is None or item.id == f"{item.knob}@{item.subject}"
        if item.kind in (ItemKind.SKIP, ItemKind.REPORT):
            assert item.reason, item
            assert item.remedy, item
            assert item.new is None
        if item.code is not None:
            assert re.fullmatch(r"HC-[A-Z0-9-]+", item.code)
        assert (item.old is None) == (item.old_reason is not None)
        if item.kind is ItemKind.CHANGE:
            assert item.target is not None
            assert item.old is not None
            if item.target.register is not None:
                assert isinstance(item.new, int) and isinstance(item.old, int)
                assert (item.new ^ item.old) & ~item.target.register.mask & ~item.target.register.never == 0
                assert not item.new & item.target.register.never


@pytest.mark.parametrize("name", ["8n8x-4up16", "garbage", "2n4x-plx"])
def test_the_same_look_gives_the_same_items_and_every_target_was_named_beforehand(name: str, tmp_path: Path) -> None:
    choices, knobs = wants(ALL, allow_isolation_loss=True), list(KNOBS.values())
    sight = sight_of(root_of(name, tmp_path), choices, knobs)
    for knob in knobs:
        first = knob.items(sight, choices)
        assert first == knob.items(sight, choices)
        named = knob.targets(sight.machine, choices)
        assert {item.target for item in first if item.target is not None} <= set(named)


def test_a_knob_has_the_name_of_its_recipe() -> None:
    assert {name: knob.name for name, knob in KNOBS.items()} == {name: name for name in KNOBS}
    assert RecipeKnob(SHIPPED["pcie-mrrs"]).name == "pcie.read-request"


def test_a_guest_changes_registers_only_when_it_is_told_that_its_devices_are_its_own(tmp_path: Path) -> None:
    host = replace(describe("8n8x-4up16"), cpu_flags="fpu lm hypervisor", dmi=("QEMU", "Standard PC"))
    told = look(host, tmp_path, IDO)
    assert "--in-guest" in str(told["pcie.ido-request@0000:63:00.0"].remedy)
    allowed = look(host, tmp_path, IDO, in_guest=True)
    assert of(allowed, ItemKind.CHANGE) == [f"pcie.ido-request@0000:{card}:00.0" for card in ("63", "64", "84")]

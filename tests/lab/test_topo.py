"""The real `hicachectl topo` inside a guest, without torch or numpy: what it says is what the machine file says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import LAB_DIR, Pieces, Result, run
from vfio_user_device import DEVICE_CONTROL_2, Device

from hicachectl.tuning.host.uplinks import link_bytes_per_s

pytestmark = [pytest.mark.lab, pytest.mark.timeout(960)]

ROOT = LAB_DIR.parents[1]
FOLDERS = {"hicachectl": "", "tuning": "tuning", "runtime": "runtime", "profiles": "profiles"}
"""Folders of the checkout and their place in the package."""


@dataclass(frozen=True)
class Placed:
    """One endpoint of a machine file: where the firmware puts it, and the port that names its uplink."""

    address: str
    node: int
    uplink: str
    device: Device | None
    """None for one of QEMU's own models."""
    speed_gt_s: float
    width: int


def endpoints(machine: dict[str, Any]) -> Iterator[Placed]:
    """Walk a machine file: host bridge n begins at bus 0x20 x (n + 1), then depth first."""
    for number, bridge in enumerate(machine["host_bridges"]):
        root_bus = 0x20 * (number + 1)
        next_bus = root_bus + 1
        for slot, port in enumerate(bridge["root_ports"]):
            uplink = f"0000:{root_bus:02x}:{slot:02x}.0"
            if port.get("switch"):
                uplink = f"0000:{next_bus:02x}:00.0"
                next_bus += 2
            for entry in port["devices"]:
                address = f"0000:{next_bus:02x}:00.0"
                device = None
                if "qemu_model" not in entry:
                    device = Device.from_json({**machine["device_defaults"], **entry}, address)
                yield Placed(address, bridge["node"], uplink, device, port["speed"], port["width"])
                next_bus += 1


@dataclass(frozen=True)
class Seen:
    """A machine file and what the three runs of topo said in it."""

    machine: dict[str, Any]
    result: Result
    documents: dict[str, Any]

    def device(self, run_name: str, address: str) -> dict[str, Any]:
        (found,) = (d for d in self.documents[run_name]["data"]["devices"] if d["address"] == address)
        return dict(found)

    def accelerators(self) -> list[Placed]:
        return [placed for placed in endpoints(self.machine) if placed.device is not None]


def pack(pieces: Pieces, job: Path) -> None:
    """Write the job folder: the lab's job, the packages, and the project as it is in this checkout."""
    shutil.copytree(LAB_DIR / "jobs" / "topo", job)
    shutil.copytree(pieces.site, job / "site", ignore=shutil.ignore_patterns("bin"))
    for folder, place in FOLDERS.items():
        shutil.copytree(
            ROOT / folder,
            job / "site" / "hicachectl" / place,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


@pytest.fixture(scope="module", params=["hygon-8n8x", "nvidia-2n4x"])
def seen(request: pytest.FixtureRequest, pieces: Pieces, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Boot the machine once and run topo in it."""
    folder = tmp_path_factory.mktemp("lab")
    pack(pieces, folder / "job")
    path = LAB_DIR / "machines" / f"{request.param}.json"
    result = run(path, folder / "job", out_dir=folder / "out", timeout_s=900)
    assert result.exit_code == 0, result.stdout
    files = folder / "out" / "files"
    documents = {
        name: json.loads((files / f"{name}.json").read_text()) for name in ("root", "ido-set", "nobody", "ido")
    }
    return Seen(json.loads(path.read_text()), result, documents)


def test_nodes_have_the_cpus_memory_and_distances_of_the_machine_file(seen: Seen) -> None:
    nodes = seen.documents["root"]["data"]["nodes"]
    first_cpu = 0
    assert [node["id"] for node in nodes] == list(range(len(seen.machine["nodes"])))
    for node, told, row in zip(nodes, seen.machine["nodes"], seen.machine["distances"], strict=True):
        assert node["cpus"] == list(range(first_cpu, first_cpu + told["cpus"]))
        first_cpu += told["cpus"]
        assert (
            0.6 * told["memory_mib"] < node["memory_total_bytes"] / (1 << 20) <= told["memory_mib"]
        )  # less what the kernel keeps
        assert node["distances"] == {str(i): distance for i, distance in enumerate(row)}


def test_accelerators_are_those_of_the_machine_file_and_no_others(seen: Seen) -> None:
    told = {}
    for placed in seen.accelerators():
        assert placed.device is not None
        ids = f"{placed.device.class_code:04x}00 {placed.device.vendor:04x}:{placed.device.device:04x}"
        told[placed.address] = (ids, placed.node)
    devices = seen.documents["root"]["data"]["devices"]
    found = {
        device["address"]: (f"{device['class']} {device['vendor']}:{device['device']}", device["node"])
        for device in devices
        if device["kind"] == "accelerator"
    }
    assert found == told
    nics = {placed.address: placed.node for placed in endpoints(seen.machine) if placed.device is None}
    assert {d["address"]: d["node"] for d in devices if d["kind"] == "nic"} == nics


def test_links_have_the_speeds_and_widths_of_the_machine_file(seen: Seen) -> None:
    for placed in seen.accelerators():
        assert placed.device is not None
        assert seen.device("root", placed.address)["link"] == {
            "speed_now_gt_s": placed.device.speed_now,
            "speed_max_gt_s": placed.device.speed_max,
            "width_now": placed.device.width_now,
            "width_max": placed.device.width_max,
        }
    narrow = {p.uplink for p in seen.accelerators() if p.device is not None and p.device.width_now < p.device.width_max}
    warned = {d["subject"] for d in seen.documents["root"]["diagnostics"] if d["code"] == "HC-LINK-WIDTH"}
    assert warned & {p.uplink for p in seen.accelerators()} == narrow


def test_accelerators_behind_one_switch_share_its_uplink(seen: Seen) -> None:
    told: dict[str, list[Placed]] = {}
    for placed in seen.accelerators():
        told.setdefault(placed.uplink, []).append(placed)
    found = {uplink["port"]: uplink for uplink in seen.documents["root"]["data"]["uplinks"]}
    assert {port: uplink["shared_by"] for port, uplink in found.items()} == {
        port: [placed.address for placed in members] for port, members in told.items()
    }
    for port, members in told.items():
        assert found[port]["node"] == members[0].node
        lanes = members[0].width
        if len(members) == 1 and members[0].device is not None:
            lanes = members[0].device.width_now
        assert found[port]["capacity_bytes_per_s"] == pytest.approx(link_bytes_per_s(members[0].speed_gt_s, lanes))
    shared = any(len(members) > 1 for members in told.values())
    assert ("HC-UPLINK-SHARED" in {d["code"] for d in seen.documents["root"]["diagnostics"]}) == shared


def test_ido_is_off_at_first_and_then_what_other_code_wrote(seen: Seen) -> None:
    written = seen.documents["ido"]
    assert len(written) == 3
    off = {"request": False, "completion": False}
    for placed in seen.accelerators():
        assert seen.device("root", placed.address)["ido"] == off
        assert seen.device("ido-set", placed.address)["ido"] == written.get(placed.address, off)


def test_topo_writes_no_register(seen: Seen) -> None:
    words = {(True, True): "0003", (True, False): "0001", (False, True): "0002"}
    name_of = {p.address: p.device.name for p in seen.accelerators() if p.device is not None}
    noted = [(name_of[a], words[ido["request"], ido["completion"]]) for a, ido in seen.documents["ido"].items()]
    assert seen.result.job_writes(DEVICE_CONTROL_2) == noted
    assert len([write for write in seen.result.config_writes if write["phase"] == "job"]) == len(noted)


def test_an_ordinary_user_does_not_know_ido_and_is_told_why(seen: Seen) -> None:
    document = seen.documents["nobody"]
    indexes = {device["address"]: i for i, device in enumerate(document["data"]["devices"])}
    for placed in seen.accelerators():
        assert seen.device("nobody", placed.address)["ido"] == {"request": None, "completion": None}
        fact = document["data"]["facts"][f"/devices/{indexes[placed.address]}/ido/request"]
        assert "root" in fact["reason"]
    assert document["data"]["nodes"][0]["distances"] == seen.documents["root"]["data"]["nodes"][0]["distances"]

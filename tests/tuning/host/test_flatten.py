"""The flat data of a machine: stable keys, a source beside every value, a reason beside every null."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hosts.builder import write_shape
from hosts.machines import machine
from hosts.shapes import SHAPES

from hicachectl.envelope import unexplained_nulls
from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.placement import placements

STABLE = {
    "nodes": {"id", "cpus", "memory_total_bytes", "memory_free_bytes", "distances"},
    "devices": {
        "address", "class", "vendor", "device", "kind", "node", "driver", "link", "ido", "relaxed_ordering", "path",
    },
    "uplinks": {"port", "capacity_bytes_per_s", "shared_by", "node"},
}  # fmt: skip


def read(root: Path) -> dict[str, Any]:
    found = read_machine(HostRoot(root, name="made-up"))
    return flatten(found, judge(found), placements(found))


def values(data: Any, pointer: str = "") -> dict[str, Any]:
    """Every leaf by its JSON pointer."""
    if isinstance(data, dict) and data:
        parts = ((k.replace("~", "~0").replace("/", "~1"), v) for k, v in data.items())
        return {p: x for k, v in parts for p, x in values(v, f"{pointer}/{k}").items()}
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return {p: x for i, v in enumerate(data) for p, x in values(v, f"{pointer}/{i}").items()}
    return {pointer: data}


@pytest.mark.parametrize("name", SHAPES)
def test_no_null_lacks_a_reason_and_no_reason_stands_beside_a_value(name: str, tmp_path: Path) -> None:
    data = read(write_shape(name, tmp_path / name))
    assert unexplained_nulls(data) == []
    leaves = values({key: value for key, value in data.items() if key != "facts"})
    for pointer, note in data["facts"].items():
        assert note["confidence"] in ("read", "derived", "assumed")
        if "reason" not in note:
            assert leaves.get(pointer, "a list or an object") is not None, pointer
            assert note["source"], pointer


@pytest.mark.parametrize("name", ["8n8x-4up16", "garbage", "no-vendor"])
def test_the_keys_that_were_promised_are_there_whatever_could_be_read(name: str, tmp_path: Path) -> None:
    data = read(write_shape(name, tmp_path / name))
    for kind, keys in STABLE.items():
        for item in data[kind]:
            assert keys <= set(item)
    for device in data["devices"]:
        assert set(device["link"]) == {"speed_now_gt_s", "speed_max_gt_s", "width_now", "width_max"}
        assert set(device["ido"]) == {"request", "completion"}
    assert {"memory", "facts", "findings", "host", "numa", "placement"} <= set(data)


def test_every_fact_of_a_device_has_its_source(tmp_path: Path) -> None:
    data = read(write_shape("8n8x-4up16", tmp_path / "h"))
    index = next(i for i, d in enumerate(data["devices"]) if d["address"] == "0000:63:00.0")
    assert data["devices"][index]["ido"] == {"request": False, "completion": False}
    folder = "/sys/bus/pci/devices/0000:63:00.0"
    assert data["facts"][f"/devices/{index}/vendor"] == {"source": f"{folder}/vendor", "confidence": "read"}
    assert data["facts"][f"/devices/{index}/ido/request"]["source"].startswith(f"{folder}/config")


def test_a_config_space_that_ends_after_64_bytes_is_null_with_the_reason_and_never_off(tmp_path: Path) -> None:
    data = read(write_shape("config64", tmp_path / "h"))
    index = next(i for i, d in enumerate(data["devices"]) if d["kind"] == "accelerator")
    device = data["devices"][index]
    assert (device["config"], device["ido"], device["relaxed_ordering"]) == (
        None,
        {"request": None, "completion": None},
        None,
    )
    assert "root" in data["facts"][f"/devices/{index}/config"]["reason"]


def test_a_list_that_could_not_be_read_is_empty_with_a_reason(tmp_path: Path) -> None:
    data = read(write_shape("empty", tmp_path / "h"))
    assert (data["nodes"], data["devices"], data["uplinks"]) == ([], [], [])
    assert data["facts"]["/nodes"]["reason"] == "no such file"
    assert data["facts"]["/devices"]["reason"] == "no such file"


def test_distances_go_by_node_id_and_not_by_position(tmp_path: Path) -> None:
    data = read(write_shape("sparse-ids", tmp_path / "h"))
    assert [node["id"] for node in data["nodes"]] == [1, 2, 33, 72]
    assert data["nodes"][1]["distances"] == {"1": 16, "2": 10, "33": 40, "72": 40}


def test_secrets_of_the_command_line_are_left_out() -> None:
    from hosts.machines import change

    one = machine()
    one = change(one, host=change(one.host, command_line="root=UUID=7f3a iommu=pt token=abc"))
    assert flatten(one)["host"]["command_line"] == "root=left-out iommu=pt token=left-out"


def test_flatten_does_not_modify_the_machine() -> None:
    one = machine()
    flatten(one, judge(one))
    assert one == machine()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file whatever its mode")
def test_an_unreadable_file_is_permission_denied(tmp_path: Path) -> None:
    root = write_shape("2n8x", tmp_path / "h")
    (root / "proc/meminfo").chmod(0)
    data = read(root)
    assert data["memory"]["total_bytes"] is None
    assert data["facts"]["/memory/total_bytes"]["reason"] == "permission denied"

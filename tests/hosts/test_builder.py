"""The made-up hosts are laid out as Linux does it, the same on every call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hosts.builder import write_shape
from hosts.config_space import PCIE_AT, Pcie, config_bytes
from hosts.shapes import SHAPES, describe
from hosts.spec import GIB, cpus_of


@pytest.mark.parametrize("name", SHAPES)
def test_every_link_of_a_host_leads_to_something_inside_it(name: str, tmp_path: Path) -> None:
    root = write_shape(name, tmp_path / "host").resolve()
    for path in root.rglob("*"):
        if path.is_symlink():
            assert path.resolve().is_relative_to(root), path
            assert path.exists(), path


def test_a_pci_device_is_a_link_to_its_place_below_the_root_port(tmp_path: Path) -> None:
    root = write_shape("8n8x-4up16", tmp_path)
    assert (root / "sys/bus/pci/devices/0000:24:00.0").readlink() == Path(
        "../../../devices/pci0000:20/0000:20:01.1/0000:21:00.0/0000:22:04.0/0000:24:00.0"
    )
    assert (root / "sys/bus/pci/devices/0000:24:00.0/numa_node").read_text() == "1\n"


def test_the_worked_host_has_its_cards_on_nodes_1_1_3_3_5_5_7_7_and_a_terabyte_and_a_half(tmp_path: Path) -> None:
    root = write_shape("8n8x-4up16", tmp_path)
    cards = [
        path.parent for path in sorted(root.glob("sys/bus/pci/devices/*/device")) if path.read_text() == "0x3684\n"
    ]
    assert [(card / "numa_node").read_text().strip() for card in cards] == list("11335577")
    assert sum(node.memory_bytes for node in describe("8n8x-4up16").nodes) == 1536 * GIB


def test_the_same_host_is_written_twice_byte_for_byte(tmp_path: Path) -> None:
    first, second = (write_shape("garbage", tmp_path / name) for name in "ab")
    for path in first.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


def test_a_kernel_list_is_written_and_read_back() -> None:
    assert cpus_of("0-2,8") == [0, 1, 2, 8]
    assert cpus_of("") == []


@pytest.mark.parametrize(("length", "version"), [(64, 2), (256, 2), (4096, 2), (4096, 1)])
def test_config_space_has_its_length_and_a_second_control_word_from_version_2_on(length: int, version: int) -> None:
    pcie = Pcie(version=version, ido_request=True, ido_completion=True, acs_control=0x1D)
    space = config_bytes(vendor=0x1D22, device=0x3684, class_code=0x078000, pcie=pcie, length=length)
    assert len(space) == length
    if length > 64:
        assert space[PCIE_AT + 2] & 0xF == version
        assert int.from_bytes(space[PCIE_AT + 0x28 : PCIE_AT + 0x2A], "little") == (0x0300 if version == 2 else 0)


def test_lspci_reads_the_config_space_as_it_was_meant(tmp_path: Path) -> None:
    if shutil.which("lspci") is None:
        pytest.skip("lspci (pciutils) is not installed")
    pcie = Pcie(
        max_payload_bytes=512, max_read_request_bytes=4096, aspm=2, acs_control=0x1C, port_type="downstream", width=8
    )
    space = config_bytes(vendor=0x10B5, device=0x8747, class_code=0x060400, pcie=pcie, buses=(6, 7, 7))
    lines = [f"{at:02x}: " + " ".join(f"{b:02x}" for b in space[at : at + 16]) for at in range(0, 4096, 16)]
    dump = tmp_path / "dump.txt"
    dump.write_text("06:00.0 x\n" + "\n".join(lines) + "\n\n")
    ran = subprocess.run(["lspci", "-vvv", "-n", "-F", dump], capture_output=True, text=True, timeout=20, check=True)
    for words in ("Downstream Port", "MaxPayload 512 bytes, MaxReadReq 4096", "ASPM L1 Enabled", "Speed 16GT/s", "Width x8",
                  "ReqRedir+ CmpltRedir+ UpstreamFwd+", "RlxdOrd+", "secondary=07"):  # fmt: skip
        assert words in ran.stdout

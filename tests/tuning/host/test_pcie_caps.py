"""The decoder against bit tables, arbitrary bytes, and lspci where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pci_trees import CAP, config

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import ConfigSpace, Link
from hicachectl.tuning.host.pcie_caps import GONE, NEEDS_ROOT, decode_config, find_capability

REGISTERS = [f.name for f in fields(ConfigSpace) if f.name not in ("readable_bytes", "link", "express_at", "acs_at")]


def reasons(space: ConfigSpace) -> set[str | None]:
    return {getattr(space, name).reason for name in REGISTERS}


@pytest.mark.parametrize(
    ("register", "bit", "field"),
    [
        ("devctl", 4, "relaxed_ordering"), ("devctl", 8, "extended_tag"), ("devctl", 11, "no_snoop"), ("devsta", 5, "transactions_pending"),
        ("devctl2", 8, "ido_request"), ("devctl2", 9, "ido_completion"), ("devctl2", 12, "ten_bit_tag_requester"),
        ("devcap2", 10, "no_ro_pr_pr_passing"),
    ],
)  # fmt: skip
def test_each_bit_sets_its_own_field_and_no_other(register: str, bit: int, field: str) -> None:
    base: dict[str, Any] = {"devctl": 0, "devsta": 0, "devctl2": 0, "devcap2": 0}
    clear = decode_config(config(**base))
    assert getattr(clear, field).value is False
    alone = decode_config(config(**(base | {register: 1 << bit})))
    assert getattr(alone, field).value is True
    bits = [f for f in REGISTERS if isinstance(getattr(alone, f).value, bool) and f != field]
    assert [getattr(alone, f).value for f in bits] == [getattr(clear, f).value for f in bits]


@pytest.mark.parametrize("code", range(8))
def test_sizes_are_128_shifted_and_reserved_codes_are_unknown(code: int) -> None:
    space = decode_config(config(devctl=code << 5 | (7 - code) << 12, devcap=0x8000 | code))
    want = {c: 128 << c if c < 6 else None for c in range(8)}
    assert space.max_payload_bytes.value == want[code]
    assert space.payload_supported_bytes.value == want[code]
    assert space.max_read_request_bytes.value == want[7 - code]
    if code > 5:
        assert "reserved" in (space.max_payload_bytes.reason or "")


@pytest.mark.parametrize(
    ("port", "word"),
    [(0, "endpoint"), (1, "legacy"), (4, "root-port"), (5, "upstream"), (6, "downstream"), (7, "bridge"), (9, "rc-endpoint"), (13, "type-13")],
)  # fmt: skip
def test_port_types(port: int, word: str) -> None:
    assert decode_config(config(port=port)).port_type.value == word


@pytest.mark.parametrize(("bits", "word"), list(enumerate(["off", "L0s", "L1", "L0s L1"])))
def test_aspm_is_the_lowest_two_bits_of_link_control(bits: int, word: str) -> None:
    assert decode_config(config(lnkctl=0x40 | bits)).aspm.value == word


@pytest.mark.parametrize(("code", "gt_s"), [(1, 2.5), (2, 5.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 64.0)])
def test_link_registers_give_speed_and_width_now_and_max(code: int, gt_s: float) -> None:
    link = decode_config(config(lnkcap=code | 16 << 4, lnksta=1 | 8 << 4, lnkcap2=((1 << code) - 1) << 1)).link
    assert link is not None
    assert (link.speed_now_gt_s.value, link.width_now.value, link.speed_max_gt_s.value, link.width_max.value) == (
        2.5,
        8,
        gt_s,
        16,
    )


def test_the_supported_speeds_vector_goes_before_the_speed_code() -> None:
    link = decode_config(config(lnkcap=0x103, lnkcap2=0x1E)).link
    assert link is not None and link.speed_max_gt_s.value == 16.0
    old = decode_config(config(lnkcap=0x103, lnkcap2=0)).link
    assert old is not None and old.speed_max_gt_s.value == 8.0


def test_a_link_that_is_down_is_unknown() -> None:
    link = decode_config(config(lnksta=0)).link
    assert link is not None
    assert not link.speed_now_gt_s.is_known
    assert not link.width_now.is_known


def test_a_function_inside_the_root_complex_has_no_link() -> None:
    space = decode_config(config(port=9))
    assert space.link is not None and "no link" in (space.link.width_max.reason or "")
    assert "no link" in (space.aspm.reason or "")


def test_a_version_1_capability_has_no_device_control_2() -> None:
    space = decode_config(config(version=1, devctl2=0x0300, devcap2=0x400))
    for name in ("ido_request", "ido_completion", "ten_bit_tag_requester", "no_ro_pr_pr_passing", "device_control_2"):
        assert "version 1" in (getattr(space, name).reason or ""), name
    assert space.relaxed_ordering.value is True


def test_64_bytes_need_root_and_say_nothing_else() -> None:
    space = decode_config(config(size=64), "/sys/x/config")
    assert space.readable_bytes.value == 64
    assert reasons(space) - {"not read"} == {NEEDS_ROOT}
    assert space.ido_request.source == "/sys/x/config"


@pytest.mark.parametrize("size", [1, 63, 64, 256, 4096])
def test_all_ones_are_a_device_that_is_gone(size: int) -> None:
    space = decode_config(b"\xff" * size)
    assert reasons(space) == {GONE}
    assert not space.readable_bytes.is_known


def test_a_register_of_all_ones_is_no_value() -> None:
    space = decode_config(config(devctl=0xFFFF, devctl2=0xFFFF))
    for name in ("relaxed_ordering", "max_payload_bytes", "ido_request", "device_control_2"):
        assert getattr(space, name).reason == GONE, name


def test_256_bytes_have_no_extended_space() -> None:
    space = decode_config(config(size=256, acs=0x1D))
    assert space.ido_request.value is False
    assert "extended" in (space.acs_control.reason or "")
    assert not space.acs_redirect.is_known


@pytest.mark.parametrize(
    ("control", "redirects"),
    [(0x00, False), (0x01, False), (0x04, True), (0x08, True), (0x10, False), (0x14, True), (0x53, False)],
)
def test_acs_redirect_is_that_of_requests_or_completions_and_not_upstream_forwarding(
    control: int, redirects: bool
) -> None:
    space = decode_config(config(acs=control))
    assert (space.acs_control.value, space.acs_redirect.value) == (control, redirects)


def test_without_the_capability_acs_is_not_zero_but_absent() -> None:
    assert decode_config(config(acs=None)).acs_control.reason == "no ACS capability"


def test_a_function_without_pci_express_says_so() -> None:
    data = bytearray(config())
    data[0x41] = 0
    assert decode_config(bytes(data)).ido_request.reason == "no PCI Express capability"
    data[0x06] = 0
    assert decode_config(bytes(data)).ido_request.reason == "no capability list"


def test_a_list_that_runs_in_circles_ends_after_48_steps() -> None:
    data = bytearray(config())
    data[0x41] = 0x40
    assert "48 steps" in (decode_config(bytes(data)).ido_request.reason or "")


@pytest.mark.parametrize("first", [0x04, 0x3C])
def test_a_pointer_into_the_header_is_broken(first: int) -> None:
    data = bytearray(config())
    data[0x34] = first
    assert "broken" in (decode_config(bytes(data)).ido_request.reason or "")


def test_the_lowest_two_bits_of_a_pointer_are_ignored() -> None:
    data = bytearray(config(devctl2=0x0100))
    data[0x34] |= 3
    assert decode_config(bytes(data)).ido_request.value is True


def test_extended_capabilities_in_circles_end() -> None:
    data = bytearray(config())
    data[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert decode_config(bytes(data)).acs_control.reason == "no ACS capability"


class Watched(bytes):
    """Bytes that refuse to be looked at outside: a slice that ends later than they do, or a negative index."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            assert key.start is not None and 0 <= key.start <= key.stop <= len(self), key
        else:
            assert 0 <= key < len(self), key
        return super().__getitem__(key)


def list_bytes(size: int) -> st.SearchStrategy[bytes]:
    """Bytes that look like a config space, with pointers and ids drawn so that the walks go far."""

    def build(edits: list[tuple[int, int]], extended: list[tuple[int, int, int]]) -> bytes:
        data = bytearray(config(size=size))
        for at, value in edits:
            data[at % min(size, 256)] = value
        for at, identity, following in extended:
            where = 0x100 + at % 0xF00 & ~3
            if where + 4 <= size:
                data[where : where + 4] = (identity | following << 20).to_bytes(4, "little")
        return bytes(data)

    byte = st.sampled_from([0x00, 0x10, 0x40, 0x44, 0x60, 0x9C, 0xD8, 0xF8, 0xFC, 0xFF]) | st.integers(0, 255)
    edit = st.tuples(st.sampled_from([0x06, 0x34, 0x40, 0x41, 0x60, 0x61, 0x62]) | st.integers(0, 255), byte)
    header = st.tuples(
        st.integers(0, 0xEFF),
        st.sampled_from([0x0001, 0x000D, 0xFFFF]),
        st.sampled_from([0, 0x100, 0xFFC, 0xFFF]) | st.integers(0, 0xFFF),
    )
    return st.builds(build, st.lists(edit, max_size=30), st.lists(header, max_size=30))


@given(st.binary(max_size=300) | st.integers(1, 4096).flatmap(list_bytes))
@example(b"")
@example(bytes(65))
@example(b"\xff" * 65 + b"\x00")
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_walk_raise_loop_or_look_outside(data: bytes) -> None:
    space = decode_config(Watched(data), "config")
    for name in REGISTERS:
        fact = getattr(space, name)
        assert isinstance(fact, Fact)
        assert fact.value is not None or fact.reason
    assert isinstance(space.link, Link)
    if len(data) <= 64:
        assert all(not getattr(space, name).is_known for name in REGISTERS)
    at, why = find_capability(Watched(data), 0x10)
    assert (at is None) != (why is None)


# -- lspci as a judge ---------------------------------------------------------------------------------------------------


def lspci_version() -> tuple[int, ...]:
    if shutil.which("lspci") is None:
        pytest.skip("lspci is not installed: the bit tables above stand alone")
    said = subprocess.run(["lspci", "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", said))


def lspci_says(spaces: list[bytes], folder: Path) -> list[str]:
    """Decode dumps with lspci: a block of text for each."""
    dump = folder / "dump.txt"
    blocks = []
    for index, space in enumerate(spaces):
        lines = [f"0000:{index:02x}:00.0 dump"]
        lines += [
            f"{at:02x}: " + " ".join(f"{byte:02x}" for byte in space[at : at + 16]) for at in range(0, len(space), 16)
        ]
        blocks.append("\n".join(lines) + "\n")
    dump.write_text("\n".join(blocks))
    said = subprocess.run(
        ["lspci", "-n", "-F", str(dump), "-vvv"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    found = re.split(r"\n\n", said.strip())
    assert len(found) == len(spaces)
    return found


def drawn(n: int) -> list[bytes]:
    """Config spaces whose registers step through their bits, the same each time."""
    return [
        config(
            devctl=(i % 6) << 5 | (5 - i % 6) << 12 | (i & 1) << 4 | (i >> 1 & 1) << 8 | (i >> 2 & 1) << 11,
            devsta=(i >> 3 & 1) << 5, lnkctl=i & 3, lnkcap=1 + i % 5 | (1, 2, 4, 8, 16)[i % 5] << 4 | 3 << 10,
            lnksta=1 + i % 4 | (1, 2, 4, 8, 16)[-1 - i % 5] << 4, lnkcap2=0, acs=i & 0x5F,
            devctl2=(i & 1) << 8 | (i >> 1 & 1) << 9 | (i >> 2 & 1) << 12, devcap2=(i & 1) << 16 | (i >> 3 & 1) << 10,
        )
        for i in range(n)
    ]  # fmt: skip


def flag(block: str, name: str) -> bool:
    found = re.search(rf"\b{name}([+-])", block)
    assert found is not None, (name, block)
    return found[1] == "+"


def test_lspci_reads_the_same_from_every_dump(tmp_path: Path) -> None:
    lspci_version()
    spaces = drawn(96)
    for data, block in zip(spaces, lspci_says(spaces, tmp_path), strict=True):
        ours = decode_config(data)
        assert ours.relaxed_ordering.value == flag(block, "RlxdOrd")
        assert ours.extended_tag.value == flag(block, "ExtTag") or "ExtTag" in block.split("DevCtl:")[0]
        assert ours.no_snoop.value == flag(block, "NoSnoop")
        assert ours.transactions_pending.value == flag(block, "TransPend")
        assert (
            f"MaxPayload {ours.max_payload_bytes.value} bytes, MaxReadReq {ours.max_read_request_bytes.value} bytes"
            in block
        )
        control = block.split("ACSCtl:")[1]
        redirect = flag(control, "ReqRedir") or flag(control, "CmpltRedir")
        assert ours.acs_redirect.value == redirect
        words = {"off": "Disabled", "L0s": "L0s Enabled", "L1": "L1 Enabled", "L0s L1": "L0s L1 Enabled"}
        assert f"LnkCtl:\tASPM {words[ours.aspm.value or '']}" in block
        assert ours.link is not None
        capability = re.search(r"LnkCap:.*Speed ([\d.]+)GT/s, Width x(\d+)", block)
        status = re.search(r"LnkSta:\tSpeed ([\d.]+)GT/s.*?, Width x(\d+)", block)
        assert capability is not None and status is not None
        assert (ours.link.speed_max_gt_s.value, ours.link.width_max.value) == (float(capability[1]), int(capability[2]))
        assert (ours.link.speed_now_gt_s.value, ours.link.width_now.value) == (float(status[1]), int(status[2]))


def test_lspci_reads_the_same_ordering_bits(tmp_path: Path) -> None:
    version = lspci_version()
    if version < (3, 11):
        pytest.skip(f"lspci {'.'.join(map(str, version))} does not print IDO: 3.11 does (pciutils commit 3746111)")
    spaces = drawn(64)
    for data, block in zip(spaces, lspci_says(spaces, tmp_path), strict=True):
        ours = decode_config(data)
        control = block.split("DevCtl2:")[1]
        assert ours.ido_request.value == flag(control, "IDOReq")
        assert ours.ido_completion.value == flag(control, "IDOCompl")
        assert ours.ten_bit_tag_requester.value == flag(control, "10BitTagReq")


def test_lspci_calls_a_short_dump_denied_where_we_need_root(tmp_path: Path) -> None:
    lspci_version()
    (block,) = lspci_says([config(size=64)], tmp_path)
    assert "access denied" in block
    assert decode_config(config(size=64)).ido_request.reason == NEEDS_ROOT


def test_the_capability_is_found_where_the_helper_puts_it() -> None:
    assert find_capability(config(), 0x10) == (CAP, None)
    assert find_capability(config(), 0x05) == (None, "no capability 0x05")


@pytest.mark.parametrize("acs", [None, 0x1D])
def test_the_places_of_both_capabilities_lead_to_the_registers_that_were_decoded(acs: int | None) -> None:
    data = config(acs=acs, devctl2=0x0309)
    space = decode_config(data)
    assert space.express_at is not None
    assert int.from_bytes(data[space.express_at + 0x28 :][:2], "little") == space.device_control_2.value == 0x0309
    assert (space.acs_at is None) == (acs is None)
    if space.acs_at is not None:
        assert int.from_bytes(data[space.acs_at + 6 :][:2], "little") == acs
    short = decode_config(data[:64])
    assert (short.express_at, short.acs_at) == (None, None)

"""MSR, SMN, HSMP and module parameters on a made-up device root; a way that is not there differs from one that failed."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from fakes.kernel import FakeKernel, FakeRoot
from recipe_looks import look
from small_host import small_host, write_host

from hicachectl.tuning.access import ACCESS, read_target, shell_line, write_target
from hicachectl.tuning.access.hsmp import HSMP_REQUEST, HsmpAccess, pack_message, unpack_answer
from hicachectl.tuning.access.ways import NOT_AVAILABLE
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.kernel import LiveKernel
from hicachectl.tuning.target import ABSENT, METHODS_THAT_REPORT, Method, Register, Target, unit_offset, units_of

MSR = Target(Method.MSR, "/dev/cpu/10/msr", Register(0xC8B, 64, 0x7FF))
SMN = Target(
    Method.SMN_DEBUGFS, "/sys/kernel/debug/x86/amd_smn/value", Register(unit_offset(1, 0x13B10118), 32, 0x0000FF00)
)
HSMP = Target(Method.HSMP, "/dev/hsmp", Register(unit_offset(1, 2 << 16 | 0x12), 16, 0x0303))
PARAM = Target(Method.MODULE_PARAM, "/etc/modprobe.d/hicachectl-nvidia-ro.conf")
LINE = "options nvidia NVreg_EnablePCIERelaxedOrderingMode=1\n"


@pytest.fixture
def devices(tmp_path: Path) -> HostRoot:
    """Plain files that stand for the devices, in a folder that is read as the live host is."""
    (tmp_path / "dev/cpu/10").mkdir(parents=True)
    (tmp_path / "dev/cpu/10/msr").write_bytes(bytes(0xC8B) + struct.pack("<Q", 0x600))
    folder = tmp_path / "sys/kernel/debug/x86/amd_smn"
    folder.mkdir(parents=True)
    for name, number in (("node", 0), ("address", 0), ("value", 0x00120034)):
        (folder / name).write_text(f"{number:#010x}\n")
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    return HostRoot(tmp_path)


def text(root: HostRoot, path: str) -> str:
    return root.at(path).read_text()


def test_every_method_but_firmware_settings_has_a_way_in() -> None:
    assert set(ACCESS) == set(Method) - METHODS_THAT_REPORT
    assert "not available" in (read_target(HostRoot(), Target(Method.BIOS, "/x")).reason or "")


# -- MSR --------------------------------------------------------------------------------------------------------------


def test_an_msr_is_eight_bytes_at_its_number(devices: HostRoot) -> None:
    assert read_target(devices, MSR).value == 0x600
    write_target(LiveKernel(devices), devices, MSR, 0x7F0)
    data = devices.at(MSR.path).read_bytes()
    assert data == bytes(0xC8B) + struct.pack("<Q", 0x7F0)
    assert read_target(devices, MSR).value == 0x7F0
    assert shell_line(MSR, 0x7F0) == "wrmsr -p 10 0xc8b 0x7f0"


def test_without_the_module_an_msr_is_not_available_and_a_short_answer_is_a_failure(
    devices: HostRoot, tmp_path: Path
) -> None:
    devices.at(MSR.path).unlink()
    assert read_target(devices, MSR).reason == f"{NOT_AVAILABLE}: the msr module is not loaded (sudo modprobe msr)"
    devices.at(MSR.path).write_bytes(bytes(0xC8B + 4))
    assert read_target(devices, MSR).reason == "failed: 4 of 8 bytes came back"


# -- SMN --------------------------------------------------------------------------------------------------------------


def test_an_smn_register_is_selected_by_node_and_address_and_then_read(devices: HostRoot) -> None:
    found = read_target(devices, SMN)
    assert found.value == 0x00120034
    folder = "/sys/kernel/debug/x86/amd_smn"
    assert int(text(devices, f"{folder}/node"), 0) == 1
    assert int(text(devices, f"{folder}/address"), 0) == 0x13B10118
    assert int(text(devices, f"{folder}/value"), 0) == 0x00120034  # reading writes no register
    assert "node 1 0x13b10118" in found.source


def test_an_smn_register_is_written_whole_after_it_was_selected(devices: HostRoot) -> None:
    write_target(LiveKernel(devices), devices, SMN, 0x0012FF34)
    assert int(text(devices, SMN.path), 0) == 0x0012FF34
    assert int(text(devices, "/sys/kernel/debug/x86/amd_smn/node"), 0) == 1
    assert shell_line(SMN, 0x12FF34).endswith("echo 0x1 > node && echo 0x13b10118 > address && echo 0x12ff34 > value")


class Meddler(LiveKernel):
    """A kernel on which another program selects a register right after us."""

    def __init__(self, root: HostRoot) -> None:
        super().__init__(root)
        self.root = root

    def write_text(self, path: str, text: str) -> None:
        super().write_text(path, text)
        if path.endswith("/address"):
            self.root.at(path).write_text("0x00000004\n")


def test_when_another_program_selects_meanwhile_nothing_is_written(devices: HostRoot) -> None:
    with pytest.raises(OSError, match="another program") as caught:
        write_target(Meddler(devices), devices, SMN, 0x0012FF34)
    assert caught.value.errno == errno.EBUSY
    assert int(text(devices, SMN.path), 0) == 0x00120034


def test_without_debugfs_smn_is_not_available_and_nonsense_is_a_failure(devices: HostRoot, tmp_path: Path) -> None:
    devices.at(SMN.path).write_text("nonsense\n")
    assert (read_target(devices, SMN).reason or "").startswith("failed: not a number")
    empty = HostRoot(tmp_path / "empty")
    assert (read_target(empty, SMN).reason or "").startswith(f"{NOT_AVAILABLE}: debugfs has no x86/amd_smn")
    with pytest.raises(FileNotFoundError):
        write_target(LiveKernel(empty), empty, SMN, 1)


def test_a_recording_is_never_selected_in(devices: HostRoot) -> None:
    recording = HostRoot(devices.path, name="recorded")
    assert read_target(recording, SMN).reason == "asked of a live host only"
    assert int(text(devices, "/sys/kernel/debug/x86/amd_smn/node"), 0) == 0


@pytest.mark.parametrize(("unit", "number"), [(0, 0), (1, 0x13B10118), (7, 0xFFFFFFFF)])
def test_a_unit_and_a_number_come_back_out_of_an_offset(unit: int, number: int) -> None:
    assert units_of(unit_offset(unit, number)) == (unit, number)


# -- HSMP -------------------------------------------------------------------------------------------------------------


class Firmware:
    """Answers messages as AMD's firmware does: 0x13 tells what 0x12 set, by socket and NBIO."""

    def __init__(self) -> None:
        self.levels = {(1, 2): 0x0100}
        self.asked: list[bytes] = []

    def __call__(self, root: HostRoot, path: str, message: bytes) -> bytes:
        self.asked.append(message)
        ident, n_words, n_answer, word, *_, socket = struct.unpack("<IHH8IHxx", message)
        assert (path, ident, n_words, n_answer) == ("/dev/hsmp", 0x13, 1, 1)
        return pack_message(ident, socket, (self.levels[socket, word >> 16],), 1)

    def take(self, message: bytes) -> None:
        ident, n_words, n_answer, word, *_, socket = struct.unpack("<IHH8IHxx", message)
        assert (ident, n_words, n_answer) == (0x12, 1, 0)
        self.levels[socket, word >> 16] = word & 0xFFFF


class HsmpKernel(LiveKernel):
    def __init__(self, root: HostRoot, firmware: Firmware) -> None:
        super().__init__(root)
        self.firmware = firmware

    def ioctl(self, path: str, request: int, message: bytes) -> bytes:
        assert (path, request) == ("/dev/hsmp", HSMP_REQUEST)
        self.firmware.take(message)
        return message


def test_a_message_sets_and_another_reads_it_back(tmp_path: Path) -> None:
    firmware, root = Firmware(), HostRoot(tmp_path)
    access = HsmpAccess(ask=firmware)
    assert access.read(root, HSMP).value == 0x0100
    access.write(HsmpKernel(root, firmware), root, HSMP, 0x0101)
    assert firmware.levels == {(1, 2): 0x0101}
    assert access.read(root, HSMP).value == 0x0101
    assert access.shell(HSMP, 0x0100) == "e_smi_tool --setlclkdpmlevel 1 2 0 1"


def test_the_message_is_the_drivers_structure() -> None:
    message = pack_message(0x13, 1, (2 << 16,), 1)
    assert message == bytes.fromhex("130000000100010000000200") + bytes(28) + bytes.fromhex("01000000")
    assert len(message) == 44
    assert unpack_answer(pack_message(0x13, 1, (0x0301,), 1)) == 0x0301
    assert HSMP_REQUEST == 0xC02CF800


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOENT, f"{NOT_AVAILABLE}: there is no /dev/hsmp"), (errno.EACCES, f"{NOT_AVAILABLE}: /dev/hsmp needs root"),
        (errno.ENOMSG, f"{NOT_AVAILABLE}: this firmware does not know"), (errno.ETIMEDOUT, "failed: "),
    ],
)  # fmt: skip
def test_a_missing_device_and_a_failing_one_are_told_apart(number: int, says: str, tmp_path: Path) -> None:
    def refuse(root: HostRoot, path: str, message: bytes) -> bytes:
        raise OSError(number, os.strerror(number))

    assert (HsmpAccess(ask=refuse).read(HostRoot(tmp_path), HSMP).reason or "").startswith(says)


def test_of_a_recording_or_without_the_device_nothing_is_asked(tmp_path: Path) -> None:
    firmware = Firmware()
    assert HsmpAccess(ask=firmware).read(HostRoot(tmp_path, name="x"), HSMP).reason == "asked of a live host only"
    assert firmware.asked == []
    assert (read_target(HostRoot(tmp_path), HSMP).reason or "").startswith(f"{NOT_AVAILABLE}: there is no /dev/hsmp")


# -- module parameters ------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_a_value_that_can_be_put_back(devices: HostRoot) -> None:
    kernel = LiveKernel(devices)
    old = read_target(devices, PARAM).value
    assert old == ABSENT
    write_target(kernel, devices, PARAM, LINE)
    assert read_target(devices, PARAM).value == LINE
    assert old is not None
    write_target(kernel, devices, PARAM, old)
    assert read_target(devices, PARAM).value == ABSENT
    assert list(devices.at("/etc/modprobe.d").iterdir()) == []
    write_target(kernel, devices, PARAM, ABSENT)  # a rollback that is repeated


def test_a_file_is_replaced_whole_and_a_link_is_not_followed(devices: HostRoot, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("options nvidia a=1\n")
    path = devices.at(PARAM.path)
    path.symlink_to(elsewhere)
    write_target(LiveKernel(devices), devices, PARAM, LINE)
    assert not path.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (LINE, 0o644)
    assert elsewhere.read_text() == "options nvidia a=1\n"


def test_what_a_crash_left_behind_is_no_module_file_and_is_written_over(devices: HostRoot) -> None:
    left = devices.at("/etc/modprobe.d/.hicachectl-nvidia-ro.conf.new")
    left.write_text("options nvidia half" * 40)
    write_target(LiveKernel(devices), devices, PARAM, LINE)
    assert [path.name for path in devices.at("/etc/modprobe.d").iterdir()] == ["hicachectl-nvidia-ro.conf"]
    assert read_target(devices, PARAM).value == LINE


@pytest.mark.parametrize("data", [b"\xff\xfe", ABSENT.encode(), b"x" * (65 << 10)])
def test_a_file_that_is_none_of_ours_is_not_known(devices: HostRoot, data: bytes) -> None:
    devices.at(PARAM.path).write_bytes(data)
    assert "not a file of ours" in (read_target(devices, PARAM).reason or "")


def test_the_shell_lines_write_and_remove_the_file() -> None:
    assert shell_line(PARAM, "a b\n") == f"printf %s 'a b\n' > {PARAM.path}"
    assert shell_line(PARAM, ABSENT) == f"rm -f {PARAM.path}"


def test_a_module_parameter_is_written_on_request_only(tmp_path: Path) -> None:
    (asked,) = look("2n8x", tmp_path, {"nvidia.ro": "on"}).values()
    assert (asked.id, asked.kind) == ("nvidia.ro", ItemKind.REPORT)
    assert "--persist-files" in (asked.remedy or "")
    assert asked.wanted == ("options nvidia NVreg_EnablePCIERelaxedOrderingMode=1\n",)
    assert asked.target == Target(Method.MODULE_PARAM, "/etc/modprobe.d/hicachectl-nvidia-ro.conf")
    assert asked.old == ABSENT
    (allowed,) = look("2n8x", tmp_path, {"nvidia.ro": "on"}, persist_files=True).values()
    assert (allowed.kind, allowed.new) == (ItemKind.CHANGE, LINE)
    assert any("loaded again" in note for note in allowed.notes)


@pytest.mark.parametrize(
    "line",
    [
        "options nvidia a=1\ninstall nvidia /bin/evil\n", "options nvidia a=1 b=2\n", "install nvidia /bin/evil\n", "options nvidia a=1\\\n",
        "options nvidia a=\n", "options nvidia a=1", "",
    ],
)  # fmt: skip
def test_no_line_but_one_option_is_written_for_a_module_and_none_is_taken_for_ours(
    line: str, devices: HostRoot
) -> None:
    with pytest.raises(OSError, match="not one option"):
        write_target(LiveKernel(devices), devices, PARAM, line)
    assert not devices.at(PARAM.path).exists()
    devices.at(PARAM.path).write_text(line)
    assert "not a file of ours" in (read_target(devices, PARAM).reason or "")


@pytest.mark.parametrize("word", ["advise,size=1k", "advise ", "huge", "", "deny"])
def test_a_remount_takes_a_word_of_huge_and_nothing_behind_it(word: str, tmp_path: Path) -> None:
    root = write_host(tmp_path, small_host())
    kernel = FakeKernel(FakeRoot(tmp_path))
    with pytest.raises(OSError, match="not a word of huge="):
        write_target(kernel, root, Target(Method.MOUNT, "/dev/shm"), word)
    assert kernel.log == []
    write_target(kernel, root, Target(Method.MOUNT, "/dev/shm"), "within_size")
    assert kernel.log == [("/dev/shm", "huge=within_size")]

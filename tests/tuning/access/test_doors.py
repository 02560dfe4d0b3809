"""What stands before a write is read with the value."""

from __future__ import annotations

from pathlib import Path

from hosts.builder import build_root
from knob_looks import THP, small

from hicachectl.tuning.access import read_doors
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sight import Door
from hicachectl.tuning.target import Method, Target


def door(folder: Path, target: Target, mounts: str = "") -> Door:
    root = build_root(folder, small())
    table = root / "proc/self/mountinfo"
    table.write_text(table.read_text(encoding="utf-8") + mounts, encoding="utf-8")
    return read_doors(HostRoot(root, name="made-up"), [target])[target]


ENABLED = Target(Method.SYSFS, f"{THP}/enabled")


def test_the_words_of_a_file_are_its_offers_and_a_number_offers_none(tmp_path: Path) -> None:
    assert door(tmp_path / "a", ENABLED).offers.value == ("always", "madvise", "never")
    number = door(tmp_path / "b", Target(Method.SYSFS, f"{THP}/khugepaged/defrag")).offers
    assert number.value is None and (number.reason or "").startswith("lists no words")
    assert door(tmp_path / "c", Target(Method.MOUNT, "/dev/shm")).offers.value is None


def test_the_deepest_mount_decides_and_of_two_the_later(tmp_path: Path) -> None:
    assert door(tmp_path / "a", ENABLED).read_only.value is False
    ro = "90 21 0:21 / /sys ro,nosuid - sysfs sysfs rw\n"
    assert door(tmp_path / "b", ENABLED, ro).read_only.value is True
    assert (
        door(tmp_path / "c", ENABLED, ro + "91 90 0:60 / /sys/kernel/mm rw - tmpfs tmpfs rw\n").read_only.value is False
    )
    assert door(tmp_path / "d", ENABLED, ro + "91 90 0:21 / /sys rw - sysfs sysfs rw\n").read_only.value is False
    assert door(tmp_path / "e", ENABLED, "90 21 0:21 / /sys rw - sysfs sysfs ro\n").read_only.value is True


def test_a_folder_whose_name_only_begins_alike_is_another_mount(tmp_path: Path) -> None:
    assert door(tmp_path, ENABLED, "90 21 0:9 / /sys/kernel/m ro - tmpfs tmpfs ro\n").read_only.value is False


def test_without_a_mount_table_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    found = read_doors(HostRoot(tmp_path, name="made-up"), [ENABLED])[ENABLED]
    assert (found.read_only.value, found.offers.value) == (None, None)

"""What is said of the page cache is what the kernel says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.runtime.probes.page_cache import file_system, put_out, resident_share

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw
41 22 259:1 / /mnt/a\\040b rw shared:9 master:2 - xfs /dev/nvme0n1p1 rw
42 22 259:2 / /mnt/a\\040b/deep rw - btrfs /dev/nvme1n1 rw
broken line
"""


def test_the_file_system_is_that_of_the_longest_mount_point_above(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)

    def of(folder: str) -> tuple[str | None, str | None]:
        found = file_system(Path(folder), table)
        return found.kind, found.device

    assert of("/var/cache") == ("ext4", "/dev/sda1")
    assert of("/mnt/a b/x") == ("xfs", "/dev/nvme0n1p1")
    assert of("/mnt/a b/deep/er") == ("btrfs", "/dev/nvme1n1")
    assert of("/mnt/a b/deeper") == ("xfs", "/dev/nvme0n1p1")
    assert file_system(Path("/dev/shm/x"), table).in_memory
    assert not file_system(Path("/mnt"), table).in_memory


def test_without_a_mount_table_the_file_system_is_unknown_with_a_reason(tmp_path: Path) -> None:
    found = file_system(tmp_path, tmp_path / "none")
    assert found.kind is None
    assert found.reason is not None
    assert "No such file" in found.reason
    assert not found.in_memory


def test_a_file_just_written_is_resident_and_put_out_it_is_not_where_the_disk_is_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(300_000))
    assert resident_share(path) == 1.0
    before = path.read_bytes()
    put_out(path)
    if not file_system(tmp_path).in_memory:
        assert resident_share(path) < 1.0
    assert path.read_bytes() == before
    empty = tmp_path / "empty"
    empty.touch()
    assert resident_share(empty) == 1.0


def test_a_file_that_is_not_there_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    for look in (put_out, resident_share):
        with pytest.raises(FileNotFoundError):
            look(tmp_path / "none")

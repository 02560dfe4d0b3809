"""A probe's folder after its process was killed: the next one removes it, and nothing of a living process or of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicachectl.errors import StorageError
from hicachectl.runtime.probes import store_folder
from hicachectl.runtime.probes.store_folder import MARKER, PREFIX, StoreFolder, clear_left

KILLED = """
import os, signal, sys
from pathlib import Path
from hicachectl.runtime.probes.store_folder import StoreFolder
with StoreFolder(Path(sys.argv[1])) as folder:
    shard = folder.path / "round" / ("hicache1-" + "0" * 32) / "abc"
    shard.mkdir(parents=True)
    (shard / ("ab" * 32 + "_x.page")).write_bytes(b"page")
    (shard / f".tmp-{os.getpid()}-0-00ff").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (folder,) = tmp_path.glob(f"{PREFIX}*")
    return folder


def test_what_a_killed_process_left_is_removed_and_told(tmp_path: Path, left: Path) -> None:
    assert clear_left(tmp_path) == (f"removed {left}, which a killed process left",)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_others_in_it_stays_and_is_told_once(tmp_path: Path, left: Path) -> None:
    mine = left / "round" / "mine.txt"
    mine.write_text("of another")
    assert clear_left(tmp_path) == (
        f"removed the pages in {left} that a killed process left; not removed: {mine}: not written by the store",
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert clear_left(tmp_path) == ()


def test_the_folder_of_a_living_process_stays(tmp_path: Path) -> None:
    with StoreFolder(tmp_path) as folder:
        assert clear_left(tmp_path) == ()
        pid, boot, host = (folder.path / MARKER).read_text().split()
        assert (pid, host) == (str(os.getpid()), os.uname().nodename)
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert folder.left == ()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_marker_is_missing_or_not_locked_yet_stays(tmp_path: Path) -> None:
    bare, new = tmp_path / f"{PREFIX}bare", tmp_path / f"{PREFIX}new"
    bare.mkdir()
    new.mkdir()
    (new / MARKER).touch()
    assert clear_left(tmp_path) == ()
    assert sorted(tmp_path.rglob("*")) == [bare, new, new / MARKER]


def test_what_another_host_left_on_a_shared_disk_stays_and_is_told(tmp_path: Path, left: Path) -> None:
    pid, boot, host = (left / MARKER).read_text().split()
    before = sorted(tmp_path.rglob("*"))
    (left / MARKER).write_text(f"{pid} another-boot kv-7\n")
    (said,) = clear_left(tmp_path)
    assert f"left {left} alone: it was made on kv-7" in said
    assert sorted(tmp_path.rglob("*")) == before
    for ours in (f"{pid} {boot} a-container", f"{pid} another-boot {host}", pid):
        (left / MARKER).write_text(f"{ours}\n")
        assert clear_left(tmp_path) == (f"removed {left}, which a killed process left",)
        (left / "round").mkdir(parents=True)


def test_neither_a_folder_of_another_user_nor_a_link_is_followed(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{PREFIX}link").symlink_to(left)
    assert clear_left(elsewhere) == ()
    monkeypatch.setattr(store_folder.os, "geteuid", lambda: os.getuid() + 1)
    assert clear_left(tmp_path) == ()
    assert (left / MARKER).exists()


def test_what_cannot_be_removed_is_told_and_gone_the_next_time(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: str) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(store_folder, "lock_abandoned", refuses)
        assert clear_left(tmp_path) == (
            f"{left}, which a killed process left, cannot be removed: Read-only file system",
        )
    assert clear_left(tmp_path) == (f"removed {left}, which a killed process left",)


def test_a_parent_that_is_not_there_has_nothing_left_and_one_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clear_left(tmp_path / "none") == ()

    def refuses(path: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_folder.os, "scandir", refuses)
    (said,) = clear_left(tmp_path)
    assert said == f"whether killed processes left folders in {tmp_path} is not known: Permission denied"


def test_a_folder_that_cannot_be_marked_is_refused_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(fd: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(store_folder.fcntl, "flock", refuses)
    with pytest.raises(StorageError, match="No locks available"):
        StoreFolder(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_it_is_removed_comes_through_behind_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear = store_folder._clear

    def interrupted(folder: Path) -> Iterator[str]:
        signal.raise_signal(signal.SIGINT)
        yield from clear(folder)

    monkeypatch.setattr(store_folder, "_clear", interrupted)
    with pytest.raises(KeyboardInterrupt), StoreFolder(tmp_path / "new") as folder:
        (folder.path / f"{'0' * 64}.page").write_bytes(b"page")
    assert list(tmp_path.iterdir()) == []

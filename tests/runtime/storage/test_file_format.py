"""Laws of one object file: whole or absent, proven or refused."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from storage_samples import buffers, key_of, page_of

from hicachectl.errors import StorageFault
from hicachectl.runtime.storage.file_format import (
    HEADER_BYTES,
    _after,
    fault_of,
    read_object,
    remove_if_abandoned,
    set_recency,
    write_object,
)

KEY, DIGEST = key_of(0), bytes(range(16))


def test_the_file_is_header_then_page_golden(tmp_path: Path) -> None:
    path = tmp_path / "o"
    write_object(str(path), KEY, DIGEST, page_of(0), 0)
    head = struct.pack("<8sHHIQ32s16s", b"HICACHE\0", 1, 96, 0, 256, KEY, DIGEST)
    body = page_of(0).tobytes()
    crc = struct.pack("<I", zlib.crc32(head + body))
    assert path.read_bytes() == head + crc + bytes(HEADER_BYTES - len(head) - 4) + body


def test_read_proves_what_was_written_and_recency_is_the_files_time(tmp_path: Path) -> None:
    path = str(tmp_path / "o")
    write_object(path, KEY, DIGEST, page_of(0), 1_000_000_001)
    (page,) = buffers(1)
    assert read_object(path, KEY, DIGEST, page) is None
    assert np.array_equal(page, page_of(0))
    assert os.stat(path).st_mtime_ns == 1_000_000_001
    set_recency(path, 2_000_000_002)
    assert os.stat(path).st_mtime_ns == 2_000_000_002


@pytest.mark.parametrize(
    ("key", "digest", "text"),
    [(key_of(1), DIGEST, f"holds page {KEY.hex()}"), (KEY, bytes(16), f"belongs to namespace {DIGEST.hex()}")],
)
def test_read_names_what_is_wrong(tmp_path: Path, key: bytes, digest: bytes, text: str) -> None:
    path = str(tmp_path / "o")
    write_object(path, KEY, DIGEST, page_of(0), 1_000)
    wrong = read_object(path, key, digest, buffers(1)[0])
    assert wrong is not None
    assert wrong.startswith(text)


def test_a_write_replaces_atomically_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "o"
    path.write_bytes(b"old")
    with path.open("rb") as old:
        write_object(str(path), KEY, DIGEST, page_of(0), 0)
        assert old.read() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_a_failed_write_leaves_what_was_there_and_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    with pytest.raises(IsADirectoryError):
        write_object(str(tmp_path / "o"), KEY, DIGEST, page_of(0), 0)
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_a_temporary_file_in_use_is_not_removed_and_an_abandoned_one_is(tmp_path: Path) -> None:
    temp = tmp_path / ".tmp-1"
    with temp.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert not remove_if_abandoned(str(temp))
        assert temp.exists()
    assert remove_if_abandoned(str(temp))
    assert not temp.exists()
    assert remove_if_abandoned(str(temp))


def test_abandoned_files_are_locked_as_network_file_systems_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS turns flock into a lock of a range, and gives an exclusive one only where the file is open for writing (flock(2))."""
    flock = fcntl.flock

    def of_nfs(fd: int, operation: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    temp = tmp_path / ".tmp-1"
    temp.touch()
    assert remove_if_abandoned(str(temp))
    assert not temp.exists()


def test_partial_transfers_go_on_where_they_stopped() -> None:
    parts = [memoryview(b"abc"), memoryview(b"defg")]
    assert [bytes(p) for p in _after(parts, 2)] == [b"c", b"defg"]
    assert [bytes(p) for p in _after(parts, 3)] == [b"defg"]
    assert [bytes(p) for p in _after(parts, 5)] == [b"fg"]
    assert _after(parts, 7) == []


@pytest.mark.parametrize(
    ("number", "fault"),
    [("ENOSPC", "full"), ("EDQUOT", "full"), ("EACCES", "denied"), ("EROFS", "denied"), ("ENOENT", "missing"),
     ("ENOTDIR", "corrupt"), ("EIO", "transient"), ("EMFILE", "transient")],
)  # fmt: skip
def test_errors_of_the_file_system_are_sorted(number: str, fault: str) -> None:
    import errno

    assert fault_of(OSError(getattr(errno, number), "text")) is StorageFault(fault)

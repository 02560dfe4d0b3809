"""Files of lines that only grow: every byte is written or an error says so, and a cut line is told from whole ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hicachectl.errors import HostError
from hicachectl.tuning.sizing.size_journal import SizeJournal, read_size_journal
from hicachectl.tuning.sizing.whole_lines import whole_bytes

REAL_WRITE = os.write


def disk(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
    """Let the kernel take five bytes a call, and no more than there is room for."""
    left = room_bytes

    def write(handle: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = REAL_WRITE(handle, bytes(data)[: min(5, left)])
        left -= n
        return n

    monkeypatch.setattr("hicachectl.tuning.sizing.whole_lines.os.write", write)


def test_a_record_is_whole_however_little_is_written_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SizeJournal.begin(tmp_path, {"trace": "t"})
    with monkeypatch.context() as patched:
        disk(patched, 1 << 20)
        journal.append("end", ended="time budget")
    journal.close()
    assert read_size_journal(tmp_path).ended == "time budget"


def test_a_record_that_a_full_disk_cuts_is_an_error_and_the_next_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SizeJournal.begin(tmp_path, {"trace": "t"})
    with monkeypatch.context() as patched:
        disk(patched, 12)
        with pytest.raises(HostError, match="No space left"):
            journal.append("step", pages=50)
    journal.append("end", ended="time budget")
    journal.close()
    records = read_size_journal(tmp_path)
    assert (records.cut, records.ended) == (None, "time budget")


@pytest.mark.parametrize(
    ("data", "whole"), [(b"", 0), (b"cut", 0), (b"one\n", 4), (b"one\ncut", 4), (b"a\n" + b"x" * 200_000, 2)]
)
def test_whole_lines_end_with_the_last_line_end(tmp_path: Path, data: bytes, whole: int) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert whole_bytes(file.fileno()) == whole

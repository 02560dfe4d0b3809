"""The journal: durable before the next step, readable after any crash, room set aside for its end."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hicachectl.errors import HostError, InvariantBroken, UsageError
from hicachectl.tuning.journal import Journal, RecordKind, read_journal
from hicachectl.tuning.state import StateDir
from hicachectl.tuning.target import Method, Register, Target

WORD = Target(Method.SYSFS, "/sys/a")
BITS = Target(Method.PCI_CONFIG, "/sys/b", Register(0x88, 16, 0x0300))


def journal(folder: Path, **more: Any) -> Journal:
    return Journal(folder, clock=lambda: "2026-11-29T00:00:00Z", **more)


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    record = journal(tmp_path)
    record.append(RecordKind.BEGIN, boot_id="b", n_changes=1)
    record.intent("a", WORD, "x", "y")
    record.append(RecordKind.DONE, "a", result="ok", seen="y")
    record.intent("b", BITS, 9, 0x309)
    record.close()
    text = read_journal(tmp_path)
    assert not text.torn
    assert [(r.n, r.kind.value, r.item) for r in text.records] == [
        (1, "begin", None), (2, "intent", "a"), (3, "done", "a"), (4, "intent", "b"),
    ]  # fmt: skip
    first, second = text.entries()
    assert (first.target, first.old, first.new, first.result) == (WORD, "x", "y", "ok")
    assert (second.target, second.old, second.new, second.result) == (BITS, 9, 0x309, None)


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_cut_last_line_is_left_out_and_told(tmp_path: Path, cut: int) -> None:
    record = journal(tmp_path)
    record.append(RecordKind.BEGIN, boot_id="b", n_changes=1)
    record.intent("a", WORD, "x", "y")
    record.close()
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    text = read_journal(tmp_path)
    assert text.torn
    assert [r.kind for r in text.records] == [RecordKind.BEGIN]
    again = journal(tmp_path)
    assert again.append(RecordKind.ROLLBACK) == 2
    again.close()
    assert [r.n for r in read_journal(tmp_path).records] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        "{}", "[]", "nonsense", '{"n": 3, "at": "", "kind": "done", "item": "a"}', '{"n": 2, "at": "", "kind": "party", "item": null}',
        '{"n": 2, "at": "", "kind": "intent", "item": "a", "old": 1, "new": 2}',
        '{"n": 2, "at": "", "kind": "intent", "item": "a", "target": {"method": "sysfs", "path": "/x", "register": null}}',
        '{"n": 2, "at": "", "kind": "intent", "item": "a", "target": {"method": "magic", "path": "/x", "register": null}, "old": 1, "new": 2}',
    ],
)  # fmt: skip
def test_a_line_that_no_crash_leaves_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    record = journal(tmp_path)
    record.append(RecordKind.BEGIN, boot_id="b", n_changes=1)
    record.close()
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvariantBroken) as caught:
        read_journal(tmp_path)
    assert "records.jsonl:2" in str(caught.value)


def test_a_full_disk_in_the_middle_uses_the_room_set_aside(tmp_path: Path) -> None:
    record = journal(tmp_path)
    record.reserve(4)
    assert (tmp_path / "reserve").stat().st_size >= 4 * 2048
    full = Full(record, tmp_path, left=1)
    full.append(RecordKind.BEGIN)
    full.append(RecordKind.END)
    assert not (tmp_path / "reserve").exists()
    assert [r.kind for r in read_journal(tmp_path).records] == [RecordKind.BEGIN, RecordKind.END]


def test_a_disk_that_is_full_for_good_leaves_no_half_line(tmp_path: Path) -> None:
    record = journal(tmp_path)
    full = Full(record, tmp_path, left=1)
    full.append(RecordKind.BEGIN)
    with pytest.raises(HostError, match="No space left") as caught:
        full.append(RecordKind.END)
    assert caught.value.code == "HC-STATE"
    assert not read_journal(tmp_path).torn


class Full:
    """A journal whose writes meet a full disk after `left` of them, until the reserve is gone."""

    def __init__(self, record: Journal, folder: Path, left: int) -> None:
        self.record, self.folder, self.left = record, folder, left
        self.write = record._write
        record._write = self.full  # type: ignore[method-assign]

    def full(self, line: bytes) -> None:
        if self.left == 0 and not (self.folder / "reserve").exists() and self.had_reserve:
            self.write(line)
        elif self.left == 0:
            self.had_reserve = (self.folder / "reserve").exists()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            self.left -= 1
            self.write(line)

    had_reserve = False

    def append(self, kind: RecordKind) -> None:
        self.record.append(kind, n_changes=1, outcome="applied")


def test_the_state_folder_numbers_its_runs_and_names_those_it_has(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    assert state.runs() == []
    state.prepare()
    assert [state.new_run()[0] for _ in range(3)] == ["j-0001", "j-0002", "j-0003"]
    (state.journal / "notes").mkdir()
    assert state.runs() == ["j-0001", "j-0002", "j-0003"]
    assert oct((tmp_path / "state").stat().st_mode & 0o777) == "0o700"
    with pytest.raises(UsageError, match="no run 'j-0009'") as caught:
        state.folder("j-0009")
    assert "j-0003" in str(caught.value)


def test_a_run_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.prepare()
    (tmp_path / "elsewhere").mkdir()
    (state.journal / "j-0001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="not a folder"):
        state.folder("j-0001")


def test_records_are_private_and_lines_are_json(tmp_path: Path) -> None:
    record = journal(tmp_path)
    record.append(RecordKind.BEGIN, boot_id="b", n_changes=1)
    record.close()
    path = tmp_path / "records.jsonl"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert json.loads(path.read_text())["kind"] == "begin"


def test_every_step_is_announced_before_and_after_its_record(tmp_path: Path) -> None:
    steps: list[str] = []
    record = journal(tmp_path, checkpoint=steps.append)
    record.append(RecordKind.BEGIN, n_changes=1)
    record.append(RecordKind.END, outcome="applied")
    assert steps == ["before record 1", "after record 1", "before record 2", "after record 2"]

from __future__ import annotations

import os
import re
import signal
from collections import namedtuple
from pathlib import Path
from types import FrameType

import pytest

from hicachectl.errors import CapacityError, HostError, PlanStale
from hicachectl.tuning.sizing.left_storage import clear_left
from hicachectl.tuning.sizing.size_journal import SizeJournal
from hicachectl.tuning.sizing.trial_storage import MARKER, TrialStorage, remove_folder

Usage = namedtuple("Usage", "total used free")


def storage(parent: Path, name: str = "hicachectl-1f-l3") -> TrialStorage:
    return TrialStorage(parent, name, "ours", 10, 4096)


class Stopped(BaseException):
    pass


@pytest.fixture
def terminated() -> object:
    """SIGTERM raises once and is the default afterwards, as at the program's edge."""

    def handler(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Stopped

    old = signal.signal(signal.SIGTERM, handler)
    yield
    signal.signal(signal.SIGTERM, old)


def test_a_step_finds_its_folder_empty_and_leaves_none_even_when_it_fails(tmp_path: Path) -> None:
    with storage(tmp_path).emptied() as made:
        assert list(made.path.iterdir()) == []
        (made.path / "page").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), storage(tmp_path).emptied() as made:
        (made.path / "none" / "page").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "hicachectl-1f-l3" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(HostError, match="cannot be made"), storage(tmp_path).emptied():
        pass
    assert mine.read_text() == "mine"


def test_two_storages_of_one_disk_have_names_that_nobody_guesses(tmp_path: Path) -> None:
    one, other = TrialStorage.named(tmp_path, 10, 4096), TrialStorage.named(tmp_path, 10, 4096)
    assert one.name != other.name
    assert one.marker != other.marker


def test_only_a_folder_with_the_recorded_marker_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "hicachectl-1f-l3"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    for marker in (None, "another's"):
        if marker is not None:
            (folder / MARKER).write_text(marker)
        assert remove_folder(folder, "ours") is False
        assert (folder / "mine.txt").exists()
    link = tmp_path / "link"
    link.symlink_to(folder)
    (folder / MARKER).write_text("ours")
    assert remove_folder(link, "ours") is False
    assert remove_folder(folder, "ours") is True
    assert not folder.exists()


def test_a_disk_without_room_is_refused_with_both_amounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = storage(tmp_path)
    assert one.n_bytes == 10 * 8192  # a page and its header, in whole blocks
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1 << 30, 0, one.n_bytes - 1))
    with pytest.raises(CapacityError) as caught, one.emptied():
        pass
    assert dict(caught.value.terms) == {"storage tier of the steps": 81920, "free on its disk": 81919}
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 0))  # tmpfs with size=0
    with one.emptied() as folder:
        assert folder.path.is_dir()


def test_a_folder_that_cannot_be_made_is_the_steps_failure(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be made"), storage(tmp_path / "nowhere").emptied():
        pass


@pytest.mark.usefixtures("terminated")
def test_a_second_signal_waits_until_the_files_are_gone(tmp_path: Path) -> None:
    def step() -> None:
        with storage(tmp_path).emptied() as made:
            (made.path / "page").write_bytes(b"x")
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # would end the process

    with pytest.raises(Stopped):
        step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("terminated")
def test_a_signal_while_the_step_gives_back_what_it_took_is_heard_afterwards(tmp_path: Path) -> None:
    def step() -> None:
        with storage(tmp_path).emptied() as made:
            made.hold()
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            (made.path / "page").write_bytes(b"x")  # a drain that goes on

    with pytest.raises(Stopped):
        step()
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_removed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object, **_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("shutil.rmtree", refused)
    with pytest.raises(HostError, match="is left: Input/output error") as caught, storage(tmp_path).emptied():
        pass
    assert caught.value.where == str(tmp_path / "hicachectl-1f-l3")
    with pytest.raises(CapacityError) as other, storage(tmp_path, "hicachectl-2f-l3").emptied():
        raise CapacityError("no memory", why="taken")
    assert other.value.why == f"taken; {tmp_path / 'hicachectl-2f-l3'} is left: Input/output error"


def left_by(state: Path, disk: Path, name: str, *, marker: str = "ours") -> SizeJournal:
    journal = SizeJournal.begin(state, {})
    journal.append("storage", folder=str(disk / name), marker="ours")
    (disk / name / "pages").mkdir(parents=True)
    (disk / name / MARKER).write_text(marker)
    return journal


def test_what_killed_runs_left_is_cleared_and_a_living_runs_is_not(tmp_path: Path) -> None:
    killed, living = left_by(tmp_path / "size", tmp_path, "a"), left_by(tmp_path / "size", tmp_path, "b")
    left_by(tmp_path / "size", tmp_path, "c", marker="another's").close()
    killed.close()
    own = SizeJournal.begin(tmp_path / "size", {})
    said = clear_left(tmp_path / "size", own.id)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c", "size"]
    assert len(said) == 2
    assert f"{tmp_path / 'a'}" in said[0]
    assert f"{tmp_path / 'c'}" in said[1]
    living.close()
    own.close()


def test_a_run_that_is_at_work_is_not_gone_on_with(tmp_path: Path) -> None:
    journal = SizeJournal.begin(tmp_path, {"trace": "t"})
    with pytest.raises(PlanStale, match="s-0001 is at work") as caught:
        SizeJournal.go_on(tmp_path)
    assert caught.value.code == "HC-LOCKED"
    assert f"pid {os.getpid()}" in (caught.value.why or "")
    journal.close()
    again, records = SizeJournal.go_on(tmp_path)
    assert (again.id, records.asked) == ("s-0001", {"trace": "t"})
    again.close()


def test_what_an_edited_journal_names_is_cleared_by_its_marker_and_what_is_no_journal_is_told(tmp_path: Path) -> None:
    edited, broken = left_by(tmp_path / "size", tmp_path, "a"), left_by(tmp_path / "size", tmp_path, "b")
    for journal in (edited, broken):
        journal.close()
    lines = edited.folder / "steps.jsonl"
    lines.write_text(re.sub(', "seal": "[0-9a-f]*"', "", lines.read_text()))
    (broken.folder / "steps.jsonl").write_text("no record\n")
    own = SizeJournal.begin(tmp_path / "size", {})
    said = clear_left(tmp_path / "size", own.id)
    own.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "size"]
    assert said[0] == f"removed {tmp_path / 'a'}, the storage tier that {edited.id} left"
    assert said[1].startswith(f"what {broken.id} left on a disk, if anything, is not looked for: ")
    assert "steps.jsonl:1" in said[1]

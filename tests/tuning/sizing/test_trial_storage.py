from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from hicachectl.errors import CapacityError, HostError
from hicachectl.tuning.sizing.trial_storage import TrialStorage

Usage = namedtuple("Usage", "total used free")


def storage(parent: Path) -> TrialStorage:
    return TrialStorage(parent, "s-0001-l3", 10, 4096)


def test_a_step_finds_its_folder_empty_and_leaves_none_even_when_it_fails(tmp_path: Path) -> None:
    left = tmp_path / "s-0001-l3" / "namespace"
    left.mkdir(parents=True)  # of a run that was killed
    (left / "page").write_bytes(b"x")
    with storage(tmp_path).emptied() as folder:
        assert list(folder.iterdir()) == []
        (folder / "page").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), storage(tmp_path).emptied() as folder:
        (folder / "none" / "page").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_refused_with_both_amounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = storage(tmp_path)
    assert one.n_bytes == 10 * 8192  # a page and its header, in whole blocks
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1 << 30, 0, one.n_bytes - 1))
    with pytest.raises(CapacityError) as caught, one.emptied():
        pass
    assert dict(caught.value.terms) == {"storage tier of the steps": 81920, "free on its disk": 81919}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_the_steps_failure(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be made"), storage(tmp_path / "nowhere").emptied():
        pass

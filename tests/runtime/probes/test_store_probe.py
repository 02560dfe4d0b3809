"""The store probe: real pages through the real backend, every byte compared, and nothing left of it however it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hicachectl.errors import StorageError, UsageError
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.probes.stopping import ProbeStopped
from hicachectl.runtime.probes.store import run_store_probe
from hicachectl.runtime.probes.store_folder import PREFIX
from hicachectl.runtime.probes.store_pages import page_namespace, probe_keys
from hicachectl.runtime.probes.store_rows import StoreCase, StoreOp, StoreProbe, space_terms
from hicachectl.runtime.replay.driver import PageMismatch
from hicachectl.runtime.storage.file_format import write_object

GEOMETRY = preset("tiny-4k", 64)
CASES = (StoreCase(1, 1), StoreCase(3, 2))
N_PAGES = 8


class Meddler:
    """Asked before every call whether to stop; does something to the folder at the n-th asking."""

    def __init__(self, parent: Path, at: int = 1, *, stops: bool = False) -> None:
        self.parent, self.at, self.stops, self.asked = parent, at, stops, 0

    def __call__(self) -> bool:
        self.asked += 1
        if self.asked == self.at:
            self.meddle()
        return self.stops and self.asked >= self.at

    def meddle(self) -> None:
        """Do nothing."""

    def files(self) -> list[Path]:
        """The objects there are now."""
        return sorted(self.parent.glob(f"{PREFIX}*/round/*/*/*.page"))


def probe(parent: Path, **more: object) -> StoreProbe:
    more = {"cases": CASES, "n_pages": N_PAGES, "rounds": 1, "durable": False, **more}
    return run_store_probe(parent, GEOMETRY, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", list(Layout))
def test_every_operation_of_every_case_has_its_rounds_and_every_page_read_was_compared(
    tmp_path: Path, layout: Layout
) -> None:
    told: list[str] = []
    found = probe(tmp_path, layout=layout, rounds=2, durable=True, told=told.append)
    assert [(row.case, row.op) for row in found.rows] == [(case, op) for case in CASES for op in StoreOp]
    reads = 0
    for row in found.rows:
        if row.op is StoreOp.READ_COLD and found.file_system.in_memory:
            continue
        assert (row.refused, len(row.wall_s)) == (None, 2), row
        assert [sum(call.n_pages for call in calls) for calls in row.calls] == [N_PAGES] * 2
        assert [len(pages) for pages in row.page_s] == [-(-N_PAGES // row.case.batch_pages)] * 2
        assert len(row.bytes_per_s) == (2 if row.op.moves_bytes else 0)
        assert (row.resident_share is not None) == row.op.value.startswith("read")
        reads += row.op.value.startswith("read")
    assert found.verified_pages == reads * 2 * N_PAGES
    assert len(found.scan_s) == 2 * len(CASES)
    assert len(told) == 2 * len(CASES)
    assert found.left == ()
    assert list(tmp_path.iterdir()) == []


def test_fsync_is_measured_only_when_asked_for(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert StoreOp.WRITE_DURABLE not in {row.op for row in found.rows}


def test_no_time_left_ends_the_probe_with_what_it_has(tmp_path: Path) -> None:
    left = iter([True, True, True])
    found = probe(tmp_path, rounds=10**9, go_on=lambda: next(left, False))
    assert [len(row.wall_s) for row in found.rows if row.op is StoreOp.WRITE] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_folders_made_for_the_probe_go_and_those_that_were_there_stay_with_their_files(tmp_path: Path) -> None:
    probe(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("of another")
    probe(there)
    assert [path.name for path in there.iterdir()] == ["mine"]


def test_a_file_of_others_in_the_folder_stays_and_is_told(tmp_path: Path) -> None:
    class Puts(Meddler):
        def meddle(self) -> None:
            self.files()[0].with_name("precious.txt").write_text("of another")

    found = probe(tmp_path, stop=Puts(tmp_path, at=5))
    (left,) = found.left
    path = Path(left.partition(": ")[0])
    assert path.read_text() == "of another"
    assert "not written by the store" in left
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("at", [1, 2, 9, 12, 20, 33, 40, 61])
def test_stopped_anywhere_nothing_is_left(tmp_path: Path, at: int) -> None:
    with pytest.raises(ProbeStopped):
        probe(tmp_path / "new", durable=True, stop=Meddler(tmp_path, at=at, stops=True))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_in_the_middle_of_a_call_waits_for_the_other_threads_and_leaves_nothing(tmp_path: Path) -> None:
    class Interrupts(Meddler):
        def meddle(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(tmp_path / "new", cases=(StoreCase(1, 1),), stop=Interrupts(tmp_path, at=4))
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_comes_back_wrong_stops_the_probe_with_its_place_and_leaves_nothing(tmp_path: Path) -> None:
    class Swaps(Meddler):
        def meddle(self) -> None:
            """Put a whole object, its checksum right, with other bytes under a key that was written."""
            namespace = page_namespace(GEOMETRY, Layout.PAGE_FIRST_DIRECT)
            key = probe_keys(N_PAGES)[2]
            (path,) = [path for path in self.files() if path.name.startswith(key.hex())]
            write_object(str(path), key, namespace.digest, np.full(GEOMETRY.page_bytes, 7, np.uint8), 1)

    with pytest.raises(PageMismatch, match=r"page 2 of 8 holds 0x07 at byte 0, not 0x"):
        probe(tmp_path, cases=(StoreCase(1, 1),), stop=Swaps(tmp_path, at=N_PAGES + 2))
    assert list(tmp_path.iterdir()) == []


def test_a_torn_object_ends_its_row_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    class Tears(Meddler):
        def meddle(self) -> None:
            path = self.files()[0]
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    found = probe(tmp_path, cases=(StoreCase(1, 1),), durable=True, stop=Tears(tmp_path, at=N_PAGES + 2))
    by_op = {row.op: row for row in found.rows}
    warm = by_op[StoreOp.READ_WARM]
    assert warm.wall_s == ()
    assert warm.refused == "0 of 1 pages of a call were read (1 corrupt)"
    assert len(by_op[StoreOp.WRITE_DURABLE].wall_s) == 1


def test_where_files_live_in_memory_no_read_is_called_cold() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("no /dev/shm here")
    found = probe(shared)
    if not found.file_system.in_memory:
        pytest.skip("/dev/shm is no tmpfs here")
    for row in found.rows:
        if row.op is StoreOp.READ_COLD:
            assert row.wall_s == ()
            assert row.refused is not None
            assert "100 % of the files stayed in the page cache" in row.refused
    assert not Path(found.folder).exists()


def test_where_the_kernel_tells_nothing_of_the_page_cache_reads_are_measured_and_none_is_called_cold(
    tmp_path: Path,
) -> None:
    def refuses(path: Path) -> float:
        raise OSError(19, "No such device")  # what mmap says on some network file systems

    by_op = {row.op: row for row in probe(tmp_path, cases=(StoreCase(1, 1),), look_at=refuses).rows}
    warm, cold = by_op[StoreOp.READ_WARM], by_op[StoreOp.READ_COLD]
    assert (len(warm.wall_s), warm.refused, warm.resident_share) == (1, None, None)
    assert (cold.wall_s, cold.resident_share) == ((), None)
    assert cold.refused is not None
    assert "does not tell" in cold.refused


def test_what_cannot_be_measured_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    for bad in ({"n_pages": 5}, {"rounds": 0}, {"cases": ()}, {"cases": (StoreCase(0, 1),)}):
        with pytest.raises(UsageError):
            probe(tmp_path / "new", **bad)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError) as caught:
        probe(tmp_path / "file" / "below")
    assert caught.value.where == str(tmp_path / "file" / "below")


def test_the_space_is_pages_headers_in_whole_blocks_and_folders() -> None:
    terms = space_terms(147456 * 64, 100)
    assert [amount for _, amount in terms] == [943_718_400, 409_600, 102 * 4096]
    assert terms[0][0] == "100 pages of 9437184 B"
    assert space_terms(64, 100_000)[2][1] == 4098 * 4096

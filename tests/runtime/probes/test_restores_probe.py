"""Timed restores: real pools and the real store, every byte compared, everything given back."""

from __future__ import annotations

import threading
from pathlib import Path as FilePath

import numpy as np
import pytest

from hicachectl.errors import StorageError, UsageError
from hicachectl.runtime.cost import Path
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.probes.restores import RestoreProbe, run_restore_probe
from hicachectl.runtime.probes.stopping import ProbeStopped
from hicachectl.runtime.probes.store_folder import PREFIX
from hicachectl.runtime.probes.store_pages import page_namespace, probe_keys
from hicachectl.runtime.replay.driver import PageMismatch
from hicachectl.runtime.storage.file_format import write_object

GEOMETRY = preset("tiny-4k", 64)
LENGTHS = (1, 3, 8)


def probe(storage: FilePath | None = None, rounds: int = 2, **more: object) -> RestoreProbe:
    return run_restore_probe(GEOMETRY, LENGTHS, rounds=rounds, storage=storage, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", list(Layout))
def test_every_length_is_timed_in_every_round_on_every_path(tmp_path: FilePath, layout: Layout) -> None:
    found = probe(tmp_path, layout=layout)
    for path in (Path.HOST_READ, Path.HOST_WRITE, Path.STORAGE_READ):
        assert sorted(one.n_pages for one in found.of(path)) == sorted(2 * LENGTHS)
        assert all(one.n_bytes == one.n_pages * GEOMETRY.page_bytes and one.wall_s > 0 for one in found.of(path))
    assert [one.n_pages for one in found.of(Path.STORAGE_WRITE)] == [
        1,
        2,
        5,
    ] * 2  # all pages, as often as there are rounds, 3 at most
    assert sorted(n for n, _ in found.storage_restores) == sorted(2 * LENGTHS)
    reads = {(one.n_pages, one.wall_s) for one in found.of(Path.STORAGE_READ)}
    assert all(any(n == m and whole > read for m, read in reads) for n, whole in found.storage_restores)
    assert found.verified_pages == 1 + 2 * 2 * sum(LENGTHS)
    assert (found.device, found.backend) == ("cpu", "cpu")
    assert found.not_registered is not None
    assert found.storage_system is not None
    assert found.storage_resident_share is not None
    assert found.storage_resident_share == 0.0 or found.storage_system.in_memory
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_there_is_no_storage_tier() -> None:
    found = probe(backend=Backend.TORCH)
    assert (found.backend, found.backend_reason) == ("torch", "asked for")
    assert found.of(Path.STORAGE_READ) == found.of(Path.STORAGE_WRITE) == []
    assert (found.storage_folder, found.storage_resident_share, found.storage_restores) == (None, None, [])


def test_where_the_kernel_tells_nothing_of_the_page_cache_the_share_is_not_known(tmp_path: FilePath) -> None:
    def refuses(path: FilePath) -> float:
        raise OSError(19, "No such device")

    found = probe(tmp_path, look_at=refuses)
    assert len(found.storage_restores) == 2 * len(LENGTHS)
    assert found.storage_resident_share is None


@pytest.mark.parametrize("at", [1, 3, 5, 9])
def test_stopped_anywhere_nothing_is_left(tmp_path: FilePath, at: int) -> None:
    asked = iter([False] * at)
    with pytest.raises(ProbeStopped):
        probe(tmp_path / "new", stop=lambda: next(asked, True))
    assert list(tmp_path.iterdir()) == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("hicache-")] == []


class _Meddles:
    """Changes an object of the store once it is there."""

    def __init__(self, parent: FilePath, content: bytes | None) -> None:
        self.parent, self.content, self.done = parent, content, False

    def __call__(self) -> bool:
        key = probe_keys(3)[0]
        for path in () if self.done else self.parent.glob(f"{PREFIX}*/round/*/*/{key.hex()}*.page"):
            self.done = True
            if self.content is None:
                path.unlink()
            else:
                page = np.frombuffer(self.content, np.uint8)
                write_object(str(path), key, page_namespace(GEOMETRY, Layout.PAGE_FIRST_DIRECT).digest, page, 1)
        return False


def test_a_wrong_byte_from_storage_stops_the_probe(tmp_path: FilePath) -> None:
    with pytest.raises(PageMismatch, match=r"page 0 of \d holds 0x07 at plane 0, byte 0"):
        probe(tmp_path, rounds=1, stop=_Meddles(tmp_path, b"\x07" * GEOMETRY.page_bytes))
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_vanished_is_a_storage_error_with_what_was_read(tmp_path: FilePath) -> None:
    with pytest.raises(StorageError, match="No such file"):
        probe(tmp_path, rounds=1, stop=_Meddles(tmp_path, None))
    assert list(tmp_path.iterdir()) == []


def test_when_time_is_out_no_round_begins_however_many_were_asked_for() -> None:
    looks = iter([True, True])
    found = probe(rounds=10**9, go_on=lambda: next(looks, False))
    assert [one.n_pages for one in found.of(Path.HOST_READ)] == [1, 3]


def test_what_does_not_go_together_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(UsageError, match="do not go together"):
        probe(backend=Backend.UVA)
    for lengths, rounds in (((), 1), ((0,), 1), ((1,), 0)):
        with pytest.raises(UsageError):
            run_restore_probe(GEOMETRY, lengths, rounds=rounds)

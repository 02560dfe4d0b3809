"""Laws of the file backend."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from storage_samples import (
    PAGE_BYTES,
    FakeClock,
    Open,
    buffers,
    corrupt,
    key_of,
    keys_of,
    page_of,
    pages_of,
    stored_ids,
)

from hicachectl.errors import CapacityError, InvariantBroken, StorageError
from hicachectl.runtime.storage.base import StorageBackend, Stored
from hicachectl.runtime.storage.file import FileStorage, disk_bytes
from hicachectl.runtime.storage.file_format import HEADER_BYTES
from hicachectl.runtime.storage.object_keys import ObjectSpec, RankPlace, rank_suffix, whole

OBJECT = 4096  # a 256-byte page with its header occupies one block


def put(storage: FileStorage, *ids: int) -> int:
    return storage.write(keys_of(ids), pages_of(ids)).n_ok


def get(storage: FileStorage, *ids: int) -> int:
    """Read and compare every byte of what the storage says is right."""
    pages = buffers(len(ids))
    n_ok = storage.read(keys_of(ids), pages)
    for i, page in zip(ids[:n_ok], pages, strict=False):
        assert np.array_equal(page, page_of(i)), f"page {i} came back wrong"
    return n_ok


# ---- round trip ----


def test_what_comes_back_equals_what_went_in(open_storage: Open) -> None:
    storage = open_storage()
    assert put(storage, 0, 1, 2) == 3
    assert get(storage, 0, 1, 2) == 3
    stats = storage.stats()
    assert (stats.writes, stats.hits, stats.misses, stats.n_objects) == (3, 3, 0, 3)
    assert (stats.written_bytes, stats.read_bytes) == (3 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert stats.used_bytes == 3 * OBJECT


def test_the_file_backend_is_a_storage_backend(open_storage: Open) -> None:
    backend: StorageBackend = open_storage()
    assert backend.page_bytes == PAGE_BYTES


@pytest.mark.parametrize("page_bytes", [1, 4000, 4001, 65536, 3 * (1 << 20) + 5])
def test_every_page_size_round_trips(page_bytes: int, tmp_path: Path, spec: ObjectSpec) -> None:
    page = page_of(7, page_bytes)
    with FileStorage(tmp_path, 16 << 20, whole(spec, page_bytes)) as storage:
        assert storage.write([key_of(7)], [page]).n_ok == 1
        (back,) = buffers(1, page_bytes)
        assert storage.read([key_of(7)], [back]) == 1
        assert np.array_equal(back, page)
        assert storage.stats().used_bytes == disk_bytes(page_bytes)


def test_a_read_fills_views_of_a_larger_pool_and_nothing_beside_them(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0)
    pool = np.full((3, PAGE_BYTES), 0xEE, dtype=np.uint8)
    assert storage.read([key_of(0)], [pool[1]]) == 1
    assert np.array_equal(pool[1], page_of(0))
    assert (pool[[0, 2]] == 0xEE).all()


def test_a_read_stops_at_the_first_missing_page_and_keeps_the_earlier_ones(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1, 3)
    assert get(storage, 0, 1, 2, 3) == 2
    assert (storage.stats().hits, storage.stats().misses) == (2, 1)


def test_exists_is_the_leading_run(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1, 3)
    assert storage.exists_prefix(keys_of([0, 1, 2, 3])) == 2
    assert storage.exists_prefix(keys_of([2, 0])) == 0
    assert storage.exists_prefix([]) == 0
    assert (storage.stats().exists_hits, storage.stats().exists_misses) == (2, 2)


def test_a_stored_page_is_not_written_twice(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1)
    inode = storage.path_of(key_of(0)).stat().st_ino
    assert put(storage, 0, 1, 2) == 3
    assert storage.path_of(key_of(0)).stat().st_ino == inode
    assert (storage.stats().writes, storage.stats().writes_skipped) == (3, 2)


def test_fsync_stores_the_same(open_storage: Open) -> None:
    storage = open_storage(fsync=True)
    assert put(storage, 0) == 1
    assert get(storage, 0) == 1


def test_objects_lie_in_one_level_of_4096_folders_and_are_private_to_the_user(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0)
    path = storage.path_of(key_of(0))
    assert path.parent.name == key_of(0).hex()[:3]
    assert path.parent.parent.parent == storage.root
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ---- misuse by our own code ----


@pytest.mark.parametrize(
    ("keys", "pages", "text"),
    [
        ([key_of(0)], [], "1 page keys for 0 page buffers"),
        ([b"short"], [np.zeros(PAGE_BYTES, np.uint8)], "5 bytes, not 32"),
        ([key_of(0)], [np.zeros(PAGE_BYTES + 1, np.uint8)], "wanted 1-D contiguous uint8 of 256 bytes"),
        ([key_of(0)], [np.zeros(2 * PAGE_BYTES, np.uint8)[::2]], "contiguous=False"),
        ([key_of(0)], [np.zeros((2, PAGE_BYTES // 2), np.uint8)], "wanted 1-D"),
        ([key_of(0)], [np.zeros(PAGE_BYTES, np.int8)], "int8"),
    ],
)
def test_keys_and_buffers_that_do_not_fit_are_a_bug(
    open_storage: Open, keys: list[bytes], pages: list[object], text: str
) -> None:
    storage = open_storage()
    for call in (storage.read, storage.write):
        with pytest.raises(InvariantBroken, match=text):
            call(keys, pages)


def test_use_after_close_is_a_bug_and_closing_twice_is_not(open_storage: Open) -> None:
    storage = open_storage()
    storage.close()
    storage.close()
    with pytest.raises(InvariantBroken, match="after close"):
        put(storage, 0)
    with pytest.raises(InvariantBroken, match="after close"):
        storage.exists_prefix(keys_of([0]))


# ---- LRU by bytes ----


def test_the_folder_is_never_over_capacity(open_storage: Open) -> None:
    storage = open_storage(n_pages=3)
    for i in range(10):
        assert put(storage, i) == 1
        on_disk = sum(p.stat().st_blocks * 512 for p in storage.root.rglob("*.page"))
        assert on_disk <= storage.stats().used_bytes <= 3 * OBJECT
    assert stored_ids(storage, range(10)) == [7, 8, 9]
    assert storage.stats().evictions == 7


def test_a_read_refreshes_recency(open_storage: Open) -> None:
    storage = open_storage(n_pages=3)
    for i in range(3):
        put(storage, i)
    get(storage, 0)
    put(storage, 3)
    assert stored_ids(storage, range(4)) == [0, 2, 3]


def test_touch_refreshes_recency_and_exists_does_not(open_storage: Open) -> None:
    storage = open_storage(n_pages=3)
    for i in range(3):
        put(storage, i)
    storage.touch(keys_of([0]))
    storage.exists_prefix(keys_of([1]))
    put(storage, 3)
    assert stored_ids(storage, range(4)) == [0, 2, 3]


@pytest.mark.parametrize("how", ["write", "read", "touch"])
def test_the_tail_of_a_path_is_evicted_before_its_head(open_storage: Open, how: str) -> None:
    storage = open_storage(n_pages=4)
    put(storage, 0, 1, 2, 3)
    if how == "read":
        get(storage, 0, 1, 2, 3)
    if how == "touch":
        storage.touch(keys_of([0, 1, 2, 3]))
    put(storage, 4)
    put(storage, 5)
    assert stored_ids(storage, range(6)) == [0, 1, 4, 5]


def test_a_run_longer_than_the_capacity_keeps_its_head_and_stops(open_storage: Open) -> None:
    storage = open_storage(n_pages=4)
    put(storage, 100, 101)
    assert put(storage, *range(6)) == 4
    assert stored_ids(storage, range(6)) == [0, 1, 2, 3]
    assert storage.stats().failures == {"no_room": 1}


def test_a_write_never_evicts_a_page_of_its_own_run(open_storage: Open) -> None:
    storage = open_storage(n_pages=3)
    for i in (0, 100, 101):  # 0 is the oldest
        put(storage, i)
    assert put(storage, 0, 1) == 2
    assert stored_ids(storage, [0, 1, 100, 101]) == [0, 1, 101]


def test_a_capacity_below_one_page_is_refused_with_its_terms(open_storage: Open, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="does not hold one page") as caught:
        open_storage(n_pages=0)
    assert dict(caught.value.terms) == {
        "page": PAGE_BYTES,
        "header and block rounding": OBJECT - PAGE_BYTES,
        "capacity": 0,
    }


def test_before_page_stops_a_write_between_two_pages(open_storage: Open) -> None:
    storage = open_storage()
    answers = iter([True, True, False])
    assert storage.write(keys_of(range(5)), pages_of(range(5)), before_page=lambda: next(answers)).n_ok == 2
    assert stored_ids(storage, range(5)) == [0, 1]


def test_before_page_is_called_with_no_lock_held(open_storage: Open) -> None:
    storage = open_storage()
    done = threading.Event()

    def other_thread_writes() -> bool:
        thread = threading.Thread(target=lambda: (put(storage, 9), get(storage, 9), done.set()))
        thread.start()
        thread.join(10)
        return done.is_set()

    assert storage.write(keys_of([0]), pages_of([0]), before_page=other_thread_writes) == Stored(1, 1)


# ---- corruption: a miss, removed, counted ----


@pytest.mark.parametrize("offset", [0, 8, 10, 16, 24, 56, 72, HEADER_BYTES, HEADER_BYTES + PAGE_BYTES - 1])
def test_a_flipped_bit_anywhere_is_a_miss_and_removed(open_storage: Open, offset: int) -> None:
    storage = open_storage()
    put(storage, 0, 1, 2)
    corrupt(storage.path_of(key_of(1)), offset)
    assert get(storage, 0, 1, 2) == 1
    assert stored_ids(storage, range(3)) == [0, 2]
    stats = storage.stats()
    assert (stats.corrupt_removed, stats.failures) == (1, {"corrupt": 1})
    assert stats.n_objects == 2
    assert storage.exists_prefix(keys_of([0, 1, 2])) == 1


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES, HEADER_BYTES + PAGE_BYTES - 1, HEADER_BYTES + PAGE_BYTES + 1])
@pytest.mark.parametrize("asked_first", ["exists", "read"])
def test_a_file_of_the_wrong_length_is_a_miss_and_removed(open_storage: Open, length: int, asked_first: str) -> None:
    storage = open_storage(metadata_ttl_s=0.0)
    put(storage, 0)
    os.truncate(storage.path_of(key_of(0)), length)
    if asked_first == "exists":
        assert storage.exists_prefix(keys_of([0])) == 0
    else:
        assert get(storage, 0) == 0
    assert stored_ids(storage, [0]) == []
    assert storage.stats().corrupt_removed == 1
    assert put(storage, 0) == 1
    assert get(storage, 0) == 1


def test_a_file_under_another_pages_name_is_a_miss(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1)
    os.replace(storage.path_of(key_of(0)), storage.path_of(key_of(1)))
    assert get(storage, 1) == 0
    assert storage.stats().corrupt_removed == 1


def test_an_object_of_another_namespace_under_our_name_is_a_miss(open_storage: Open, spec: ObjectSpec) -> None:
    other = ObjectSpec("tiny", "float16", "gqa", 4, "plane-major", n_layers=2, n_heads=2)
    a, b = open_storage(), open_storage(namespace=whole(other, PAGE_BYTES))
    put(a, 0)
    b.path_of(key_of(0)).parent.mkdir(parents=True)
    os.replace(a.path_of(key_of(0)), b.path_of(key_of(0)))
    assert get(b, 0) == 0
    assert b.stats().corrupt_removed == 1


def test_all_zero_blocks_are_a_miss(open_storage: Open) -> None:
    """What a file system may leave after a power cut: the length is right, the blocks were never written."""
    storage = open_storage()
    put(storage, 0)
    storage.path_of(key_of(0)).write_bytes(bytes(HEADER_BYTES + PAGE_BYTES))
    assert get(storage, 0) == 0


def test_a_symlink_or_folder_under_an_objects_name_is_no_object_and_left_alone(
    open_storage: Open, tmp_path: Path
) -> None:
    storage = open_storage(metadata_ttl_s=0.0)
    put(storage, 0, 1)
    secret = tmp_path / "secret"
    os.replace(storage.path_of(key_of(0)), secret)
    storage.path_of(key_of(0)).symlink_to(secret)
    storage.path_of(key_of(1)).unlink()
    storage.path_of(key_of(1)).mkdir()
    for i in (0, 1):
        assert storage.exists_prefix(keys_of([i])) == 0
        assert get(storage, i) == 0
    assert secret.exists()
    assert storage.path_of(key_of(1)).is_dir()
    assert put(storage, 1) == 0
    assert put(storage, 2) == 1  # one name that is taken does not pause the disk


# ---- metadata cache ----


def test_existence_is_believed_for_the_ttl_and_then_looked_up(open_storage: Open, clock: FakeClock) -> None:
    storage = open_storage(metadata_ttl_s=5.0)
    put(storage, 0, 1)
    storage.path_of(key_of(1)).unlink()
    assert storage.exists_prefix(keys_of([0, 1])) == 2
    clock.now_s += 5.0
    assert storage.exists_prefix(keys_of([0, 1])) == 1
    assert storage.stats().n_objects == 1


def test_a_promised_page_that_vanished_is_a_miss_at_read(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1)
    storage.path_of(key_of(1)).unlink()
    assert get(storage, 0, 1) == 1
    assert storage.exists_prefix(keys_of([0, 1])) == 1
    assert storage.stats().failures == {}


def test_a_folder_removed_under_us_is_made_again(open_storage: Open) -> None:
    storage = open_storage(metadata_ttl_s=0.0)
    put(storage, 0)
    shutil.rmtree(storage.root)
    assert get(storage, 0) == 0
    assert put(storage, 0) == 1
    assert get(storage, 0) == 1


def test_a_page_written_by_another_process_is_found_at_once(open_storage: Open) -> None:
    a, b = open_storage(), open_storage()
    assert b.exists_prefix(keys_of([0])) == 0
    put(a, 0)
    assert b.exists_prefix(keys_of([0])) == 1
    assert get(b, 0) == 1
    assert b.stats().n_objects == 1


# ---- start-up scan ----


def test_a_restart_finds_the_objects_oldest_first(open_storage: Open, clock: FakeClock) -> None:
    first = open_storage(n_pages=4)
    for i in range(4):
        put(first, i)
    get(first, 0)
    first.close()
    second = open_storage(n_pages=4)
    assert second.scan.n_objects == 4
    put(second, 4)
    assert stored_ids(second, range(5)) == [0, 2, 3, 4]


def test_after_a_restart_tails_still_go_before_heads(open_storage: Open) -> None:
    first = open_storage(n_pages=4)
    put(first, 0, 1, 2, 3)
    first.close()
    second = open_storage(n_pages=4)
    put(second, 4)
    put(second, 5)
    assert stored_ids(second, range(6)) == [0, 1, 4, 5]


def test_after_a_read_and_a_restart_tails_still_go_before_heads(open_storage: Open) -> None:
    first = open_storage(n_pages=4)
    for i in (3, 2, 1, 0):
        put(first, i)
    get(first, 0, 1, 2, 3)
    first.close()
    second = open_storage(n_pages=4)
    put(second, 4)
    put(second, 5)
    assert stored_ids(second, range(6)) == [0, 1, 4, 5]


def test_ranks_on_one_folder_keep_their_objects_apart(open_storage: Open, spec: ObjectSpec) -> None:
    ranks = [rank_suffix(spec, RankPlace(tp_rank=rank, tp_size=2), PAGE_BYTES) for rank in range(2)]
    first = open_storage(namespace=ranks[0])
    put(first, 0, 1)
    second = open_storage(namespace=ranks[1])
    assert (second.scan.n_objects, second.scan.n_other_namespace) == (0, 2)
    assert second.exists_prefix(keys_of([0])) == 0
    put(second, 0)
    second.path_of(key_of(0)).unlink()
    assert get(first, 0, 1) == 2


def test_a_smaller_capacity_evicts_the_oldest_at_start(open_storage: Open) -> None:
    first = open_storage(n_pages=4)
    for i in range(4):
        put(first, i)
    first.close()
    second = open_storage(n_pages=2)
    assert stored_ids(second, range(4)) == [2, 3]
    assert second.scan.n_evicted == 2
    assert second.stats().used_bytes == 2 * OBJECT


def test_the_capacity_covers_other_namespaces_of_the_folder_oldest_first(open_storage: Open, clock: FakeClock) -> None:
    other = whole(ObjectSpec("old", "bfloat16", "gqa", 4, "plane-major", n_layers=2, n_heads=2), PAGE_BYTES)
    old = open_storage(n_pages=4, namespace=other)
    put(old, 0, 1, 2)
    old.close()
    clock.now_s += 1
    new = open_storage(n_pages=4)
    assert (new.scan.n_objects, new.scan.n_other_namespace) == (0, 3)
    assert new.exists_prefix(keys_of([0])) == 0
    put(new, 5, 6, 7)
    assert stored_ids(new, [5, 6, 7]) == [5, 6, 7]
    assert stored_ids(old, [0, 1, 2]) == [0]
    assert new.stats().used_bytes == 4 * OBJECT


def test_foreign_files_are_left_alone_and_counted(open_storage: Open) -> None:
    first = open_storage()
    put(first, 0)
    first.close()
    shard = first.path_of(key_of(0)).parent
    foreign = [
        first.root / "README", shard / "notes.txt", shard / (key_of(0).hex() + "_other.bin"), shard.parent / "lost+found",
        shard / ("f" * 64 + "_in_the_wrong_shard.page"),
    ]  # fmt: skip
    for path in foreign:
        path.write_text("mine")
    second = open_storage(n_pages=1)
    assert second.scan.n_foreign == len(foreign)
    put(second, 1)  # evicts 0, and nothing foreign
    assert [p.read_text() for p in foreign] == ["mine"] * len(foreign)


def test_short_objects_and_leftovers_are_removed_at_start(open_storage: Open) -> None:
    first = open_storage()
    put(first, 0, 1)
    first.close()
    os.truncate(first.path_of(key_of(0)), 10)
    leftover = first.path_of(key_of(1)).with_name(".tmp-1-0-00000000")
    leftover.write_bytes(b"half a page")
    second = open_storage()
    assert (second.scan.n_wrong_size, second.scan.n_temp_removed, second.scan.n_objects) == (1, 1, 1)
    assert not leftover.exists()
    assert second.stats().corrupt_removed == 1


def test_a_clock_set_back_does_not_make_new_objects_the_oldest(open_storage: Open, clock: FakeClock) -> None:
    first = open_storage(n_pages=3)
    put(first, 0)
    put(first, 1)
    first.close()
    clock.now_s -= 50.0
    second = open_storage(n_pages=3)
    put(second, 2)
    second.close()
    third = open_storage(n_pages=3)
    put(third, 3)
    assert stored_ids(third, range(4)) == [1, 2, 3]


# ---- set-up errors ----


def test_a_root_that_is_a_file_is_a_clear_error(open_storage: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be used") as caught:
        open_storage(root=tmp_path / "file")
    assert caught.value.where == str(tmp_path / "file")
    assert caught.value.hint


def test_a_root_below_a_file_is_a_clear_error(open_storage: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be used"):
        open_storage(root=tmp_path / "file" / "l3")


def test_a_root_that_does_not_exist_is_made_private(open_storage: Open, tmp_path: Path) -> None:
    storage = open_storage(root=tmp_path / "a" / "b")
    assert stat.S_IMODE(storage.root.stat().st_mode) == 0o700


# ---- several threads ----


def test_readers_and_writers_in_parallel_never_see_a_wrong_byte(open_storage: Open) -> None:
    storage = open_storage(n_pages=8, metadata_ttl_s=0.0)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            start = int(rng.integers(0, 20))
            ids = list(range(start, start + 4))
            if rng.random() < 0.5:
                put(storage, *ids)
            else:
                get(storage, *ids[: storage.exists_prefix(keys_of(ids))])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, seed) for seed in range(4)]:
            future.result(60)
    storage.check()
    on_disk = sum(p.stat().st_blocks * 512 for p in storage.root.rglob("*.page"))
    assert on_disk <= 8 * OBJECT
    assert storage.stats().failures.keys() <= {"no_room", "recency"}  # recency: evicted between read and utime
    assert list(storage.root.rglob(".tmp-*")) == []


def test_a_write_says_how_many_pages_were_there_before(open_storage: Open) -> None:
    storage = open_storage()
    put(storage, 0, 1)
    assert storage.write(keys_of(range(3)), pages_of(range(3))) == Stored(3, 1)
    assert storage.stats().written_bytes == 3 * 256

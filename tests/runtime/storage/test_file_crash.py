"""What SIGKILL, a second process, a full disk and a lost permission leave behind: misses, never a wrong byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from crash_child import PAGE_BYTES, SPEC
from storage_samples import FakeClock, Open, buffers, key_of, keys_of, page_of, pages_of, stored_ids

from hicachectl.errors import StorageError, StorageFault
from hicachectl.runtime.storage.disk_full import DiskState
from hicachectl.runtime.storage.file import FileStorage, disk_bytes
from hicachectl.runtime.storage.object_keys import whole

CHILD = Path(__file__).with_name("crash_child.py")


def start_child(root: Path, seed: int, n_pages: int = 12, fsync: bool = False) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(CHILD), str(root), str(seed), str(n_pages), str(int(fsync))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    return child


def kill(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL, "the child ended by itself: 3 is a wrong byte, 4 a corrupt object"


def every_object_is_right(root: Path, n_pages: int = 12) -> int:
    """Open the folder, read each page there is, compare its bytes; return how many there are."""
    with FileStorage(root, n_pages * disk_bytes(PAGE_BYTES), whole(SPEC, PAGE_BYTES)) as storage:
        found = stored_ids(storage, range(24))
        for i in found:
            (page,) = buffers(1, PAGE_BYTES)
            assert storage.read(keys_of([i]), [page]) == 1, f"page {i} is there and cannot be proven"
            assert np.array_equal(page, page_of(i, PAGE_BYTES)), f"page {i} came back wrong"
        assert storage.stats().corrupt_removed == 0
        storage.check()
    assert list(root.rglob(".tmp-*")) == []
    return len(found)


@pytest.mark.parametrize("fsync", [False, True])
def test_sigkill_in_the_middle_of_writing_leaves_whole_objects_and_no_leftover(tmp_path: Path, fsync: bool) -> None:
    for round_ in range(6):
        child = start_child(tmp_path, round_, fsync=fsync)
        assert child.stdout is not None
        try:
            child.stdout.read(1 + 2 * round_)  # a different number of runs each time, then somewhere inside the next
        finally:
            kill(child)
        assert 1 <= every_object_is_right(tmp_path) <= 12


HALF_WAY = """
import signal, sys, threading
from hicachectl.runtime.storage import file_format
write_all, sign = file_format._write_all, getattr(signal, sys.argv[2])
def half(fd, parts):
    write_all(fd, [parts[0], parts[1][: parts[1].nbytes // 2]])
    print("half", flush=True)
    signal.pthread_kill(threading.get_ident(), sign)  # this thread, before its next instruction
    write_all(fd, [parts[1][parts[1].nbytes // 2 :]])
file_format._write_all = half
child = sys.argv[1]
sys.argv = ["child", *sys.argv[3:]]
exec(compile(open(child).read(), child, "exec"), {"__name__": "__main__", "__file__": child})
"""


def start_child_that_stops_half_way(root: Path, sign: str) -> subprocess.Popen[bytes]:
    """Start the writer; it sends itself `sign` with its first page half written, so that the moment is certain."""
    command = [sys.executable, "-c", HALF_WAY, str(CHILD), sign, str(root), "0", "12", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    assert child.stdout.readline() == b"half\n"
    return child


def test_sigkill_inside_one_write_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    kill(start_child_that_stops_half_way(tmp_path, "SIGKILL"))
    (leftover,) = tmp_path.rglob(".tmp-*")
    assert 0 < leftover.stat().st_size < PAGE_BYTES
    assert list(tmp_path.rglob("*.page")) == []
    with FileStorage(tmp_path, 1 << 24, whole(SPEC, PAGE_BYTES)) as storage:
        assert (storage.scan.n_temp_removed, storage.scan.n_objects) == (1, 0)
    assert not leftover.exists()


def test_a_scan_leaves_the_write_of_a_living_process_alone(tmp_path: Path) -> None:
    """Held half way through a page, the writer keeps its temporary file; nobody sees the page."""
    child = start_child_that_stops_half_way(tmp_path, "SIGSTOP")
    try:
        (temp,) = tmp_path.rglob(".tmp-*")
        with FileStorage(tmp_path, 1 << 24, whole(SPEC, PAGE_BYTES)) as storage:
            assert (storage.scan.n_temp_live, storage.scan.n_temp_removed) == (1, 0)
            assert stored_ids(storage, range(24)) == []
            assert temp.exists()
    finally:
        kill(child)
    with FileStorage(tmp_path, 1 << 24, whole(SPEC, PAGE_BYTES)) as storage:
        assert storage.scan.n_temp_removed == 1


def test_two_processes_on_one_folder_never_corrupt_each_other(tmp_path: Path) -> None:
    """Both evict what the other writes, and one is killed: the other goes on, and every byte is right."""
    first, second = start_child(tmp_path, 1, n_pages=8), start_child(tmp_path, 2, n_pages=8)
    assert first.stdout is not None
    assert second.stdout is not None
    first.stdout.read(20)
    second.stdout.read(20)
    kill(first)
    assert len(second.stdout.read(20)) == 20
    kill(second)
    assert every_object_is_right(tmp_path, n_pages=24) >= 4


# ---- disk full, on a real 1 MiB file system of its own ----

FULL_DISK = """
import json, os, subprocess, sys
root = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", root], check=True)
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import numpy as np
from storage_samples import FakeClock, buffers, keys_of, page_of, stored_ids
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
SPEC = ObjectSpec("full", "bfloat16", "gqa", 4, "plane-major", n_layers=2, n_heads=2)
PAGE = 65536
clock = FakeClock()
s = FileStorage(Path(root) / "l3", 1 << 30, whole(SPEC, PAGE), clock=clock, wall_ns=clock.wall_ns)
def put(*ids): return s.write(keys_of(ids), [page_of(i, PAGE) for i in ids]).n_ok
def right(*ids):
    pages = buffers(len(ids), PAGE)
    n = s.read(keys_of(ids), pages)
    assert all(np.array_equal(p, page_of(i, PAGE)) for i, p in zip(ids[:n], pages))
    return n
out = {}
out["one_by_one"] = [put(i) for i in range(20)]
out["state"] = s.disk_state.value
out["kept"] = stored_ids(s, range(20))
out["right"] = sum(right(i) for i in range(20))
out["failures"] = dict(s.stats().failures)
out["run_longer_than_disk"] = put(*range(100, 130))
filler = os.open(os.path.join(root, "filler"), os.O_WRONLY | os.O_CREAT)
def fill():
    try:
        while os.write(filler, bytes(4096)): pass
    except OSError: pass
unlink = os.unlink
def unlink_and_lose_the_space(path):   # somebody else takes what an eviction frees before we write
    unlink(path); fill()
fill()
os.unlink = unlink_and_lose_the_space
out["squeezed"] = [put(200), put(201), put(202)]
out["squeezed_state"] = s.disk_state.value
n_before = len(list(Path(root).rglob("*.page")))
put(203); put(204)
out["paused_evicts"] = n_before - len(list(Path(root).rglob("*.page")))
os.unlink = unlink
os.close(filler); os.unlink(os.path.join(root, "filler"))
clock.now_s += 1000
out["recovered"] = put(300)
out["recovered_right"] = right(300)
out["recovered_state"] = s.disk_state.value
s.check()
s.close()
filler = os.open(os.path.join(root, "filler"), os.O_WRONLY | os.O_CREAT)
fill()
again = FileStorage(Path(root) / "l3", 1 << 30, whole(SPEC, PAGE), clock=clock)
out["opened_full"] = again.scan.n_objects > 0
out["temps"] = [p.name for p in Path(root).rglob(".tmp-*")]
print(json.dumps(out))
"""


def run_unshared(code: str, *arguments: str) -> dict[str, object]:
    """Run Python in a mount namespace of its own, so that its mounts are nobody else's; skip where that is refused."""
    try:
        probe = subprocess.run(
            ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"],
            check=False,
            capture_output=True,
            timeout=30,
        )
    except FileNotFoundError:
        pytest.skip("no unshare command: a file system of 1 MiB cannot be made")
    if probe.returncode:
        pytest.skip(f"a private 1 MiB tmpfs cannot be mounted: {probe.stderr.decode().strip()}")
    command = ["unshare", "-m", sys.executable, "-c", code, *arguments]
    child = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert child.returncode == 0, child.stderr.decode()
    result = json.loads(child.stdout)
    assert isinstance(result, dict)
    return result


def test_a_full_disk_is_a_smaller_cache_then_a_pause_and_never_a_crash(tmp_path: Path) -> None:
    out = run_unshared(FULL_DISK, str(tmp_path), str(Path(__file__).parent))
    assert out["one_by_one"] == [1] * 20  # evicting inside what fits keeps every newest page
    assert out["state"] == "shrunk"
    kept = out["kept"]
    assert isinstance(kept, list)
    assert 10 <= len(kept) <= 15  # 1 MiB / 68 KiB
    assert kept == list(range(20 - len(kept), 20))
    assert out["right"] == len(kept)
    assert out["failures"] == {"full": 1}
    assert out["run_longer_than_disk"] == len(kept)
    assert out["squeezed"] == [0, 0, 0]
    assert out["squeezed_state"] == "paused"
    assert out["paused_evicts"] == 0
    assert (out["recovered"], out["recovered_right"], out["recovered_state"]) == (1, 1, "open")
    assert out["opened_full"] is True
    assert out["temps"] == []


READ_ONLY = """
import json, subprocess, sys
root = sys.argv[1]
sys.path.insert(0, sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", root], check=True)
from pathlib import Path
from storage_samples import FakeClock, buffers, keys_of, page_of
from hicachectl.errors import StorageError
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
SPEC = ObjectSpec("ro", "bfloat16", "gqa", 4, "plane-major", n_layers=2, n_heads=2)
clock = FakeClock()
def open_it(): return FileStorage(Path(root), 2 * 4096, whole(SPEC, 256), clock=clock, metadata_ttl_s=0.0)
s = open_it()
out = {"before": s.write(keys_of([0, 1]), [page_of(0), page_of(1)]).n_ok}
subprocess.run(["mount", "-o", "remount,ro", root], check=True)
out["write"] = s.write(keys_of([2]), [page_of(2)]).n_ok
out["state"] = s.disk_state.value
out["read"] = s.read(keys_of([0, 1]), buffers(2))
out["failures"] = dict(s.stats().failures)
out["objects"] = s.stats().n_objects
s.check()
try: open_it()
except StorageError as error: out["error"] = [error.fault.value, str(error), error.hint]
print(json.dumps(out))
"""


def test_a_folder_that_turns_read_only_refuses_writes_and_keeps_serving(tmp_path: Path) -> None:
    out = run_unshared(READ_ONLY, str(tmp_path), str(Path(__file__).parent))
    assert (out["before"], out["write"], out["read"], out["objects"]) == (2, 0, 2, 2)
    failures = out["failures"]
    assert isinstance(failures, dict)
    assert failures["denied"] >= 1
    assert failures["recency"] == 2
    error = out["error"]
    assert isinstance(error, list)
    assert error[0] == "denied"
    assert "EROFS" in error[1]
    assert error[2]


# ---- permissions ----


@contextmanager
def without_root() -> Iterator[None]:
    """Be a user whom permission bits bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def reachable_root() -> Iterator[Path]:
    """A folder every user can reach: pytest's own are private to the user who runs it."""
    with tempfile.TemporaryDirectory(prefix="hicache-test-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def test_an_unwritable_folder_is_a_clear_error_at_set_up(open_storage: Open, reachable_root: Path) -> None:
    root = reachable_root / "l3"
    root.mkdir(mode=0o555)
    with without_root(), pytest.raises(StorageError) as caught:
        open_storage(root=root)
    assert caught.value.fault is StorageFault.DENIED
    assert str(root) in str(caught.value)
    assert "EACCES" in str(caught.value)
    assert caught.value.hint
    assert list(root.iterdir()) == []


def test_a_folder_that_turns_unwritable_keeps_serving_counts_and_recovers(
    open_storage: Open, reachable_root: Path, clock: FakeClock
) -> None:
    reachable_root.chmod(0o777)
    with without_root():
        storage = open_storage(n_pages=2, root=reachable_root / "l3", metadata_ttl_s=0.0)
        assert storage.write(keys_of([0, 1]), pages_of([0, 1])).n_ok == 2
        folders = [p for p in storage.root.rglob("*") if p.is_dir()]
        for folder in folders:
            folder.chmod(0o555)
        assert storage.write(keys_of([2]), pages_of([2])).n_ok == 0
        assert storage.read(keys_of([0, 1]), buffers(2)) == 2
        assert storage.stats().n_objects == 2
        assert storage.stats().failures["denied"] >= 1
        storage.check()
        for folder in folders:
            folder.chmod(0o755)
        clock.now_s += 1000
        assert storage.write(keys_of([2]), pages_of([2])).n_ok == 1
        assert stored_ids(storage, range(3)) == [0, 2]


def test_a_corrupt_object_that_cannot_be_removed_is_never_a_hit_again(
    open_storage: Open, reachable_root: Path, clock: FakeClock
) -> None:
    reachable_root.chmod(0o777)
    with without_root():
        storage = open_storage(root=reachable_root / "l3", metadata_ttl_s=0.0)
        storage.write(keys_of([0]), pages_of([0]))
        path = storage.path_of(key_of(0))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        path.parent.chmod(0o555)
        assert storage.read(keys_of([0]), buffers(1)) == 0
        assert storage.exists_prefix(keys_of([0])) == 0
        assert storage.stats().corrupt_removed == 0
        assert storage.stats().failures == {"corrupt": 1, "denied": 1}
        path.parent.chmod(0o755)
        assert storage.write(keys_of([0]), pages_of([0])).n_ok == 1
        assert storage.read(keys_of([0]), buffers(1)) == 1


def test_an_unreadable_object_is_a_counted_miss(open_storage: Open, reachable_root: Path) -> None:
    reachable_root.chmod(0o777)
    with without_root():
        storage = open_storage(root=reachable_root / "l3")
        storage.write(keys_of([0]), pages_of([0]))
        storage.path_of(key_of(0)).chmod(0)
        assert storage.read(keys_of([0]), buffers(1)) == 0
        assert storage.stats().failures == {"denied": 1}
        assert storage.disk_state is DiskState.OPEN

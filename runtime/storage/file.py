"""L3 in a folder: a page a file, least recently used out first, every byte proven at read.

    with FileStorage(Path("/var/cache/hicache"), 64 << 30, namespace) as storage:
        n = storage.exists_prefix(keys)         # complete objects, leading run
        n = storage.read(keys[:n], host_pages)  # n pages proven right
        storage.write(new_keys, new_pages)

Several processes may use one folder: objects appear by atomic rename, names tell namespaces and ranks apart, and equal
names hold equal bytes, so no lock file is needed and nobody can read half an object. Each process keeps its own bytes
within its own `capacity_bytes`, counting what it wrote, met at the start-up scan or was asked for; give each process its
share. What another one removes is noticed within `metadata_ttl_s`, or at read, as a miss.

Bytes are counted as the blocks files occupy; folders come on top (4 KiB each, up to 4,096 a namespace).
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hicachectl.errors import CapacityError, InvariantBroken, StorageError, StorageFault
from hicachectl.runtime.storage.base import PageBytes, StorageStats, Stored, check_pages
from hicachectl.runtime.storage.disk_full import DiskGuard, DiskState
from hicachectl.runtime.storage.file_format import HEADER_BYTES, fault_of, read_object, set_recency, write_object
from hicachectl.runtime.storage.file_index import FileIndex, ObjectId
from hicachectl.runtime.storage.file_scan import FoundObject, ScanReport, prepare_folder, relative_path, scan_folder
from hicachectl.runtime.storage.object_keys import ObjectNamespace

__all__ = ["FileStorage", "disk_bytes"]

_UNREMOVABLE_A_WRITE = (
    3  # victims that resist before a write gives up; a folder turned read-only resists for all of them
)


def disk_bytes(page_bytes: int, block_bytes: int = 4096) -> int:
    """Return what one page costs of the capacity: header and page, in whole blocks. Pure.

    >>> disk_bytes(65536), disk_bytes(100)
    (69632, 4096)
    """
    return -(-(HEADER_BYTES + page_bytes) // block_bytes) * block_bytes


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    exists_hits: int = 0
    exists_misses: int = 0
    corrupt_removed: int = 0
    writes: int = 0
    writes_skipped: int = 0
    evictions: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    written_bytes: int = 0
    write_s: float = 0.0


class FileStorage:
    """The file backend of StorageBackend.

    `clock` gives seconds for the metadata TTL and the waits after a full disk (monotonic by default), `wall_ns` the
    nanoseconds written as recency into file times, which order the objects at the next start. `metadata_ttl_s` is how
    long an object once seen is believed to be there (5 s as SGLang's file backend, docs/facts.md#sglang-metadata; inf
    for a private folder).
    `fsync` makes each object durable before its name appears.
    """

    def __init__(
        self,
        root: Path,
        capacity_bytes: int,
        namespace: ObjectNamespace,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        fsync: bool = False,
        metadata_ttl_s: float = 5.0,
    ) -> None:
        """Open or create the folder, scan it and evict down to the capacity.

        Raises StorageError when the folder cannot be created, listed or written, CapacityError when not even one page
        fits the capacity.
        """
        self.root = root
        self.namespace = namespace
        self.scan = ScanReport()
        self._root = os.fspath(root)
        self._clock = clock
        self._wall_ns = wall_ns
        self._fsync = fsync
        self._ttl_s = metadata_ttl_s
        self._lock = threading.Lock()  # index, counts, guard; never held during I/O
        self._write_lock = threading.Lock()  # one writer at a time: what it evicts it may fill
        self._guard = DiskGuard()
        self._counts = _Counts()
        self._failures: Counter[str] = Counter()
        self._condemned: set[bytes] = set()  # corrupt objects that could not be removed: never again a hit
        self._last_stamp_ns = 0
        self._closed = False
        block_bytes, is_full = prepare_folder(self._root)
        if is_full:
            self._failures[StorageFault.FULL.value] += 1
        self.object_bytes = disk_bytes(namespace.page_bytes, block_bytes)
        self._block_bytes = block_bytes
        if capacity_bytes < self.object_bytes:
            raise CapacityError(
                f"a capacity of {capacity_bytes} bytes does not hold one page of {self.object_bytes} bytes on disk",
                where=self._root,
                terms=[("page", namespace.page_bytes), ("header and block rounding", self.object_bytes - namespace.page_bytes),
                       ("capacity", capacity_bytes)],
                hint="give the storage tier room for at least the pages of one request",
            )  # fmt: skip
        self._index = FileIndex(capacity_bytes)
        self._scan_root()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.namespace.page_bytes

    @property
    def disk_state(self) -> DiskState:
        """Whether writes go on, go on inside what the objects occupy, or wait."""
        with self._lock:
            return self._guard.at(self._clock())

    def path_of(self, key: bytes) -> Path:
        """Return the file of a page key, there or not. Pure."""
        return self.root / relative_path(self.namespace, key)

    def exists_prefix(self, keys: Sequence[bytes]) -> int:
        """Return how many leading keys are stored; as old as `metadata_ttl_s` at most. Recency is left alone."""
        self._require_open()
        n = 0
        while n < len(keys):
            n = self._known_run(keys, n)
            if n == len(keys) or not self._look(keys[n]):
                break
            n += 1
        with self._lock:
            self._counts.exists_hits += n
            self._counts.exists_misses += n < len(keys)
        return n

    def read(self, keys: Sequence[bytes], pages: Sequence[PageBytes]) -> int:
        """Fill the leading pages that are stored and proven right; return how many.

        Reads straight into `pages`. A corrupt or short file is a miss, removed and counted.
        """
        self._require_open()
        check_pages(keys, pages, self.page_bytes)
        started_s = time.perf_counter()
        stamp_ns = self._stamp(len(keys))
        n_ok = 0
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if not self._read_one(key, page, stamp_ns - i):
                break
            n_ok += 1
        now_s = self._clock()
        with self._lock:
            for key in reversed(keys[:n_ok]):
                self._index.add(key, self.object_bytes, now_s)
            self._counts.hits += n_ok
            self._counts.misses += n_ok < len(keys)
            self._counts.read_bytes += n_ok * self.page_bytes
            self._counts.read_s += time.perf_counter() - started_s
        return n_ok

    def write(
        self, keys: Sequence[bytes], pages: Sequence[PageBytes], *, before_page: Callable[[], bool] | None = None
    ) -> Stored:
        """Store the leading pages that can be stored; return how many are stored now, and how many of them are new.

        Pages already there are not written again. Evicts the least recently used objects for room, never one of `keys`.
        Stops at the first page that the disk refuses; the reason is counted.
        """
        self._require_open()
        check_pages(keys, pages, self.page_bytes)
        stamp_ns = self._stamp(len(keys))
        keep = frozenset(keys)
        self.touch(keys)
        n_ok = n_new = 0
        for i, key in enumerate(keys):
            if before_page is not None and not before_page():
                break
            with self._write_lock:
                is_new = self._store(key, pages, i, stamp_ns - i, keep)
            if is_new is None:
                break
            n_ok += 1
            n_new += is_new
        self.touch(keys)
        return Stored(n_ok, n_new)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Make a path's stored pages the most recent of this process, head last to go; file times stay."""
        with self._lock:
            self._index.touch(reversed(keys))

    def stats(self) -> StorageStats:
        """Return the counters as they stand."""
        with self._lock:
            c = self._counts
            return StorageStats(
                n_objects=len(self._index),
                used_bytes=self._index.used_bytes + self._index.leaving_bytes,
                capacity_bytes=self._index.capacity_bytes,
                hits=c.hits,
                misses=c.misses,
                exists_hits=c.exists_hits,
                exists_misses=c.exists_misses,
                corrupt_removed=c.corrupt_removed,
                writes=c.writes,
                writes_skipped=c.writes_skipped,
                evictions=c.evictions,
                read_bytes=c.read_bytes,
                read_s=c.read_s,
                written_bytes=c.written_bytes,
                write_s=c.write_s,
                failures=dict(self._failures),
            )

    def check(self) -> None:
        """Raise InvariantBroken unless the byte counts balance and nothing is over the capacity."""
        with self._write_lock, self._lock:
            self._index.check()
            if self._index.reserved_bytes:
                raise InvariantBroken(
                    f"{self._index.reserved_bytes} bytes reserved while nobody writes", where=self._root
                )

    def close(self) -> None:
        """Refuse further calls; the objects stay for the next start. Waits for a page being written."""
        with self._write_lock, self._lock:
            self._closed = True

    def __enter__(self) -> FileStorage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- existence ----

    def _known_run(self, keys: Sequence[bytes], start: int) -> int:
        """Return the first position from `start` whose object was not seen within the TTL."""
        now_s = self._clock()
        with self._lock:
            for i in range(start, len(keys)):
                entry = self._index.get(keys[i])
                if entry is None or now_s - entry.seen_s >= self._ttl_s:
                    return i
        return len(keys)

    def _look(self, key: bytes) -> bool:
        """Ask the file system for one object and bring the index up to date; whole objects only."""
        path = self._path(key)
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError as error:
            with self._lock:
                self._index.forget(key)
                if fault_of(error) is not StorageFault.MISSING:
                    self._failures[fault_of(error).value] += 1
            return False
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_size != HEADER_BYTES + self.page_bytes:
            self._remove_corrupt(key, path)
            return False
        now_s = self._clock()
        with self._lock:
            if key in self._condemned:
                return False
            entry = self._index.get(key)
            if entry is None:
                self._index.add(key, self.object_bytes, now_s)
            else:
                entry.seen_s = now_s
        return True

    # ---- reading ----

    def _read_one(self, key: bytes, page: PageBytes, stamp_ns: int) -> bool:
        path = self._path(key)
        try:
            wrong = read_object(path, key, self.namespace.digest, page)
        except OSError as error:
            fault = fault_of(error)
            with self._lock:
                if fault is StorageFault.MISSING:
                    self._index.forget(key)
                else:
                    self._failures[fault.value] += 1
            return False
        if wrong is not None:
            self._remove_corrupt(key, path)
            return False
        try:
            set_recency(path, stamp_ns)
        except (
            OSError
        ):  # evicted meanwhile, read-only or another user's: the page is right, only the next start's order is off
            with self._lock:
                self._failures["recency"] += 1
        return True

    def _remove_corrupt(self, key: bytes, path: str) -> None:
        fault: StorageFault | None = None
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # somebody else removed it first; it is gone, as wanted
        except OSError as error:
            fault = fault_of(error)
        with self._lock:
            self._index.forget(key)
            self._failures[StorageFault.CORRUPT.value] += 1
            if fault is None:
                self._counts.corrupt_removed += 1
            else:
                self._condemned.add(key)
                self._failures[fault.value] += 1

    # ---- writing ----

    def _store(
        self, key: bytes, pages: Sequence[PageBytes], i: int, stamp_ns: int, keep: Collection[ObjectId]
    ) -> bool | None:
        """Store page `i`; returns whether it is new, None when the disk refuses it."""
        self._require_open()
        if self._known_run((key,), 0) == 1 or self._look(key):
            with self._lock:
                self._counts.writes_skipped += 1
            return False
        started_s = time.perf_counter()
        page = pages[i]
        while self._may_write() and self._make_room(keep):
            try:
                write_object(self._path(key), key, self.namespace.digest, page, stamp_ns, fsync=self._fsync)
            except OSError as error:
                if not self._try_again(error):
                    return None
                continue
            now_s = self._clock()
            with self._lock:
                self._index.commit(key, self.object_bytes, now_s)
                self._condemned.discard(key)
                self._guard.succeeded(now_s)
                self._counts.writes += 1
                self._counts.written_bytes += self.page_bytes
                self._counts.write_s += time.perf_counter() - started_s
            return True
        return None

    def _may_write(self) -> bool:
        """Return whether the disk may be tried, and set the bytes to stay within."""
        with self._lock:
            state = self._guard.at(self._clock())
            if state is DiskState.OPEN:
                self._index.limit_bytes = self._index.capacity_bytes
            elif state is DiskState.PAUSED:
                self._failures["paused"] += 1
            return state is not DiskState.PAUSED

    def _make_room(self, keep: Collection[ObjectId]) -> bool:
        """Reserve the bytes of one object, evicting for them; False when they cannot be had. Ends in commit or abort."""
        n_resisting = 0
        while True:
            with self._lock:
                if self._index.reserve(self.object_bytes):
                    return True
                victim = self._index.begin_evict(keep) if n_resisting < _UNREMOVABLE_A_WRITE else None
                if victim is None:
                    self._failures["no_room"] += 1
                    return False
            n_resisting += not self._evict(victim)

    def _evict(self, victim: ObjectId) -> bool:
        fault: StorageFault | None = None
        path = f"{self._root}/{victim}" if isinstance(victim, str) else self._path(victim)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # another process evicted it
        except OSError as error:
            fault = fault_of(error)
        with self._lock:
            self._index.end_evict(victim, removed=fault is None)
            if fault is None:
                self._counts.evictions += 1
            else:
                self._failures[fault.value] += 1
        return fault is None

    def _try_again(self, error: OSError) -> bool:
        """Give the reservation back, count the refusal, and return whether evicting could help at once."""
        fault = fault_of(error)
        with self._lock:
            self._index.abort(self.object_bytes)
            self._failures[fault.value] += 1
            if fault in (StorageFault.MISSING, StorageFault.CORRUPT):
                return False  # this name is taken or its folder vanished: no verdict on the disk
            occupied = self._index.used_bytes + self._index.leaving_bytes
            can_shrink = fault is StorageFault.FULL and occupied >= self.object_bytes
            if self._guard.refused(self._clock(), can_shrink=can_shrink) is DiskState.SHRUNK:
                self._index.limit_bytes = min(self._index.capacity_bytes, occupied)
                return True
            return False

    # ---- set-up ----

    def _scan_root(self) -> None:
        started_s = time.perf_counter()
        now_s = self._clock()
        try:
            found = list(scan_folder(self._root, self.namespace, HEADER_BYTES + self.page_bytes, self.scan))
        except OSError as error:
            raise StorageError(
                f"the storage folder cannot be listed: {error.strerror or error}", fault=fault_of(error), where=self._root,
                hint="choose a folder this user can read and write",
            ) from error  # fmt: skip
        found.sort(key=_age)
        for item in found:
            blocks = -(-item.file_bytes // self._block_bytes)
            self._index.add(item.object_id, blocks * self._block_bytes, now_s)
            self._last_stamp_ns = max(self._last_stamp_ns, item.mtime_ns)
        self._counts.corrupt_removed += self.scan.n_wrong_size
        if self._index.free_bytes < 0:
            self._evict_down()
        self.scan.wall_s = time.perf_counter() - started_s

    def _evict_down(self) -> None:
        n_resisting = 0
        while self._index.free_bytes < 0 and n_resisting < _UNREMOVABLE_A_WRITE:
            victim = self._index.begin_evict()
            if victim is None:
                break
            removed = self._evict(victim)
            self.scan.n_evicted += removed
            n_resisting += not removed

    # ---- small things ----

    def _path(self, key: bytes) -> str:
        return f"{self._root}/{relative_path(self.namespace, key)}"

    def _stamp(self, n: int) -> int:
        """Return the recency of the head of `n` pages; page i gets it minus i, so heads outlive tails after a restart."""
        wall_ns = self._wall_ns()
        with self._lock:
            self._last_stamp_ns = max(wall_ns, self._last_stamp_ns + n + 1)
            return self._last_stamp_ns

    def _require_open(self) -> None:
        if self._closed:
            raise InvariantBroken("the storage was used after close()", where=self._root)


def _age(item: FoundObject) -> tuple[int, str]:
    return item.mtime_ns, item.object_id if isinstance(item.object_id, str) else item.object_id.hex()

"""Rounds of the store probe: one set of pages through every operation, timed call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.probes.page_cache import Look, put_out, sampled_share
from hicachectl.runtime.probes.stopping import ProbeStopped, Stop
from hicachectl.runtime.probes.store_folder import StoreFolder
from hicachectl.runtime.probes.store_pages import ProbePages, failure_words, page_namespace
from hicachectl.runtime.probes.store_rows import Call, StoreCase, StoreOp, StoreRow
from hicachectl.runtime.storage.base import read_into
from hicachectl.runtime.storage.file import FileStorage, disk_bytes
from hicachectl.runtime.threads import run_threads

__all__ = ["StoreRounds"]

_SAMPLED_FILES = 32  # whose residency is looked at: a look maps the file
_COLD = 0.01
"""Share of the sampled bytes that may be left in the page cache of a cold read."""


class _Refused(Exception):
    """An operation that could not be measured, with the reason."""


class StoreRounds:
    """The pages, the folder, and what was collected so far."""

    def __init__(
        self, folder: StoreFolder, geometry: KVGeometry, layout: Layout, n_pages: int, stop: Stop, clock: Callable[[], float],
        look_at: Look,
    ) -> None:  # fmt: skip
        self._folder, self._geometry, self._stop, self._clock = folder, geometry, stop, clock
        self._look_at = look_at
        self._pages = ProbePages(geometry, layout, n_pages)
        self._keys = self._pages.keys
        self._namespace = page_namespace(geometry, layout)
        self.object_bytes = disk_bytes(geometry.page_bytes)
        self.verified_pages = 0
        self.scan_s: list[float] = []
        self._wall: dict[tuple[StoreCase, StoreOp], list[float]] = {}
        self._calls: dict[tuple[StoreCase, StoreOp], list[tuple[Call, ...]]] = {}
        self._resident: dict[tuple[StoreCase, StoreOp], list[float]] = {}
        self._why: dict[tuple[StoreCase, StoreOp], str] = {}

    def close(self) -> None:
        """Give the host memory back."""
        self._pages.close()

    def row(self, case: StoreCase, op: StoreOp) -> StoreRow:
        """Return what was collected of one operation."""
        at, resident = (case, op), self._resident.get((case, op))
        return StoreRow(
            case, op, len(self._keys), len(self._keys) * self._geometry.page_bytes,
            tuple(self._wall.get(at, ())), tuple(self._calls.get(at, ())),
            None if resident is None else float(np.mean(resident)), self._why.get(at),
        )  # fmt: skip

    def round(self, case: StoreCase, *, durable: bool) -> None:
        """Take one set of pages through every operation."""
        with self._open() as storage:
            self.object_bytes = storage.object_bytes
            if self._timed(case, StoreOp.WRITE, lambda part: self._write(storage, part)):
                self._timed(case, StoreOp.READ_WARM, lambda part: self._read(storage, part), self._look, proves=True)
                self._timed(case, StoreOp.EXISTS_KNOWN, lambda part: self._exists(storage, part))
                with self._open(metadata_ttl_s=0.0) as looking:
                    self.scan_s.append(looking.scan.wall_s)
                    self._timed(case, StoreOp.EXISTS_LOOKED, lambda part: self._exists(looking, part))
                self._timed(case, StoreOp.READ_COLD, lambda part: self._read(storage, part), self._chill, proves=True)
            else:
                why = f"nothing to read: {self._why[case, StoreOp.WRITE]}"
                for op in (StoreOp.READ_WARM, StoreOp.EXISTS_KNOWN, StoreOp.EXISTS_LOOKED, StoreOp.READ_COLD):
                    self._why.setdefault((case, op), why)
        self._folder.clear()
        if durable:
            with self._open(fsync=True) as storage:
                self._timed(case, StoreOp.WRITE_DURABLE, lambda part: self._write(storage, part))
            self._folder.clear()

    def _timed(
        self, case: StoreCase, op: StoreOp, call: Callable[[slice], None], before: Callable[[], float | None] | None = None,
        *, proves: bool = False,
    ) -> bool:  # fmt: skip
        """Run one operation over all pages and keep its times; say whether it went well. A refusal ends the row."""
        at = (case, op)
        if at in self._why:
            return False
        try:
            if before is not None:
                share = before()
                if share is not None:
                    self._resident.setdefault(at, []).append(share)
                elif op is StoreOp.READ_COLD:
                    raise _Refused(
                        "the kernel does not tell what of these files is in the page cache: no read can be called cold"
                    )
                if op is StoreOp.READ_COLD and share is not None and share > _COLD:
                    raise _Refused(
                        f"{100 * share:.0f} % of the files stayed in the page cache after fsync and DONTNEED"
                    )
            if proves:
                self._pages.poison()
            wall, calls = self._all(case, call)
            if proves:
                self.verified_pages += self._pages.prove(f"{op.value} from {self._folder.path}")
        except (_Refused, OSError) as error:
            self._why[at] = str(error)
            return False
        finally:
            if proves and not self._stop():
                self._pages.fill()
        self._wall.setdefault(at, []).append(wall)
        self._calls.setdefault(at, []).append(tuple(calls))
        return True

    def _all(self, case: StoreCase, call: Callable[[slice], None]) -> tuple[float, list[Call]]:
        """Call for all pages, from the threads of the case; return the wall seconds and the calls.

        Raises what a call raised first, and ProbeStopped.
        """
        parts = iter([slice(at, at + case.batch_pages) for at in range(0, len(self._keys), case.batch_pages)])
        lock, failed, calls = threading.Lock(), list[BaseException](), list[Call]()

        def work() -> None:
            while not self._stop() and not failed:
                with lock:
                    part = next(parts, None)
                if part is None:
                    return
                try:
                    began = self._clock()
                    call(part)
                    took = self._clock() - began
                except Exception as error:  # noqa: BLE001 - carried to the caller's thread
                    failed.append(error)
                    return
                calls.append(Call(len(self._keys[part]), took))

        began = self._clock()
        # The others end after their call: nothing is written while the folder is removed. One alone is not timed with their making.
        if case.n_threads == 1:
            work()
        else:
            others = [work] * (case.n_threads - 1)
            run_threads(others, "probe", stop=lambda: failed.append(ProbeStopped()), meanwhile=work)
        wall = self._clock() - began
        if self._stop():
            raise ProbeStopped
        if failed:
            raise failed[0]
        return wall, calls

    def _open(self, *, fsync: bool = False, metadata_ttl_s: float = float("inf")) -> FileStorage:
        capacity = 2 * len(self._keys) * disk_bytes(self._geometry.page_bytes, 1 << 16)  # nothing is evicted here
        return FileStorage(
            self._folder.path / "round", capacity, self._namespace, fsync=fsync, metadata_ttl_s=metadata_ttl_s
        )

    def _write(self, storage: FileStorage, part: slice) -> None:
        keys = self._keys[part]
        stored = storage.write(keys, self._pages.sources(part))
        if stored.n_new != len(keys):
            raise _Refused(f"{stored.n_new} of {len(keys)} pages of a call were written ({failure_words(storage)})")

    def _read(self, storage: FileStorage, part: slice) -> None:
        keys = self._keys[part]
        n = read_into(storage, keys, self._pages.targets(part))
        if n != len(keys):
            raise _Refused(f"{n} of {len(keys)} pages of a call were read ({failure_words(storage)})")

    def _exists(self, storage: FileStorage, part: slice) -> None:
        keys = self._keys[part]
        n = storage.exists_prefix(keys)
        if n != len(keys):
            raise _Refused(f"{n} of {len(keys)} pages of a call were found ({failure_words(storage)})")

    def _files(self) -> list[Path]:
        return sorted((self._folder.path / "round").glob("hicache1-*/*/*.page"))

    def _look(self) -> float | None:
        """Return how much of the files is in the page cache, from a sample; None where that is not told."""
        return sampled_share(self._files(), _SAMPLED_FILES, self._look_at)

    def _chill(self) -> float | None:
        """Put every file out of the page cache, and return what stayed there; None where that is not told."""
        for path in self._files():
            if self._stop():
                raise ProbeStopped
            put_out(path)
        return self._look()

"""How long restores take by their length: host to device by the transfer engine, storage to host and on by the file backend.

Slots are scattered on both sides. Before each timed restore the target holds other bytes, after it every byte is compared.
A first transfer each way is not counted: what is allocated once belongs to no sample. Storage is read cold where the kernel lets
go of the files (`page_cache.put_out`), and `storage_resident_share` says how much of them was in memory all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from time import perf_counter

import numpy as np

from hicachectl.errors import StorageError, StorageFault, UsageError, Vanished
from hicachectl.runtime.cost import Path
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.keys import key64
from hicachectl.runtime.layout import Backend, Layout, require_compatible
from hicachectl.runtime.memory.cuda_registrar import registrar_for
from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.memory.host_pool import HostPool, map_pool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import MappingReport
from hicachectl.runtime.probes.page_cache import FileSystem, Look, file_system, put_out, resident_share, sampled_share
from hicachectl.runtime.probes.stopping import ProbeStopped, Stop, never
from hicachectl.runtime.probes.store_folder import StoreFolder
from hicachectl.runtime.probes.store_pages import failure_words, page_namespace, probe_keys
from hicachectl.runtime.probes.turns import turns
from hicachectl.runtime.replay.driver import PageMismatch
from hicachectl.runtime.replay.pool_content import PoolContent
from hicachectl.runtime.storage.base import read_into
from hicachectl.runtime.storage.file import FileStorage, disk_bytes
from hicachectl.runtime.storage.file_format import fault_of
from hicachectl.runtime.transfer.autotune import autotune
from hicachectl.runtime.transfer.backends import CopyBackend, make_backend
from hicachectl.runtime.transfer.device import device_type
from hicachectl.runtime.transfer.engine import Transfer, TransferEngine
from hicachectl.runtime.transfer.groups import load_groups

__all__ = ["PathTiming", "RestoreProbe", "run_restore_probe"]

_WAIT_S = 120.0
_WRITES = 3
"""Times that all pages are written to storage: the fewest that tell how far apart they lie (our choice)."""
_SAMPLED_FILES = 16


@dataclass(frozen=True, slots=True)
class PathTiming:
    """One transfer on one path: pages, bytes, wall seconds from asking to the last byte."""

    path: Path
    n_pages: int
    n_bytes: int
    wall_s: float


@dataclass(slots=True)
class RestoreProbe:
    """What was measured. `storage_restores` are storage to device as a whole: (pages, seconds), both steps one after the other.

    `not_registered` says why the host pool is not known to a device's driver; `storage_folder` is None without a storage tier.
    `left` are paths not removed at the end.
    """

    device: str
    backend: str
    backend_reason: str
    not_registered: str | None
    timings: list[PathTiming] = field(default_factory=list)
    storage_restores: list[tuple[int, float]] = field(default_factory=list)
    verified_pages: int = 0
    storage_folder: str | None = None
    storage_system: FileSystem | None = None
    storage_resident_share: float | None = None
    left: tuple[str, ...] = ()
    host_memory: MappingReport | None = None
    """What the host pool's memory got."""

    def of(self, path: Path) -> list[PathTiming]:
        """Return the timings of one path, oldest first. Pure."""
        return [one for one in self.timings if one.path is path]


def run_restore_probe(
    geometry: KVGeometry,
    lengths: Sequence[int],
    *,
    rounds: int = 5,
    device: str = "cpu",
    layout: Layout = Layout.PAGE_FIRST_DIRECT,
    backend: Backend | None = None,
    host_memory: MappingSpec = MappingSpec(),  # noqa: B008 - frozen
    storage: FilePath | None = None,
    stop: Stop = never,
    told: Callable[[str], None] = lambda text: None,
    go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = perf_counter,
    look_at: Look = resident_share,
) -> RestoreProbe:
    """Time restores of `lengths` pages on `device`, and from a new folder below `storage` when one is given.

    Takes a device and a host pool of the longest length, and writes as many pages into the folder; all is given back whatever
    happens. `backend` None measures which to take; `host_memory` is what is asked of the host pool's memory; `go_on` is asked before each length of each round. Raises ProbeStopped when asked to stop, UsageError for what does not go
    together, CapacityError and StorageError for pools and folders that cannot be had, PageMismatch for a wrong byte.
    """
    if rounds < 1 or not lengths or min(lengths) < 1:
        raise UsageError(
            f"{rounds} rounds of lengths {list(lengths)}", hint="at least 1 round, lengths of 1 page or more"
        )
    if backend is not None:
        require_compatible(layout, backend, device_type(device))
    rig = _Rig(geometry, max(lengths), device, layout, backend, host_memory, stop, clock, look_at)
    try:
        if storage is None:
            rig.warm_up(min(lengths))
            rig.rounds(sorted(set(lengths)), rounds, None, told, go_on)
        else:
            with StoreFolder(storage) as folder:
                told(f"writing {max(lengths)} pages to {folder.path}")
                rig.warm_up(min(lengths))
                for _ in range(min(rounds, _WRITES) - 1):
                    if go_on():
                        with rig.open_storage(folder) as store:
                            rig.store_all(store, sorted(set(lengths)))
                        folder.clear()
                with rig.open_storage(folder) as store:
                    rig.store_all(store, sorted(set(lengths)))
                    rig.rounds(sorted(set(lengths)), rounds, store, told, go_on)
            rig.found.left = folder.left
    finally:
        rig.close()
    return rig.found


class _Rig:
    """Both pools, the engine between them, and what was found so far."""

    def __init__(
        self, geometry: KVGeometry, n_pages: int, device: str, layout: Layout, backend: Backend | None, spec: MappingSpec, stop: Stop,
        clock: Callable[[], float], look_at: Look,
    ) -> None:  # fmt: skip
        self._geometry, self._stop, self._clock, self._look_at = geometry, stop, clock, look_at
        self._n_pages, self._layout = n_pages, layout
        self._device_pool = DevicePool(geometry, n_pages, device)
        self._host_pool: HostPool | None = None
        self._engine: TransferEngine | None = None
        try:
            at = self._device_pool.device
            mapping = map_pool(geometry, n_pages, layout, spec, registrar=registrar_for(at.type, at.index or 0))
            self._host_pool = HostPool(geometry, n_pages, layout, mapping=mapping)
            copier, reason = self._backend(backend)
            groups = load_groups(geometry.n_layers, at.type)
            self._engine = TransferEngine(self._device_pool, self._host_pool, copier, groups)
        except BaseException:
            self.close()
            raise
        rng = np.random.default_rng(0)
        self._device_slots: Slots = rng.permutation(n_pages).astype(np.int32)
        self._host_slots: Slots = rng.permutation(n_pages).astype(np.int32)
        self._keys = probe_keys(n_pages)
        self._seeds = key64(b"".join(self._keys))
        self._content = PoolContent(self._device_pool)
        registered = bool(self._host_pool.registrations)
        self.found = RestoreProbe(
            str(at),
            copier.kind.value,
            reason,
            None if registered else self._why_not_registered(at.type),
            host_memory=self._host_pool.report,
        )

    def close(self) -> None:
        """Give everything back."""
        if self._engine is not None:
            self._engine.close()
        if self._host_pool is not None:
            self._host_pool.close()
        self._device_pool.close()

    def open_storage(self, folder: StoreFolder) -> FileStorage:
        """Open the store in the probe's own folder; nothing is evicted from it."""
        self.found.storage_folder = str(folder.path)
        self.found.storage_system = file_system(folder.path)
        capacity = 2 * self._n_pages * disk_bytes(self._geometry.page_bytes, 1 << 16)
        namespace = page_namespace(self._geometry, self._layout)
        return FileStorage(folder.path / "round", capacity, namespace, metadata_ttl_s=float("inf"))

    def warm_up(self, n: int) -> None:
        """Move a few pages each way, uncounted, and leave every page in the host pool."""
        self._fill(self._n_pages)
        self._backup(n)
        self._load(n)
        self._prove(n, "warm-up")
        self._fill(self._n_pages)
        self._backup(self._n_pages)

    def store_all(self, store: FileStorage, lengths: Sequence[int]) -> None:
        """Write all pages, in calls of different lengths."""
        assert self._host_pool is not None
        for start, end in zip((0, *lengths), lengths, strict=False):
            self._check_stop()
            keys = self._keys[start:end]
            began = self._clock()
            stored = store.write(keys, HostPages(self._host_pool, self._host_slots[start:end]))
            took = self._clock() - began
            if stored.n_new != len(keys):
                raise _storage_error(store, f"{stored.n_new} of {len(keys)} pages were written")
            self._add(Path.STORAGE_WRITE, len(keys), took)

    def rounds(
        self, lengths: Sequence[int], rounds: int, store: FileStorage | None, told: Callable[[str], None], go_on: Callable[[], bool]
    ) -> None:  # fmt: skip
        """Time every length in every round, in an order that turns."""
        resident: list[float] = []
        for number, n in turns(rounds, lengths, go_on):
            told(f"round {number} of {rounds}: {n} pages")
            self._check_stop()
            self._fill(n)
            self._add(Path.HOST_WRITE, n, self._backup(n))
            self._spoil_device(n)
            self._add(Path.HOST_READ, n, self._load(n))
            self._prove(n, "restore from the host tier")
            if store is not None:
                self._check_stop()
                share = self._from_storage(store, n)
                resident += [] if share is None else [share]
        if resident:
            self.found.storage_resident_share = float(np.mean(resident))

    def _from_storage(self, store: FileStorage, n: int) -> float | None:
        """Time one restore from storage; return what was left of its files in the page cache right before, None: not told."""
        assert self._host_pool is not None
        share = self._chill(store, n)
        self._host_pool.array[...] = 0
        self._spoil_device(n)
        began = self._clock()
        n_read = read_into(store, self._keys[:n], HostPages(self._host_pool, self._host_slots[:n]))
        read = self._clock()
        if n_read != n:
            raise _storage_error(store, f"{n_read} of {n} pages were read")
        loaded = self._load(n)
        self._add(Path.STORAGE_READ, n, read - began)
        self.found.storage_restores.append((n, read - began + loaded))
        self._prove(n, "restore from storage")
        return share

    def _chill(self, store: FileStorage, n: int) -> float | None:
        """Put the files of the first `n` pages out of the page cache; return what stayed there, from a sample; None: not told."""
        files = [store.path_of(key) for key in self._keys[:n]]
        try:
            for path in files:
                put_out(path)
            return sampled_share(files, _SAMPLED_FILES, self._look_at)
        except OSError as error:
            raise StorageError(
                f"an object just written cannot be opened: {error.strerror or error}", fault=fault_of(error), where=error.filename,
                hint="look at who else uses the folder, or name another --path",
            ) from error  # fmt: skip

    def _load(self, n: int) -> float:
        assert self._engine is not None
        began = self._clock()
        return self._ended(self._engine.load(self._host_slots[:n], self._device_slots[:n]), began)

    def _backup(self, n: int) -> float:
        assert self._engine is not None
        began = self._clock()
        return self._ended(self._engine.backup(self._device_slots[:n], self._host_slots[:n]), began)

    def _ended(self, transfer: Transfer, began: float) -> float:
        if not transfer.wait(_WAIT_S):
            raise Vanished(
                f"a {transfer.direction.value} of {transfer.n_pages} pages did not end within {_WAIT_S:.0f} s",
                where=self.found.device,
                hint="look at dmesg; name another copy backend with --backend",
            )
        took = self._clock() - began
        if transfer.error is not None:
            raise transfer.error
        return took

    def _fill(self, n: int) -> None:
        self._content.fill(self._device_slots[:n], self._seeds[:n])
        self._settle()

    def _spoil_device(self, n: int) -> None:
        self._content.fill(self._device_slots[:n], ~self._seeds[:n])
        self._settle()

    def _settle(self) -> None:
        """Wait until the device has made the content: a look at a page comes behind it, and no restore is timed with it."""
        self._content.first_mismatch(self._device_slots[:1], self._seeds[:1])

    def _prove(self, n: int, what: str) -> None:
        wrong = self._content.first_mismatch(self._device_slots[:n], self._seeds[:n])
        if wrong is not None:
            raise PageMismatch(
                f"page {wrong.page} of {n} holds {wrong.got:#04x} at plane {wrong.plane}, byte {wrong.offset}, not {wrong.want:#04x}",
                where=what,
                why="what was written is not what came back",
                hint="name another copy backend with --backend, and report it",
            )
        self.found.verified_pages += n

    def _add(self, path: Path, n: int, wall_s: float) -> None:
        self.found.timings.append(PathTiming(path, n, n * self._geometry.page_bytes, wall_s))

    def _check_stop(self) -> None:
        if self._stop():
            raise ProbeStopped

    def _backend(self, wanted: Backend | None) -> tuple[CopyBackend, str]:
        assert self._host_pool is not None
        device = self._device_pool.device
        if wanted is not None:
            return make_backend(wanted, self._layout, device), "asked for"
        if device.type == "cpu":
            return make_backend(Backend.CPU, self._layout, device), "the device is the processor"
        choice, copier = autotune(self._device_pool, self._host_pool)
        return copier, choice.reason

    def _why_not_registered(self, kind: str) -> str:
        assert self._host_pool is not None
        step = self._host_pool.report.step("register")
        return step.reason if step is not None and step.reason else f"nothing registers memory for a {kind} device"


def _storage_error(store: FileStorage, what: str) -> StorageError:
    failures = store.stats().failures
    fault = StorageFault.FULL if failures.get(StorageFault.FULL.value) else StorageFault.TRANSIENT
    return StorageError(
        what,
        fault=fault,
        where=str(store.root),
        why=failure_words(store),
        hint="look at the disk, or name another --path",
    )

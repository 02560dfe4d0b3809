"""Replay: a trace through the real cache, page by page proven. Compute is modelled, everything else happens.

For each request, in file order: make its tokens and page keys, match, restore, wait, let the modelled engine compute the
missing pages (their content follows from their keys), publish, release. Every page that comes back from a lower tier is
compared with what it must hold before it becomes visible (`verify`).

Transfers are real and measured; prefill is a + b n + c (end^2 - start^2) seconds of virtual time per request.
Sequential in trace order, no output tokens are inserted, so multi-turn hits are a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path as FilePath
from time import perf_counter

import numpy as np

from hicachectl.errors import HicacheError, UsageError, Vanished
from hicachectl.held_signals import held_signals
from hicachectl.runtime.cache import CacheConfig, HierarchicalCache, Restored, require_room
from hicachectl.runtime.cost import CostModel
from hicachectl.runtime.counters import CacheObserver
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.keys import DEFAULT_NAMESPACE, KEY_BYTES, Namespace, key64, page_keys
from hicachectl.runtime.layout import Backend, Layout, require_compatible
from hicachectl.runtime.memory.cuda_registrar import registrar_for
from hicachectl.runtime.memory.device_pool import DevicePool, element_type
from hicachectl.runtime.memory.host_pool import HostPool, MakeHost, map_pool
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.metric_feed import MetricFeed
from hicachectl.runtime.metrics import Metrics
from hicachectl.runtime.replay.pool_content import PoolContent
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.request import Trace, TraceInfo, TraceRequest, longest_input_tokens
from hicachectl.runtime.replay.tokens import TokenMaker, check_page_tokens
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole
from hicachectl.runtime.tiers import Tier
from hicachectl.runtime.transfer.autotune import autotune
from hicachectl.runtime.transfer.backends import CopyBackend, make_backend, prepare_both
from hicachectl.runtime.transfer.device import device_error, device_type
from hicachectl.runtime.transfer.engine import TransferEngine
from hicachectl.runtime.transfer.groups import load_groups

__all__ = ["ComputeSource", "PageMismatch", "Replay", "ReplayConfig", "Stop", "Verify"]


class PageMismatch(HicacheError):
    """A restored page does not hold what it must. Stops the replay."""

    default_code = "HC-PAGE-MISMATCH"


@dataclass(frozen=True, slots=True)
class Verify:
    """Which restored pages are compared: every one (`every` 1), one in `every`, or none (0)."""

    every: int = 1

    @classmethod
    def parse(cls, text: str) -> Verify:
        """Read `all`, `sample:N` (one page in N) or `off`. Pure. Raises UsageError.

        >>> Verify.parse("sample:8").every
        8
        """
        if text == "all":
            return cls(1)
        if text == "off":
            return cls(0)
        head, _, count = text.partition(":")
        if head == "sample" and count.isdigit() and int(count) >= 1:
            return cls(int(count))
        raise UsageError(f"verify is {text!r}", hint="all, sample:N (one page in N) or off")

    def __str__(self) -> str:
        return {0: "off", 1: "all"}.get(self.every, f"sample:{self.every}")


class Stop(Enum):
    """Why a replay ended."""

    COMPLETE = "complete"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    """A restored page held a wrong byte."""
    DEVICE_LOST = "device_lost"


@dataclass(frozen=True, slots=True)
class ComputeSource:
    """Whose prefill the recompute cost describes: a model (None = not said), and what it ran on, in words."""

    model: KVGeometry | None = None
    hardware: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """What to replay on. `device_slots` None = as many as the longest request within `limit` needs; `host_slots` 0 = no host tier.

    `storage_path` None = no L3. `trace_name` is for the report only.
    """

    geometry: KVGeometry
    cache: CacheConfig
    layout: Layout
    backend: Backend | None
    """None: what `autotune` chooses."""
    device_slots: int | None
    host_slots: int
    costs: CostModel
    storage_path: FilePath | None = None
    storage_bytes: int = 0
    verify: Verify = Verify(1)
    limit: int | None = None
    trace_name: str = "trace"
    compute: ComputeSource = ComputeSource()
    device: str = "cpu"
    """The torch name of the device of L1."""
    device_reason: str | None = None
    """Why it is this one, where nobody named it."""
    host_memory: MappingSpec = field(default_factory=MappingSpec)
    """How the host pool's memory is made."""


class Replay:
    """Owns the pools, threads and storage of one replay; a context manager that frees them whatever happens.

    `observer` hears which pages a tier gains and loses, `metrics` is fed until `close` (serve it to look at a running replay),
    `make_host` makes the host pool's memory and registers it with the device's driver.
    """

    def __init__(
        self,
        trace: Trace,
        config: ReplayConfig,
        *,
        info: TraceInfo | None = None,
        observer: CacheObserver | None = None,
        metrics: Metrics | None = None,
        make_host: MakeHost = map_pool,
    ) -> None:
        geometry = config.geometry
        self.config = config
        self.trace = trace
        self.info = info if info is not None else trace.info()
        self.page_note = check_page_tokens(self.info.block_tokens, geometry.page_tokens)
        longest = max(1, longest_input_tokens(trace, self.info, config.limit) // geometry.page_tokens)
        self.longest_pages = longest
        self.device_slots = longest if config.device_slots is None else config.device_slots
        require_room(longest, self.device_slots)
        if config.host_slots and config.backend is not None:
            require_compatible(config.layout, config.backend, device_type(config.device))
        self._tokens = TokenMaker(self.info)
        self._namespace = _namespace(self.info) if config.storage_path is not None else DEFAULT_NAMESPACE
        self._verify_count = 0
        self.recorder = Recorder(
            geometry, self.info.n_requests if config.limit is None else min(config.limit, self.info.n_requests)
        )
        self.device_pool = DevicePool(geometry, self.device_slots, config.device)
        self._content = PoolContent(self.device_pool)
        self.backend: CopyBackend | None = None
        self.backend_reason: str | None = None
        """Why the copy backend is this one."""
        self.host_pool: HostPool | None = None
        self.engine: TransferEngine | None = None
        self.storage: FileStorage | None = None
        self.held_at_start = 0
        """Pages of this geometry and layout that the storage folder held when it was opened, whatever trace they are of."""
        self._feed: MetricFeed | None = None
        self._stop = False
        self._abandoned = False
        try:
            if config.host_slots:
                memory = make_host(
                    geometry,
                    config.host_slots,
                    config.layout,
                    config.host_memory,
                    registrar=registrar_for(self.device_pool.device.type, self.device_pool.device.index or 0),
                )
                self.host_pool = HostPool(geometry, config.host_slots, config.layout, mapping=memory)
                self.backend = self._make_backend(config)
                prepare_both(self.backend, self.device_pool, self.host_pool)
                groups = load_groups(geometry.n_layers, self.device_pool.device.type)
                self.engine = TransferEngine(self.device_pool, self.host_pool, self.backend, groups)
            if config.storage_path is not None:
                spec = ObjectSpec(
                    model=geometry.name,
                    dtype=geometry.dtype,
                    kind=geometry.kind.value,
                    page_tokens=geometry.page_tokens,
                    object_layout=config.layout.object_layout.value,
                    n_layers=geometry.n_layers,
                )
                self.storage = FileStorage(config.storage_path, config.storage_bytes, whole(spec, geometry.page_bytes))
                self.held_at_start = self.storage.scan.n_objects
            self.cache = HierarchicalCache(
                self.device_pool,
                self.host_pool,
                self.engine,
                config.costs,
                config.cache,
                storage=self.storage,
                observer=observer,
                verify_restored=self._verify if config.verify.every else None,
            )
            if metrics is not None:
                seen = self.recorder
                self._feed = MetricFeed(
                    metrics,
                    self.cache,
                    self.engine,
                    verified=lambda: (seen.pages_verified, seen.pages_mismatched),
                )
        except BaseException:
            self._free()
            raise

    def _make_backend(self, config: ReplayConfig) -> CopyBackend:
        """Make the backend that was asked for, or measure which one to take while both pools are still empty."""
        assert self.host_pool is not None
        if config.backend is not None:
            self.backend_reason = "asked for"
            return make_backend(config.backend, config.layout, config.device)
        if self.device_pool.device.type == "cpu":
            self.backend_reason = "the device is the processor"
            return make_backend(Backend.CPU, config.layout, config.device)
        choice, backend = autotune(self.device_pool, self.host_pool)
        self.backend_reason = choice.reason
        return backend

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ask `run` to end after the request in hand; safe to call from a signal handler."""
        self._stop = True

    @property
    def stopping(self) -> bool:
        """Whether `stop` or `abandon` was called."""
        return self._stop

    def abandon(self) -> None:
        """Let `close` drop what is under way instead of finishing it; safe to call from a signal handler that then raises."""
        self._stop = self._abandoned = True

    @property
    def backend_name(self) -> str:
        """The copy backend in use, or the one that was asked for when nothing is copied."""
        if self.backend is not None:
            return self.backend.kind.value
        return "auto" if self.config.backend is None else self.config.backend.value

    def transfer_notes(self) -> list[str]:
        """Say why device and copy backend are these where nobody named them, and what of the backend was not as asked."""
        found = (
            [] if self.config.device_reason is None else [f"device {self.config.device}: {self.config.device_reason}"]
        )
        missing = element_type(self.config.geometry.dtype)[1]
        if missing is not None:
            found.append(f"dtype {self.config.geometry.dtype}: {missing}; pages move as bytes, whatever they hold")
        if self.config.backend is None and self.device_pool.device.type != "cpu" and self.backend_reason is not None:
            found.append(f"copy backend measured at start: {self.backend_reason}")
        return found + [f"copy backend {self.backend_name}: {note}" for note in getattr(self.backend, "notes", ())]

    def failures(self) -> dict[str, int]:
        """Return what the lower tiers could not do, by reason: `transfer_*` copies, `storage_*` pages and calls."""
        found = Counter(self.cache.counters.failures)
        if self.storage is not None:
            found.update({f"storage_{reason}": n for reason, n in self.storage.stats().failures.items()})
        return dict(found)

    def run(self, progress: Callable[[Recorder], None] | None = None) -> Stop:
        """Replay every request and return why it ended. `progress` is called after each request, in this thread.

        Raises PageMismatch when a restored page holds a wrong byte, UsageError for a broken trace line, Vanished when the device is
        lost: `close` then drops what is under way.
        """
        recorder = self.recorder
        recorder.start()
        try:
            ended = self._run(progress)
            if not self.cache.drain(self.config.cache.restore_timeout_s):
                recorder.unfinished_pages = self.cache.under_way()
            self._require_device()
        except Exception as failed:
            error = device_error(failed)
            self._abandoned = self._abandoned or isinstance(error, Vanished)
            if error is failed:
                raise
            raise error from failed
        finally:
            recorder.finish()
        self.cache.check()
        recorder.checks_passed += 1
        return ended

    def _run(self, progress: Callable[[Recorder], None] | None) -> Stop:
        """Serve every request and return why that ended."""
        recorder, config = self.recorder, self.config
        for request in self._requests():
            if self._stop:
                return Stop.INTERRUPTED
            self._serve(request)
            self._require_device()
            if progress is not None:
                progress(recorder)
        if config.limit is not None and self.info.n_requests > config.limit:
            return Stop.LIMIT
        return Stop.COMPLETE

    def _require_device(self) -> None:
        """End the replay when a copy told that the device is gone: all that follows would fail the same way. Raises Vanished."""
        lost = self.cache.counters.device_lost
        if lost is not None:
            raise lost

    def _requests(self) -> Iterator[TraceRequest]:
        limit = self.config.limit
        for n, request in enumerate(self.trace):
            if limit is not None and n >= limit:
                return
            yield request

    def _serve(self, traced: TraceRequest) -> None:
        """One request through the ten steps."""
        cache, page_tokens = self.cache, self.config.geometry.page_tokens
        began = perf_counter()
        tokens = self._tokens.tokens(traced, traced.input_tokens)
        keys = page_keys(tokens, page_tokens, namespace=self._namespace)
        request = cache.match(tokens, keys, namespace=self._namespace)
        try:
            cache.restore(request)
            ready = cache.wait_restored(request)
            missing = request.n_pages - ready
            slots = cache.allocate(request, missing)
            if slots is not None and missing:
                self._content.fill(slots, key64(keys[ready * KEY_BYTES :]))
            cache.publish(request)
        except Exception:
            cache.release(request)
            raise
        account = cache.release(request)  # not after a signal: it may have hit between two steps that belong together
        self.recorder.add(traced, account, keys, self.config.costs.recompute, perf_counter() - began)

    def _verify(self, restored: Restored) -> None:
        """Compare restored pages with what their keys say they hold. Raises PageMismatch naming page, tier, slot, byte."""
        assert restored.keys is not None
        slots, seeds, host = restored.device_slots, key64(restored.keys), restored.host_slots
        first, every = restored.first_page, self.config.verify.every
        picked = np.arange(-self._verify_count % every, len(slots), every)
        self._verify_count += len(slots)
        if every > 1:
            slots, seeds = slots[picked], seeds[picked]
        wrong = self._content.first_mismatch(slots, seeds)
        self.recorder.pages_verified += len(slots) if wrong is None else wrong.page
        if wrong is None:
            return
        self.recorder.pages_mismatched += 1
        at = int(picked[wrong.page])
        tier = Tier(restored.source).name.lower()
        raise PageMismatch(
            f"page {first + at} restored from {tier}: byte {wrong.offset} of plane {wrong.plane} is {wrong.got:#04x}, must be {wrong.want:#04x}",
            where=f"{tier} tier, host slot {int(host[at])}, device slot {wrong.slot}",
            why="the bytes changed between backup and restore",
            hint="check this machine's memory and the copy backend; run again with --backend cpu to compare",
        )

    def close(self) -> None:
        """Stop threads and free pools, after finishing the copies under way unless abandoned."""
        cache = getattr(self, "cache", None)
        try:
            if cache is not None:
                cache.close(finish=not self._abandoned)
        finally:
            with held_signals(at_once=True):  # a pool is not freed because Ctrl-C broke off the end of what uses it
                self._free()

    def _free(self) -> None:
        """Free everything, last made first; each is tried whatever became of the one before."""
        with ExitStack() as stack:
            stack.callback(self.device_pool.close)
            stack.callback(self._content.close)
            if self.host_pool is not None:
                stack.callback(self.host_pool.close)
            if self.storage is not None:
                stack.callback(self.storage.close)
            if self.engine is not None:
                stack.callback(self.engine.close, finish=not self._abandoned)
            if self._feed is not None:
                stack.callback(self._feed.close)


def _namespace(info: TraceInfo) -> Namespace:
    """Keep the pages of different traces apart in one storage folder: ids mean something inside their trace only. Pure."""
    return Namespace(
        cache_salt=f"{info.format} {info.n_requests} {info.total_input_tokens} {info.total_blocks} {info.max_block_id}"
    )

"""From the effective configuration to a replay: every choice of `hicachectl run` in one place, checked before memory is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from hicachectl.config import DEMO_PROFILE, Effective, load_config
from hicachectl.config_models import RunConfig
from hicachectl.disk_room import disk_warnings, storage_folder
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import CapacityError, ExitCode, StorageError, StorageFault, UsageError
from hicachectl.memory_room import host_memory as look_at_memory
from hicachectl.run_costs import (
    measured_priors,
    read_costs,
    require_device,
    require_pages,
    storage_warnings,
    unused_costs,
)
from hicachectl.run_memory import mapping_spec, small_pages_warning
from hicachectl.runtime.cache import require_room
from hicachectl.runtime.core import CacheConfig, PrefetchWait
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.geometry import KVGeometry, preset
from hicachectl.runtime.keytable import table_bytes
from hicachectl.runtime.layout import Backend, Layout, require_compatible
from hicachectl.runtime.memory.budget import Ask, ledger
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.preflight import require_pool
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import PoolCalls
from hicachectl.runtime.replay.driver import ComputeSource, ReplayConfig, Verify
from hicachectl.runtime.replay.request import Trace, TraceInfo, longest_input_tokens
from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.replay.tokens import check_page_tokens
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.runtime.storage.file import disk_bytes
from hicachectl.runtime.storage.prefetch import PrefetchPolicy
from hicachectl.runtime.transfer.device import pick_device
from hicachectl.runtime.transfer.usable import require_usable
from hicachectl.runtime.write_policy import WritePolicy
from hicachectl.units import format_bytes

__all__ = ["RunPlan", "effective_config", "not_ready", "plan_run"]

_RESERVE_BYTES = 256 << 20
"""Left to the rest of the machine by the preflight."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A replay that passed the preflight: what to replay, on what, and what the operator should know before."""

    trace: Trace
    info: TraceInfo
    replay: ReplayConfig
    uses_temporary_storage: bool
    longest_pages: int
    memory_terms: tuple[tuple[str, int], ...]
    diagnostics: tuple[Diagnostic, ...]
    makes_storage_folder: bool = False
    """Whether the storage folder is not there yet."""


def effective_config(
    flags: Mapping[str, object], env: Mapping[str, str], path: Path | None, profile: str | None
) -> Effective:
    """Merge the configuration; without a trace and without a profile the demonstration profile fills the gaps.

    Reads files, changes nothing. Raises UsageError with flag, variable or file:line.
    """
    return load_config(flags, env=env, path=path, profile=profile, fallback_profile=DEMO_PROFILE)


def plan_run(run: RunConfig, *, tuned_weights: str | None = None, must_fit: bool = True) -> RunPlan:
    """Turn the `run` section into a replay and check it: sizes, layout and backend, memory, storage. Reads the trace once.

    `tuned_weights` are those `tune` was told to set for weighted interleave (tune.numa.interleave_weight). `must_fit` False leaves
    out whether this host has the memory: for a prediction, which takes none.

    Raises UsageError for what does not go together or a broken trace line, CapacityError with its terms for what does
    not fit, Unsupported for a device torch cannot use here, StorageError (exit 10) for a storage folder that cannot be used.
    """
    geometry = preset(run.geometry, run.page_tokens, run.dtype)
    measured = read_costs(run.costs)
    require_pages(measured, geometry, run.layout, run.backend)
    layout, backend = Layout.parse(run.layout), None if run.backend == "auto" else Backend.parse(run.backend)
    device = pick_device(run.device)
    require_usable(device.name)
    require_device(measured, device.type)
    if run.host_slots and backend is not None:
        require_compatible(layout, backend, device.type)
    if run.storage_path is not None and not run.host_slots:
        raise UsageError(
            "a storage tier without a host tier: storage_path is set, host_slots is 0",
            why="whole pages are read into host slots first",
            hint="give --host-slots 256 or more, or --storage-path none",
        )
    _require_storage(run, geometry)
    trace: Trace
    if run.trace is not None:
        trace = open_trace(run.trace, session_gap_s=run.session_gap_s)
        name = Path(run.trace).name
    else:
        trace = made = synthetic(run.synthetic, seed=run.seed)
        name = f"synthetic {run.synthetic} seed {run.seed}"
        if made.block_tokens % run.page_tokens:
            trace = synthetic(run.synthetic, seed=run.seed, block_tokens=run.page_tokens)
            name += f" in blocks of {run.page_tokens} tokens"
    info = trace.info()
    if not info.n_requests:
        raise UsageError(
            "the trace holds no request", where=run.trace, hint="give a trace with at least one request line"
        )
    check_page_tokens(info.block_tokens, run.page_tokens)
    longest = max(1, longest_input_tokens(trace, info, run.limit) // run.page_tokens)
    device_slots = longest if run.device_slots == "auto" else run.device_slots
    require_room(longest, device_slots)
    host_memory = _host_memory(run, geometry, device.name, tuned_weights)
    terms = (
        ("device pool", device_slots * geometry.page_bytes if device.type == "cpu" else 0),
        ("host pool", run.host_slots * geometry.page_bytes),
        ("key tables", table_bytes(run.seen_keys) + (table_bytes(run.ghost) if run.ghost else 0)),
    )
    unread = _require_memory(terms, host_memory, geometry.page_bytes, n_slots=run.host_slots) if must_fit else None
    replay = ReplayConfig(
        geometry=geometry,
        cache=_cache_config(run),
        layout=layout,
        backend=backend,
        device_slots=device_slots,
        device=device.name,
        device_reason=device.reason if run.device == "auto" else None,
        host_slots=run.host_slots,
        costs=CostModel(
            RecomputeCost(run.compute.a_s, run.compute.b_s, run.compute.c_s),
            priors=measured_priors(measured, device.type),
            margin=run.restore_margin,
        ),
        storage_path=None if run.storage_path in (None, "auto") else Path(run.storage_path),
        storage_bytes=run.storage_bytes,
        verify=Verify.parse(run.verify),
        limit=run.limit,
        trace_name=name,
        host_memory=host_memory,
        compute=ComputeSource(
            None if run.compute.model is None else preset(run.compute.model, run.page_tokens, run.dtype),
            run.compute.hardware,
        ),
    )
    return RunPlan(
        trace,
        info,
        replay,
        run.storage_path == "auto",
        longest,
        (*terms, ("left to the machine", _RESERVE_BYTES)),
        (
            *_warnings(run, device_slots, longest),
            *_unread_limit(unread),
            *unused_costs(measured),
            *disk_warnings(run),
            *(() if run.storage_path is None else storage_warnings(measured, storage_folder(run))),
            *(small_pages_warning(PoolCalls(), host_memory) if run.host_slots else ()),
        ),
        run.storage_path not in (None, "auto") and not os.path.lexists(str(run.storage_path)),
    )


def _host_memory(run: RunConfig, geometry: KVGeometry, device: str, tuned_weights: str | None) -> MappingSpec:
    """Return what is asked of the host pool's memory, after a look at whether it can be had at all."""
    spec = mapping_spec(run.host_memory, device, tuned_weights=tuned_weights)
    if run.host_slots:
        require_pool(PoolCalls(), run.host_slots * geometry.page_bytes, spec)
    return spec


def _cache_config(run: RunConfig) -> CacheConfig:
    return CacheConfig(
        write_policy=WritePolicy(run.write_policy),
        selective_hits=run.selective_hits,
        restore=run.restore,
        eviction=Eviction(run.eviction),
        free_list=run.free_list,
        ghost_entries=run.ghost,
        seen_keys=run.seen_keys,
        strict=True,
        settle_storage=True,
        prefetch=PrefetchWait(
            PrefetchPolicy(run.prefetch.policy), run.prefetch.base_s, run.prefetch.per_ki_token_s, run.prefetch.max_s
        ),
    )


def _require_storage(run: RunConfig, geometry: KVGeometry) -> None:
    """Refuse a storage tier that cannot start, from a look that writes nothing; the start itself then proves it by writing.

    Raises CapacityError when not even one page fits, StorageError with exit code 10 when the folder cannot be used.
    """
    if run.storage_path is None:
        return
    page = disk_bytes(geometry.page_bytes)
    if run.storage_bytes < page:
        raise CapacityError(
            f"a storage tier of {run.storage_bytes} bytes does not hold one page of {page} bytes on disk",
            where="storage_bytes",
            terms=(("page", geometry.page_bytes), ("header and block rounding", page - geometry.page_bytes),
                   ("storage_bytes", run.storage_bytes)),
            hint="give --storage-bytes room for at least the pages of one request",
        )  # fmt: skip
    if run.storage_path == "auto":
        return
    asked = Path(run.storage_path).absolute()
    folder = asked
    while not os.path.lexists(folder):
        folder = folder.parent
    if folder.is_dir() and folder not in (asked, asked.parent):
        raise not_ready(
            StorageError(
                "there is no such storage folder, nor the one it would lie in",
                fault=StorageFault.MISSING,
                where=run.storage_path,
                why=f"{asked.parent} is not there; only the last folder of a path is made",
                hint=f"correct the name, or: mkdir -p {quote(str(asked.parent))}",
            )
        )
    if folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return
    fault = StorageFault.DENIED if folder.is_dir() else StorageFault.TRANSIENT
    why = f"{folder} cannot be written by user {os.geteuid()}" if folder.is_dir() else f"{folder} is no folder"
    raise not_ready(
        StorageError(
            "the storage folder cannot be used",
            fault=fault,
            where=run.storage_path,
            why=why,
            hint="name a folder this user can write, or --storage-path none",
        )
    )


def not_ready(error: StorageError) -> StorageError:
    """Give a storage tier that cannot be set up the exit code of a failed preflight. Changes and returns `error`."""
    error.exit_code = ExitCode.NOT_READY
    return error


def _require_memory(
    terms: tuple[tuple[str, int], ...], spec: MappingSpec, page_bytes: int, *, n_slots: int
) -> str | None:
    """Refuse pools the machine has no memory for now. Raises CapacityError with every term of the sum, and how many host slots fit.

    Returns why a control group may leave less than was counted on, None where all limits were read.
    """
    kind = spec.kind
    asks = [Ask(name, amount, hugetlb=name == "host pool" and kind is Kind.HUGETLB) for name, amount in terms]
    sum_ = ledger(look_at_memory(of=spec if n_slots else None), asks, reserve_bytes=_RESERVE_BYTES)
    of_others = sum(ask.total_bytes for ask in asks if ask.name != "host pool" and not ask.hugetlb)
    left = sum_.hugetlb_room_bytes if kind is Kind.HUGETLB else sum_.room_bytes - of_others
    fit = max(0, left) // page_bytes
    sum_.require(
        f"give --host-slots {fit} or fewer (a page is {format_bytes(page_bytes)}), fewer --device-slots, or a smaller --geometry"
        if fit
        else f"beside the device pool no host slot fits (a page is {format_bytes(page_bytes)}): give fewer --device-slots, a smaller "
        "--limit where they are auto, or a smaller --geometry"
    )
    return sum_.unread


def _unread_limit(unread: str | None) -> list[Diagnostic]:
    """Warn of a limit that could not be read: the memory that was counted on may not be had."""
    if unread is None:
        return []
    return [
        Diagnostic(
            "HC-CGROUP-LIMIT",
            Severity.WARN,
            f"a limit of a control group may leave less memory than is counted on, and the process would be killed: {unread}",
            subject="cgroup",
            hint="hicachectl topo -o json | jq .data.memory.cgroup",
        )
    ]


def _warnings(run: RunConfig, device_slots: int, longest: int) -> list[Diagnostic]:
    """Return what will work and not pay, with the arithmetic."""
    found = []
    if run.host_slots and run.host_slots <= device_slots and run.write_policy == "write_through":
        found.append(
            Diagnostic(
                "HC-L2-NOT-LARGER",
                Severity.WARN,
                f"the host tier holds {run.host_slots} pages, the device tier {device_slots}: under write_through the host "
                f"tier only mirrors it, {run.host_slots} - {device_slots} = {run.host_slots - device_slots} pages more",
                subject="host_slots",
                hint=f"give --host-slots {2 * device_slots} or more, or --write-policy write_back",
            )
        )
    if run.host_slots and run.host_slots < longest:
        found.append(
            Diagnostic(
                "HC-L2-SHORT",
                Severity.WARN,
                f"the longest request has {longest} pages, the host tier {run.host_slots}: only its first pages are kept",
                subject="host_slots",
                hint=f"give --host-slots {longest} or more",
            )
        )
    return found

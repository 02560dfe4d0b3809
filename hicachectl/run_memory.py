"""From the section `run.host_memory` to what is asked of the host pool's memory: kind, nodes, threads, registration."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hicachectl.config_memory import HostMemoryConfig
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import UsageError
from hicachectl.run_seat import Seat, read_seat
from hicachectl.runtime.memory.kinds import Kind, small_pages_reason
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode, nodes_of_mode
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["mapping_spec", "measuring_spec", "parse_weights", "small_pages_warning"]

_TMPFS = "/dev/shm"


def mapping_spec(
    memory: HostMemoryConfig,
    device: str,
    *,
    tuned_weights: str | None = None,
    seat_of: Callable[[str], Seat] | None = None,
) -> MappingSpec:
    """Return what is asked of the host pool's memory. Looks at the host only where a placement is asked.

    `device` is the torch name of the device of L1, `tuned_weights` what `tune` was told to set (tune.numa.interleave_weight),
    `seat_of` says where a device sits. Raises UsageError for values that do not go together and a placement that means
    nothing here.
    """
    kind = Kind(memory.kind)
    if memory.path is not None and kind is not Kind.TMPFS:
        raise _alone("path", memory.path, "kind tmpfs", f"kind {kind.value}")
    if memory.hugetlb_bytes is not None and kind is not Kind.HUGETLB:
        raise _alone("hugetlb_bytes", memory.hugetlb_bytes, "kind hugetlb", f"kind {kind.value}")
    if memory.weights is not None and memory.placement != "weighted":
        raise _alone("weights", memory.weights, "placement weighted", f"placement {memory.placement or 'null'}")
    path = (memory.path or _TMPFS) if kind is Kind.TMPFS else None
    return MappingSpec(
        kind=kind,
        huge=memory.huge_pages,
        path=path,
        named=path is not None and not os.path.isdir(path),
        hugetlb_bytes=memory.hugetlb_bytes,
        placed=_placed(memory, device, tuned_weights, seat_of or read_seat),
        n_threads=memory.threads,
        largest_registration_bytes=memory.chunk_bytes,
        must_register=memory.must_register,
    )


def measuring_spec(memory: HostMemoryConfig, device: str, *, tuned_weights: str | None = None) -> MappingSpec:
    """Return what a measurement asks of its pools' memory: what `run` would ask, but a file gets no name. Raises what `mapping_spec` raises."""
    spec = mapping_spec(memory, device, tuned_weights=tuned_weights)
    return replace(spec, path=os.path.dirname(spec.path) or ".", named=False) if spec.named and spec.path else spec


def parse_weights(text: str | None) -> tuple[tuple[int, int], ...]:
    """Return (node, weight) of NODE=WEIGHT pairs, by node; empty for None and for a word such as auto. Pure.

    >>> parse_weights("1=1,0=3"), parse_weights("auto")
    (((0, 3), (1, 1)), ())
    """
    if text is None or "=" not in text:
        return ()
    pairs = (pair.split("=") for pair in text.split(","))
    return tuple(sorted((int(node), int(weight)) for node, weight in pairs))


def small_pages_warning(calls: MemoryCalls, spec: MappingSpec) -> tuple[Diagnostic, ...]:
    """Warn before a shared pool is made whose setting gives no huge pages, where huge pages are wanted."""
    if not spec.huge or not spec.kind.is_shared:
        return ()
    reason = small_pages_reason(calls, spec.kind, spec.path)
    if reason is None:
        return ()
    knob = "tmpfs.huge" if spec.kind is Kind.TMPFS else "thp.shmem"
    return (
        Diagnostic(
            "HC-SHM-4K",
            Severity.WARN,
            f"the host pool asks for huge pages and will get small ones: {reason}",
            subject="host_memory.kind",
            hint=f"hicachectl tune plan --only {knob}, or --host-memory-kind anonymous",
        ),
    )


def _placed(
    memory: HostMemoryConfig, device: str, tuned_weights: str | None, seat_of: Callable[[str], Seat]
) -> Placed | None:
    if memory.placement is None:
        return None
    mode = PlacementMode.parse(memory.placement)
    seat = seat_of(device)
    try:
        placed = nodes_of_mode(
            mode,
            own_node=seat.own_node,
            index=seat.index,
            socket_nodes=seat.socket_nodes,
            memory_nodes=seat.memory_nodes,
        )
    except UsageError as error:
        error.where = "--host-memory-placement or run.host_memory.placement"
        error.why = "; ".join(filter(None, (error.why, seat.reason)))
        raise
    if mode is not PlacementMode.WEIGHTED:
        return placed
    weights = parse_weights(memory.weights if memory.weights is not None else tuned_weights)
    unknown = sorted({node for node, _ in weights} - set(placed.nodes))
    if unknown and memory.weights is not None:
        raise UsageError(
            f"weights for nodes {unknown}, the host pool lies on nodes {list(placed.nodes)}",
            where="--host-memory-weights or run.host_memory.weights",
            hint="name these nodes",
        )
    return replace(placed, weights=tuple(pair for pair in weights if pair[0] in placed.nodes))


def _alone(key: str, value: object, wanted: str, given: str) -> UsageError:
    return UsageError(
        f"host_memory.{key} {value} goes with {wanted}, and {given} is in force",
        where=f"run.host_memory.{key}",
        hint=f"give {wanted}, or set {key} to null",
    )

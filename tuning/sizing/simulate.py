"""A replay through the runtime's own tree, tiers and policies, with pages so small that only the decisions cost anything.

What no curve can tell in one pass (write policies, the ghost list, orders of eviction, two tiers of unlike content) is
simulated here by the code that will run, on pages of one byte a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hicachectl.runtime.core import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.eviction import Eviction
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig, Stop, Verify
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.request import Trace, TraceInfo
from hicachectl.runtime.write_policy import WritePolicy

__all__ = ["Policy", "Simulated", "policies_to_compare", "simulate"]

_NO_COMPUTE = RecomputeCost(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """What is compared: the order of eviction, when pages are copied down, and the ghost window in pages (0 = off)."""

    eviction: Eviction = Eviction.LRU
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    selective_hits: int = 2
    ghost_pages: int = 0

    def __str__(self) -> str:
        hits = f" at {self.selective_hits} hits" if self.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE else ""
        ghost = f", ghost {self.ghost_pages}" if self.ghost_pages else ""
        return f"{self.eviction.value}, {self.write_policy.value}{hits}{ghost}"


def policies_to_compare(own: Policy, *, device_pages: int, host_pages: int) -> tuple[Policy, ...]:
    """Return what is compared at a size: the curve's own policy first, then every order, when to copy, and the ghost window. Pure.

    `own` is the configured one, added where it is none of them. The ghost window is tried as long as L1, and as long as L2.
    """
    selective = WritePolicy.WRITE_THROUGH_SELECTIVE
    found = [
        Policy(),
        Policy(eviction=Eviction.FIFO),
        Policy(eviction=Eviction.LFU),
        Policy(eviction=Eviction.SLRU),
        Policy(write_policy=selective),
        *(Policy(write_policy=selective, ghost_pages=pages) for pages in sorted({device_pages, host_pages})),
        Policy(write_policy=WritePolicy.WRITE_BACK),
    ]
    return tuple(found if own in found else [*found, own])


@dataclass(frozen=True, slots=True)
class Simulated:
    """Pages hit in each tier, of all whole pages asked for (D3), and pages copied down."""

    policy: Policy
    total_pages: int
    device_hit_pages: int
    host_hit_pages: int
    backed_up_pages: int

    @property
    def hit_pages(self) -> int:
        """Pages hit in either tier. Pure."""
        return self.device_hit_pages + self.host_hit_pages

    @property
    def rate(self) -> float:
        """Hits of both tiers over whole pages, 0 to 1. Pure."""
        return self.hit_pages / self.total_pages if self.total_pages else 0.0


def simulate(
    trace: Trace,
    policy: Policy,
    *,
    page_tokens: int,
    device_pages: int | None,
    host_pages: int,
    limit: int | None = None,
    info: TraceInfo | None = None,
    progress: Callable[[Recorder], None] | None = None,
) -> Simulated:
    """Replay a trace by a policy. Takes (device_pages + host_pages) x page_tokens bytes while it runs, and gives them back.

    `device_pages` None: as many as the longest request. Raises UsageError for a page size that does not divide the
    trace's block, and for a device tier that does not hold the longest request.
    """
    config = ReplayConfig(
        geometry=KVGeometry("one-byte", KVKind.MLA, 1, 1, page_tokens, "fp8"),
        cache=CacheConfig(
            write_policy=policy.write_policy,
            selective_hits=policy.selective_hits,
            restore="always",
            eviction=policy.eviction,
            ghost_entries=policy.ghost_pages,
            seen_keys=1 << 12,
            strict=True,
        ),
        layout=Layout.PAGE_FIRST_DIRECT,
        backend=Backend.CPU,
        device_slots=device_pages,
        host_slots=host_pages,
        costs=CostModel(_NO_COMPUTE),
        verify=Verify(0),
        limit=limit,
        trace_name="simulation",
    )
    with Replay(trace, config, info=info) as replay:
        stop = replay.run(progress)
        assert stop in (Stop.COMPLETE, Stop.LIMIT)
        counters = replay.cache.counters
        return Simulated(
            policy,
            int(replay.recorder.column("pages_total").sum()),
            counters.hit_pages[0],
            counters.hit_pages[1],
            counters.backup_pages,
        )

"""What a replay writes down while it runs: per-request numbers in arrays, so that reports need no second pass."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.account import Account
from hicachectl.runtime.cost import Path, RecomputeCost
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.keys import key64
from hicachectl.runtime.replay.request import TraceRequest
from hicachectl.runtime.replay.reuse import ReuseDistances

__all__ = ["COLUMNS", "Recorder"]

COLUMNS = (
    "time_s", "input_tokens", "pages_total", "device_hit", "host_hit", "storage_hit", "used", "restored_host", "restored_storage",
    "restore_wait_s", "room_wait_s", "saved_s", "ttft_s", "ttft_device_only_s", "serve_s",
)  # fmt: skip
"""Per request: pages unless the name says tokens or seconds.

`restore_wait_s` is the measured time a request stood still to be restored, `room_wait_s` for copies that held the slots it
needed; they share no second. `saved_s` is modelled prefill not done thanks to restored pages: never the fixed part of a
call, since the last token of a request is always computed (as `decide` weighs it). `ttft_s` is modelled prefill of the rest
plus both waits; `ttft_device_only_s` is modelled prefill if only device hits counted; `serve_s` is this program's own time
for the request.
"""


class Recorder:
    """Collects one row a request (float64, `COLUMNS`) and a few totals."""

    def __init__(self, geometry: KVGeometry, expected_requests: int) -> None:
        self.geometry = geometry
        self.expected_requests = expected_requests
        self._rows: npt.NDArray[np.float64] = np.zeros((max(1, expected_requests), len(COLUMNS)), dtype=np.float64)
        self.n_requests = 0
        self.pages_verified = 0
        self.pages_mismatched = 0
        self.checks_passed = 0
        """Times all laws of tree, slots and leases were checked and held."""
        self.reuse = ReuseDistances()
        """How far apart the uses of a page lie, whatever the pools hold."""
        self.earlier_hit_pages = 0
        """Pages that hit although this replay had not met them before: storage held them from an earlier run."""
        self.earlier_restored_pages = 0
        """Those of them that were brought up."""
        self.unfinished_pages: dict[Path, int] = {}
        """Pages whose copies were not over when the replay stopped waiting for them."""
        self.started_s = 0.0
        self.elapsed_s = 0.0

    def start(self) -> None:
        """Take the start of the wall clock."""
        self.started_s = perf_counter()

    def finish(self) -> None:
        """Take the end of the wall clock."""
        self.elapsed_s = perf_counter() - self.started_s

    def add(
        self, traced: TraceRequest, account: Account, keys: bytes, recompute: RecomputeCost, serve_s: float
    ) -> None:
        """Write down one request. `keys` are the page keys of its whole pages."""
        n = self.n_requests
        if n == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        page_tokens, tokens = account.page_tokens, account.input_tokens
        used, device = account.used_pages * page_tokens, account.device_hit_pages * page_tokens
        rest_s = recompute.request_s(used, tokens)
        device_only_s = recompute.request_s(device, tokens)
        waited_s = account.restore_wait_s + account.room_wait_s
        self._rows[n] = (
            traced.time_s, tokens, account.pages_total, account.device_hit_pages, account.host_hit_pages, account.storage_hit_pages,
            account.used_pages, account.restored_host_pages, account.restored_storage_pages, account.restore_wait_s,
            account.room_wait_s, device_only_s - rest_s, rest_s + waited_s, device_only_s, serve_s,
        )  # fmt: skip
        self.n_requests = n + 1
        met_before = self.reuse.add(key64(keys))
        self.earlier_hit_pages += max(0, account.hit_pages - met_before)
        self.earlier_restored_pages += max(0, account.used_pages - met_before)

    def moved_s(self) -> float:
        """Return the seconds requests stood still for the lower tiers: to be restored, and for slots held by copies."""
        return float(self.column("restore_wait_s").sum() + self.column("room_wait_s").sum())

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return one column over the requests so far (a view)."""
        return self._rows[: self.n_requests, COLUMNS.index(name)]

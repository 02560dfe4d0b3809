"""The trials of one sizing: the same trace and the same copy backend in every step, so that pool sizes are all that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hicachectl.runtime.layout import Backend
from hicachectl.runtime.memory.host_pool import MakeHost, map_pool
from hicachectl.runtime.replay.driver import ReplayConfig
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.request import Trace, TraceInfo
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.stages import Stage
from hicachectl.tuning.sizing.trial import Trial, try_pool
from hicachectl.tuning.sizing.trial_storage import TrialStorage

__all__ = ["PoolTrials"]


class PoolTrials:
    """Makes pools and replays the trace through them, one at a time.

    `backend` is what the first pool copied with where none is named (a run that goes on gives it), `require_room` looks at the
    host before memory is taken and raises CapacityError, `storage` is the tier below each pool, `progress` is called after each request. Methods raise what `try_pool` raises.
    """

    def __init__(
        self,
        trace: Trace,
        info: TraceInfo,
        base: ReplayConfig,
        *,
        root: HostRoot,
        backend: str | None = None,
        storage: TrialStorage | None = None,
        require_room: Callable[[int], None] = lambda pages: None,
        progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        self._trace, self._info, self._base, self._root = trace, info, base, root
        self._require_room, self._progress = require_room, progress
        self._backend, self._storage = backend, storage
        self._backend_of = "the run that was begun"

    def step(self, pages: int) -> Trial:
        """Try one size of the host pool; 0 is L1 alone. Takes memory and gives it back."""
        return self._try(self._base, pages, map_pool)

    def stage(self, stage: Stage, config: ReplayConfig) -> Trial:
        """Make one replay beside the steps. Takes memory and gives it back."""
        return self._try(config, stage.pages, stage.make_host)

    def _try(self, config: ReplayConfig, pages: int, make_host: MakeHost) -> Trial:
        self._require_room(pages)
        is_open = config.backend is None and pages > 0
        if is_open and self._backend is not None:
            config = replace(config, backend=Backend.parse(self._backend))
        trial = try_pool(
            self._trace, self._info, config, pages, root=self._root, make_host=make_host, storage=self._storage,
            progress=self._progress,
        )  # fmt: skip
        if is_open and self._backend is None:
            self._backend, self._backend_of = trial.backend, f"the step of {pages} pages"
        elif is_open:
            trial = replace(trial, backend_reason=f"as in {self._backend_of}")
        return trial

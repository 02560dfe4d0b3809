"""How a replay gives back what it made."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig
from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.transfer.engine import EngineState


def test_ctrl_c_before_the_end_of_every_part_comes_through_behind_all_of_them_in_their_order(tmp_path: Path) -> None:
    config = ReplayConfig(
        preset("tiny-4k", 512), CacheConfig(restore="always"), Layout.PAGE_FIRST_DIRECT, Backend.CPU, None, 200,
        CostModel(RecomputeCost(0.01, 3e-5, 4e-10)), storage_path=tmp_path, storage_bytes=1 << 28,
    )  # fmt: skip
    closed: list[str] = []
    replay = Replay(synthetic("multi-turn", n_requests=5), config)
    replay.run()

    def interrupted(name: str, close: Callable[..., None], **how: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        close(**how)
        closed.append(name)

    parts = {"engine": replay.engine, "storage": replay.storage, "host pool": replay.host_pool}
    for name, part in (*parts.items(), ("device pool", replay.device_pool)):
        assert part is not None
        part.close = partial(interrupted, name, part.close)  # type: ignore[method-assign, union-attr]
    with pytest.raises(KeyboardInterrupt):
        replay.close()
    assert closed == ["engine", "storage", "host pool", "device pool"]
    assert replay.engine is not None
    assert replay.engine.state is EngineState.CLOSED

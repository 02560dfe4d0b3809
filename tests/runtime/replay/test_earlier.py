"""Pages that an earlier run left in the storage folder are told apart from what this run earned."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.replay.driver import Replay, ReplayConfig
from hicachectl.runtime.replay.report import Earlier, ReplayReport, make_report
from hicachectl.runtime.replay.reuse import ReuseDistances
from hicachectl.runtime.replay.workload import open_trace


def replayed(folder: Path) -> ReplayReport:
    """Three conversations of four pages, each asked twice, through two device paths, one host path and storage."""
    lines = ['{"trace": 1, "block_tokens": 512, "scope": "global"}']
    for at in range(6):
        blocks = [10 * (at % 3) + page for page in range(4)]
        lines.append(f'{{"time_s": {at}, "input_tokens": 2048, "output_tokens": 1, "blocks": {blocks}}}')
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    config = ReplayConfig(
        preset("tiny-4k", 512), CacheConfig(restore="always", strict=True), Layout.PAGE_FIRST_DIRECT, Backend.CPU, 4, 8,
        CostModel(RecomputeCost(0.01, 3e-5, 4e-10)), storage_path=folder / "l3", storage_bytes=1 << 20,
    )  # fmt: skip
    with Replay(open_trace(path), config) as replay:
        return make_report(replay, replay.run())


def test_a_fresh_folder_has_nothing_from_before(tmp_path: Path) -> None:
    assert replayed(tmp_path).earlier == Earlier(0, 0, 0)


def test_pages_and_hits_from_before_are_counted_and_explain_the_difference(tmp_path: Path) -> None:
    fresh, again = replayed(tmp_path), replayed(tmp_path)
    assert again.earlier == Earlier(held_pages=12, hit_pages=12, restored_pages=12)
    assert again.pages_hit - again.earlier.hit_pages == fresh.pages_hit


def test_adding_a_path_tells_how_much_of_it_was_met_before() -> None:
    reuse = ReuseDistances()
    paths = ([1, 2, 3], [1, 2, 4], [5], [1, 2, 3, 6])
    assert [reuse.add(np.array(path, dtype=np.uint64)) for path in paths] == [0, 2, 0, 3]

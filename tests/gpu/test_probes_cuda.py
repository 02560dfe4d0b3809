"""bench store and bench model on a device: restores from both tiers are timed and compared, a prefill of the model's layers beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.probes.break_even import Verdict, break_even
from hicachectl.runtime.probes.fits import LINE, QUADRATIC, Timing, fit
from hicachectl.runtime.probes.prefill_stack import SHAPES, time_stack
from hicachectl.runtime.probes.restores import run_restore_probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_restores_from_both_tiers_hold_their_bytes_and_break_even_with_the_layers_of_the_model(tmp_path: Path) -> None:
    found = run_restore_probe(preset("qwen3-8b", 64), (8, 32, 128), rounds=3, device="cuda:0", storage=tmp_path / "l3")
    assert found.not_registered is None
    assert found.verified_pages == 8 + 2 * 3 * (8 + 32 + 128)
    assert len(found.of(CostPath.HOST_READ)) == len(found.of(CostPath.STORAGE_READ)) == 9
    assert list(tmp_path.iterdir()) == []
    times = time_stack(SHAPES["qwen3-8b"], (512, 2048, 8192), device="cuda:0")
    assert times.dtype == "bfloat16"
    assert times.left_out == ()
    restore = fit([Timing(one.n_pages * 64, one.wall_s) for one in found.of(CostPath.HOST_READ)], LINE)
    even = break_even(restore, fit(times.timings, QUADRATIC), 64)
    assert (
        even.verdict is not Verdict.NEVER
    )  # a token moves ten times as fast as it is computed: docs/facts.md#h200-prefill

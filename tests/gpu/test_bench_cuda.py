"""bench on a device: pools are registered and compared with torch's, copies are measured against the link, results are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hicachectl.bench_results import priors_of, read_bench
from hicachectl.errors import ExitCode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def document(path: Path, *line: str) -> Any:
    for library in ("typer", "rich", "pydantic", "yaml"):
        pytest.importorskip(library, reason=f"the command line needs {library}")
    from cli_runner import call

    ran = call(*line, "-o", "json", "--output-file", str(path))
    assert ran.code == ExitCode.OK, ran.err
    return json.loads(path.read_text())


def assert_noise_is_told(made: Any, cost: str) -> None:
    """A busy machine gives no cost: that is no failure here, but it must say so."""
    assert "counts as an answer" in made["data"]["facts"][f"/costs/{cost}"]["reason"]


def test_pools_are_registered_and_compared_with_torch(tmp_path: Path) -> None:
    made = document(tmp_path / "pool.json", "bench", "pool", "--size", "256MiB", "--kind", "anonymous", "--rounds", "5")
    found = read_bench(tmp_path / "pool.json")
    assert found.setting.accelerator is not None
    assert made["data"]["registrar"] is not None
    assert all(case["times_torch"] for case in made["data"]["cases"])
    if found.costs.make_s_per_gib is None:
        assert_noise_is_told(made, "make_s_per_gib")
    else:
        assert found.costs.make_s_per_gib > 0


def test_copies_have_a_peak_a_first_layer_and_a_cost(tmp_path: Path) -> None:
    made = document(
        tmp_path / "copy.json",
        "bench",
        "copy",
        "--pages",
        "64",
        "--layout",
        "page_first_direct",
        "--backend",
        "strided,batch,cpu",
    )
    rows = {row["backend"]: row for row in made["data"]["rows"]}
    assert rows["cpu"]["refused"] == "cpu reaches host memory alone"
    assert rows["strided"]["refused"] is None
    found = read_bench(tmp_path / "copy.json")
    share = found.find("page_first_direct strided", "load_share_of_peak")
    assert share is not None
    assert 0 < (share.p50 or 0) < 1.5
    costs = {path.value for path in priors_of(found)}
    assert costs <= {"host_read", "host_write"}
    for missing in {"host_read", "host_write"} - costs:
        assert_noise_is_told(made, missing)

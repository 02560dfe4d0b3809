"""`hicachectl run` on a CUDA device: real pools, every restored page proven on the device."""

from __future__ import annotations

import pytest
import torch

from hicachectl.errors import ExitCode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("backend", ["auto", "strided", "torch"])
def test_a_replay_restores_the_right_bytes_and_says_what_it_ran_on(backend: str) -> None:
    for library in ("typer", "rich", "pydantic", "yaml"):
        pytest.importorskip(library, reason=f"the command line needs {library}")
    from cli_runner import call

    words = ["run", "--device", "cuda", "--backend", backend, "--geometry", "tiny-512k", "--limit", "40", "-o", "json"]
    done = call(*words)
    assert done.code == ExitCode.OK, done.err
    data = done.json["data"]
    assert data["pools"]["device"].startswith("cuda")
    assert data["pages_verified"] > 0
    assert data["pages_mismatched"] == 0
    if backend == "auto":
        assert any("copy backend measured at start" in note for note in data["notes"])
    else:
        assert data["pools"]["backend"] == backend

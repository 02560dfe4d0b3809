"""Element types of the KV cache in `hicachectl run`: the known ones are moved as bytes, others are refused wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_calls import conversation_trace, replay, run

from hicachectl.config_keys import catalogue
from hicachectl.runtime.geometry import DTYPE_BYTES
from hicachectl.runtime.replay import driver
from hicachectl.schemas_io import document_schema


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_settings_and_document_know_the_types_that_pages_can_be_of() -> None:
    assert set(catalogue()["run.dtype"].choices) == set(DTYPE_BYTES)
    assert set(document_schema("run")[1]["$defs"]["Pools"]["properties"]["dtype"]["enum"]) == set(DTYPE_BYTES)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(("dtype", "width"), DTYPE_BYTES.items())
def test_every_known_type_restores_right_bytes(tmp_path: Path, dtype: str, width: int, backend: str) -> None:
    trace = conversation_trace(tmp_path, n=6)
    data = replay("--trace", trace, "--dtype", dtype, "--backend", backend, "--layout", "page_first")
    assert data["pages_restored"] > 0
    assert (data["pools"]["dtype"], data["pools"]["page_bytes"]) == (dtype, 2048 * width)


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_an_unknown_type_is_refused_from_every_place_with_the_known_ones(tmp_path: Path, check: list[str]) -> None:
    entry = "{value: fp7, reason: r, source: s, confidence: assumed}"
    Path("p.yaml").write_text(f"name: p\nrevision: 1\nsummary: s\nvalues:\n  run.dtype: {entry}\n")
    by_flag = run("--dtype", "fp7", *check)
    by_env = run(*check, env={"HICACHECTL_RUN_DTYPE": "fp7"})
    by_profile = run("--profile", "p.yaml", *check)
    Path("hicache.yaml").write_text("run:\n  dtype: fp7\n")
    by_file = run(*check)
    for ran, where in (
        (by_flag, "--dtype"),
        (by_env, "HICACHECTL_RUN_DTYPE"),
        (by_profile, "p.yaml:5"),
        (by_file, "hicache.yaml:2"),
    ):
        assert ran.code == 2
        assert where in ran.err
        assert "'fp7', not one of bf16, fp16, fp32, fp8, fp8_e4m3, fp8_e5m2, int8, uint8" in " ".join(ran.err.split())


def test_a_torch_without_the_type_moves_bytes_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "element_type", lambda dtype: (torch.uint8, "this torch has no float8_e5m2"))
    data = replay("--trace", conversation_trace(tmp_path, n=6), "--dtype", "fp8_e5m2")
    assert any("dtype fp8_e5m2: this torch has no float8_e5m2; pages move as bytes" in note for note in data["notes"])

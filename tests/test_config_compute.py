"""Whose prefill the coefficients describe is never claimed for coefficients set by somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.config import OriginKind, load_config
from hicachectl.errors import UsageError


def test_the_default_prefill_names_its_model_and_card(tmp_path: Path) -> None:
    compute = load_config(env={}, cwd=tmp_path, system_file=tmp_path / "none").run.compute
    assert compute.model == "qwen3-8b"
    assert "H200" in (compute.hardware or "")


def test_coefficients_from_a_stronger_place_take_back_the_name_of_a_weaker_one(tmp_path: Path) -> None:
    (tmp_path / "hicache.yaml").write_text("run:\n  compute:\n    b_s: 1.0e-5\n")
    found = load_config(env={}, cwd=tmp_path, system_file=tmp_path / "none", profile="nvidia-h200")
    assert (found.run.compute.model, found.run.compute.hardware) == (None, None)
    assert found.origins["run.compute.model"].kind is OriginKind.FILE
    assert "hicache.yaml:3" in str(found.origins["run.compute.model"].reason)


def test_a_name_beside_the_coefficients_stays(tmp_path: Path) -> None:
    (tmp_path / "hicache.yaml").write_text(
        "run:\n  compute:\n    model: llama-3.1-8b\n    hardware: my card\n    b_s: 1.0e-5\n"
    )
    compute = load_config(env={}, cwd=tmp_path, system_file=tmp_path / "none").run.compute
    assert (compute.model, compute.hardware) == ("llama-3.1-8b", "my card")


def test_an_unknown_model_gets_the_nearest_preset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.compute\.model 'qwen3-8' is not known") as caught:
        load_config(env={"HICACHECTL_RUN_COMPUTE_MODEL": "qwen3-8"}, cwd=tmp_path, system_file=tmp_path / "none")
    assert "qwen3-8b" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["nvidia-h200", "kunlun-p800-hygon", "kunlun-p900"])
def test_profiles_of_a_card_save_and_move_one_model(name: str, tmp_path: Path) -> None:
    run = load_config(env={}, cwd=tmp_path, system_file=tmp_path / "none", profile=name).run
    assert run.geometry == run.compute.model

"""What --output-file may replace: a document of the same command, and by nothing that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_files import write_result
from cli_runner import call

from hicachectl.bench_data import Costs


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_document_of_the_same_command_is_replaced(form: str) -> None:
    for _ in range(2):
        assert call("version", "-o", form, "--output-file", "v.out").code == 0
    assert "hicachectl.version/1" in Path("v.out").read_text()[:60]


@pytest.mark.parametrize("before", ['{"schema": "hicachectl.bench-pool/1"}\n', "my notes\n", "run:\n  seed: 1\n"])
def test_any_other_file_stays_as_it_was(before: str) -> None:
    Path("pool.json").write_text(before)
    ran = call("version", "-o", "json", "--output-file", "pool.json")
    assert ran.code == 2
    assert "HC-OUTPUT" in ran.err
    assert "--replace" in ran.err
    assert Path("pool.json").read_text() == before
    assert json.loads(ran.out)["status"] == "failed"  # the failed document goes to stdout


def test_told_to_it_replaces_and_an_empty_file_is_no_file() -> None:
    Path("a").write_text("my notes\n")
    Path("b").write_text("")
    assert call("version", "-o", "json", "--output-file", "a", "--replace").code == 0
    assert call("version", "-o", "json", "--output-file", "b").code == 0
    assert all("hicachectl.version/1" in Path(name).read_text() for name in ("a", "b"))


def test_a_failed_document_replaces_no_good_one() -> None:
    Path("run.json").write_text('{"schema": "hicachectl.run/1"}\n')
    before = Path("run.json").read_text()
    ran = call("run", "--trace", "not-there.jsonl", "-o", "json", "--output-file", "run.json")
    assert ran.code == 2
    assert Path("run.json").read_text() == before
    assert json.loads(ran.out)["status"] == "failed"
    assert "kept run.json as it was" in ran.err


def test_what_to_run_next_never_names_the_file_that_was_given(tmp_path: Path) -> None:
    path = write_result(str(tmp_path / "pool.json"), "pool", Costs())
    ran = call("topo", "--measured", str(path))
    assert ran.code == 2
    assert f"--output-file {path}" not in ran.err

"""What --output-file may replace: a document of the same command, and by nothing that failed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

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


def test_a_device_or_a_pipe_is_written_to_and_never_replaced() -> None:
    Path("null").symlink_to("/dev/null")
    for more in ((), ("--replace",)):
        assert call("version", "-o", "json", "--output-file", "null", *more).code == 0
        assert Path("null").is_symlink()
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert call("version", "-o", "json", "--output-file", "pipe").code == 0
    assert b"hicachectl.version/1" in os.read(reader, 1 << 16)
    os.close(reader)
    assert Path("pipe").is_fifo()


def test_a_failed_document_replaces_no_good_one() -> None:
    Path("run.json").write_text('{"schema": "hicachectl.run/1"}\n')
    before = Path("run.json").read_text()
    ran = call("run", "--trace", "not-there.jsonl", "-o", "json", "--output-file", "run.json")
    assert ran.code == 2
    assert Path("run.json").read_text() == before
    assert json.loads(ran.out)["status"] == "failed"
    assert "kept run.json as it was" in ran.err


def test_an_open_file_of_the_process_such_as_dev_stdout_is_added_to_and_never_replaced() -> None:
    with open("all.out", "w") as file:
        assert call("version", "-o", "json", "--output-file", f"/dev/fd/{file.fileno()}").code == 0
        assert call("version", "-o", "json", "--output-file", f"/dev/fd/{file.fileno()}", "--replace").code == 0
        assert os.fstat(file.fileno()).st_nlink == 1
    assert Path("all.out").read_text().count("hicachectl.version/1") == 2


def test_a_file_system_that_is_read_only_is_told_in_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_unlink = os.open, os.unlink

    def refused(real: Any) -> Any:
        def call_or_refuse(path: Any, *words: Any, **more: Any) -> Any:
            if ".v.out." in os.fspath(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *words, **more)

        return call_or_refuse

    monkeypatch.setattr(os, "open", refused(real_open))
    monkeypatch.setattr(os, "unlink", refused(real_unlink))
    ran = call("version", "-o", "json", "--output-file", "v.out")
    assert ran.code == 2
    assert "cannot write: Read-only file system" in ran.err
    assert "HC-OUTPUT" in ran.err


def test_what_to_run_next_never_names_the_file_that_was_given(tmp_path: Path) -> None:
    path = write_result(str(tmp_path / "pool.json"), "pool", Costs())
    ran = call("topo", "--measured", str(path))
    assert ran.code == 2
    assert f"--output-file {path}" not in ran.err

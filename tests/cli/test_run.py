"""Bad input of `hicachectl run`, each with its exit code and what the error must say; then the preflight."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, call, command_line
from run_calls import conversation_trace, replay, run
from small_traces import mooncake_line

from hicachectl.runtime.replay.report import ReplayReport
from hicachectl.schemas_io import document_schema


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder that also takes every temporary file."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


def refused(*argv: str, code: int = 2) -> str:
    """The text of an error; no data came out and nothing was left in the temporary folder."""
    ran = run(*argv)
    assert ran.code == code, ran.err
    assert ran.json["status"] == "failed"
    assert ran.json["data"] is None
    assert "Traceback" not in ran.err
    assert os.listdir(tempfile.gettempdir()) == []
    for part in ("error:", "next:", "code:"):
        assert part in ran.err
    return ran.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"timestamp": 1, "input_len', ["not a JSON object"]),
        ("[1, 2]", ["not a JSON object"]),
        (mooncake_line([1], input_length=-5), ["input_length", "-5"]),
        (mooncake_line([1], input_length=99_999), ["1 ids", "99999", "196"]),
        (mooncake_line([1], input_lenght=512), ["input_lenght", "input_length"]),
        (mooncake_line([1], hash_ids="1"), ["hash_ids"]),
        (mooncake_line([3, 3]), ["3"]),
        ("", ["3"]),
    ],
)
def test_a_broken_trace_line_is_named_by_file_and_line_with_both_values(line: str, words: list[str]) -> None:
    good = [mooncake_line([0, 1]), mooncake_line([0, 2], 1)]
    Path("bad.jsonl").write_text("\n".join([*good, line, *good]) + "\n")
    err = refused("--trace", "bad.jsonl")
    assert "bad.jsonl:3:" in err
    for word in words:
        assert word in err


def test_a_truncated_gzip_stream_is_an_error_that_names_the_file() -> None:
    whole = gzip.compress("\n".join(mooncake_line([n], n) for n in range(2000)).encode())
    Path("cut.gz").write_bytes(whole[: len(whole) // 2])
    err = refused("--trace", "cut.gz")
    assert "cut.gz:" in err
    assert "cut short" in err


@pytest.mark.parametrize(
    ("name", "content"), [("empty.jsonl", b""), ("blank.jsonl", b"\n\n"), ("noise.jsonl", bytes(range(256)) * 9)]
)
def test_a_file_that_is_no_trace_is_refused(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    assert name in refused("--trace", name)


def test_a_trace_that_is_missing_or_a_folder_is_refused() -> None:
    assert "missing.jsonl" in refused("--trace", "missing.jsonl")
    assert "not a regular file" in refused("--trace", ".")


def test_an_unknown_config_key_is_named_with_file_line_and_the_nearest_name() -> None:
    Path("hicache.yaml").write_text("run:\n  host_slotz: 5\n")
    err = refused()
    assert "hicache.yaml:2:" in err
    assert "run.host_slots'" in err


@pytest.mark.parametrize(
    ("flag", "value", "nearest"),
    [
        ("--geometry", "tiny-65k", "tiny-64k"),
        ("--layout", "page_frist", "page_first"),
        ("--backend", "torhc", "torch"),
        ("--write-policy", "write_thru", "write_through"),
        ("--eviction", "lur", "lru"),
        ("--synthetic", "multiturn", "multi-turn"),
        ("--restore", "alwys", "always"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest_one(flag: str, value: str, nearest: str) -> None:
    err = refused(flag, value)
    assert flag in err
    assert value in err
    assert f"'{nearest}'" in err


@pytest.mark.parametrize(
    "flag", ["--limit", "--host-slots", "--device-slots", "--verify", "--seed", "--metrics-port", "--seen-keys"]
)
@pytest.mark.parametrize("value", ["-1", "many", "1.5", ""])
def test_a_value_that_is_no_count_is_refused_and_names_its_flag(flag: str, value: str) -> None:
    assert flag in refused(flag, value)


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_page_that_does_not_divide_the_block_is_refused_with_sizes_that_do(tmp_path: Path, check: list[str]) -> None:
    err = refused("--trace", conversation_trace(tmp_path), "--page-tokens", "500", *check)
    assert "500" in err
    assert "512" in err
    assert "use 256 or 512" in err


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_device_pool_smaller_than_one_request_is_not_ready_with_both_terms(tmp_path: Path, check: list[str]) -> None:
    err = refused("--trace", conversation_trace(tmp_path), "--device-slots", "7", *check, code=10)
    assert "longest request, pages" in err
    assert "device slots" in err
    assert "--device-slots 8 or auto" in err


@pytest.mark.parametrize("backend", ["direct", "batch", "strided", "uva"])
def test_a_backend_that_does_not_go_with_the_layout_is_refused_with_both_names_and_what_works(backend: str) -> None:
    err = refused("--layout", "page_first_direct", "--backend", backend)
    assert f"page_first_direct and copy backend {backend}" in err
    assert "cpu or torch" in err


def test_storage_without_a_host_tier_is_refused() -> None:
    err = refused("--host-slots", "0", "--storage-path", "l3")
    assert "host_slots is 0" in err
    assert not Path("l3").exists()


def test_a_host_tier_not_larger_than_the_device_tier_is_warned_of_with_the_arithmetic_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    ran = run("--trace", conversation_trace(tmp_path), "--host-slots", "6")
    assert (ran.code, ran.json["status"]) == (0, "findings")
    found = {d["code"]: d for d in ran.json["diagnostics"]}
    assert "6 - 8 = -2 pages" in found["HC-L2-NOT-LARGER"]["message"]
    assert "8 pages, the host tier 6" in found["HC-L2-SHORT"]["message"]
    assert "--host-slots 16" in found["HC-L2-NOT-LARGER"]["hint"]
    assert "HC-L2-NOT-LARGER" in ran.err
    assert ran.json["data"]["requests"] == 24


def test_without_host_slots_the_device_works_alone_and_what_it_lost_is_evicted_device(tmp_path: Path) -> None:
    data = replay("--trace", conversation_trace(tmp_path), "--host-slots", "0")
    assert data["pages_hit_by_tier"] == {"device": 0, "host": 0, "storage": 0}
    assert (
        data["missed_tokens_by_reason"]["never_seen"] == data["missed_tokens_by_reason"]["evicted_device"] == 96 * 512
    )
    assert data["missed_tokens"] == 2 * 96 * 512
    assert data["paths"] == {}


@pytest.mark.parametrize(
    "pool", [("--host-slots", "100000000"), ("--device-slots", "100000000"), ("--host-slots", str(10**22))]
)
@pytest.mark.parametrize("check", [[], ["--check"]])
def test_absurd_pools_are_not_ready_with_every_term_and_at_once(pool: tuple[str, str], check: list[str]) -> None:
    began = time.perf_counter()
    err = refused(*pool, "--geometry", "tiny-512k", "--limit", "10", *check, code=10)
    assert time.perf_counter() - began < 5
    for term in ("device pool", "host pool", "key tables", "left to the machine", "memory"):
        assert term in err


def test_a_key_table_beyond_its_bound_is_refused_by_its_flag() -> None:
    assert "--ghost" in refused("--ghost", str(10**12))
    assert "268435456" in refused("--seen-keys", str(10**12))


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_storage_tier_smaller_than_a_page_is_not_ready_with_every_term(check: list[str]) -> None:
    err = refused("--storage-path", "auto", "--storage-bytes", "5", *check, code=10)
    for term in ("page", "header and block rounding", "storage_bytes"):
        assert term in err


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_storage_path_that_is_a_file_or_lies_below_one_is_not_ready(check: list[str]) -> None:
    Path("file").write_text("mine")
    assert "is no folder" in refused("--storage-path", "file", *check, code=10)
    assert "is no folder" in refused("--storage-path", "file/l3/deep", *check, code=10)
    assert Path("file").read_text() == "mine"


def test_a_storage_folder_that_cannot_be_made_is_not_ready() -> None:
    err = refused("--storage-path", "/proc/hicachectl", "--limit", "2", code=10)
    assert "/proc/hicachectl" in err


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root writes everywhere; the read-only mount of test_run_storage stands for it"
)
@pytest.mark.parametrize("check", [[], ["--check"]])
def test_an_unwritable_storage_folder_is_not_ready(check: list[str]) -> None:
    Path("l3").mkdir(mode=0o500)
    assert "l3" in refused("--storage-path", "l3", *check, code=10)


def test_a_missing_storage_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    replay("--trace", conversation_trace(tmp_path), "--host-slots", "32", "--storage-path", "l3")
    assert stat.S_IMODE(Path("l3").stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize("path", ["nowhere/report.html", "."])
def test_a_report_that_cannot_be_written_fails_before_the_replay_and_before_the_trace_is_read(
    path: str, check: list[str]
) -> None:
    Path("bad.jsonl").write_text("{")
    ran = call("run", "--trace", "bad.jsonl", "--report", path, "-o", "json", *check)
    assert (ran.code, ran.json["diagnostics"][0]["code"]) == (2, "HC-OUTPUT")
    assert "replay" not in ran.err


def test_a_report_appears_whole_beside_nothing_else(tmp_path: Path) -> None:
    replay("--trace", conversation_trace(tmp_path), "--report", "out.html")
    assert Path("out.html").read_text().rstrip().endswith("</html>")
    assert sorted(os.listdir()) == ["out.html", "tmp", "trace.jsonl"]


def test_a_metrics_port_that_is_taken_is_refused_with_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        err = refused("--limit", "2", "--metrics-port", port)
    assert f"127.0.0.1:{port}" in err
    assert "--metrics-port" in err


def test_limit_stops_after_n_requests_and_says_so(tmp_path: Path) -> None:
    trace = conversation_trace(tmp_path)
    assert (replay("--trace", trace, "--limit", "5")["stop"], replay("--trace", trace, "--limit", "24")["stop"]) == (
        "limit",
        "complete",
    )
    assert replay("--trace", trace, "--limit", "5")["requests"] == 5


def test_a_limit_beyond_the_broken_line_does_not_hide_it() -> None:
    Path("bad.jsonl").write_text(mooncake_line([1]) + "\n{\n")
    assert "bad.jsonl:2:" in refused("--trace", "bad.jsonl", "--limit", "1")


def test_check_shows_sizes_memory_and_the_origin_of_each_setting_and_makes_nothing(tmp_path: Path) -> None:
    Path("hicache.yaml").write_text("run:\n  host_slots: 40\n")
    before = sorted(os.listdir())
    ran = run(
        "--check", "--trace", conversation_trace(tmp_path), "--storage-path", "b", env={"HICACHECTL_RUN_GHOST": "0"}
    )
    data = ran.json["data"]
    assert (data["longest_request_pages"], data["device_slots"], data["host_slots"], data["storage"]) == (
        8,
        8,
        40,
        "b (will be made)",
    )
    assert data["memory_bytes"]["host pool"] == 40 * 4096
    origins = {setting["key"]: setting["origin"] for setting in data["settings"]}
    assert origins["run.host_slots"] == "file hicache.yaml:2"
    assert "--trace" in origins["run.trace"]
    assert origins["run.eviction"] == "default"
    assert sorted(os.listdir()) == sorted([*before, "trace.jsonl"])


def test_check_prints_a_screen_that_says_it_is_ready(tmp_path: Path) -> None:
    ran = call("run", "--check", "--trace", conversation_trace(tmp_path))
    assert ran.code == 0
    assert "ready:" in ran.out


def test_the_schema_of_run_names_every_key_of_the_report(tmp_path: Path) -> None:
    schema = json.loads(call("schema", "run").out)
    data = schema["$defs"]["data"]
    names = [field.name for field in dataclasses.fields(ReplayReport)]
    assert sorted(data["required"]) == sorted(names)
    assert set(data["properties"]) == {*names, "facts"}
    document = run("--trace", conversation_trace(tmp_path)).json["data"]
    assert _unknown(document, data, document_schema("run")[1]["$defs"]) == []


def _unknown(value: Any, schema: Any, defs: Any, at: str = "") -> list[str]:
    """List the keys of a document that its schema does not name."""
    while "$ref" in schema or "anyOf" in schema:  # anyOf: a thing or null
        schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema["anyOf"][0]
    if isinstance(value, list):
        return [bad for item in value for bad in _unknown(item, schema["items"], defs, f"{at}/*")]
    if not isinstance(value, dict) or at == "/facts":
        return []
    named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [f"{at}/{key}" for key in value if key not in named and other is True]
    for key, item in value.items():
        deeper = named.get(key, other)
        if isinstance(deeper, dict):
            found += _unknown(item, deeper, defs, f"{at}/{key}")
    return found


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_closed_pipe_ends_a_run_quietly_with_141(tmp_path: Path, form: str) -> None:
    """What `| head -1` does, without the race against the pipe's buffer: the reader is gone before the report."""
    read, write = os.pipe()
    os.close(read)
    argv = command_line("run", "--trace", conversation_trace(tmp_path), "--progress", "none", "-o", form)
    try:
        ran = subprocess.run(
            argv,
            env={**QUIET, "TMPDIR": tempfile.gettempdir()},
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (ran.returncode, ran.stderr) == (141, b"")
    assert os.listdir(tempfile.gettempdir()) == []


def test_what_comes_next_names_the_configuration_that_was_named(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("run:\n  geometry: tiny-4k\n  limit: 3\n")
    ran = call("run", "--config", str(config), "--progress", "none", env={"COLUMNS": "200"})
    assert ran.code == 0, ran.err
    lines = [line.split("-> ")[1] for line in ran.out.splitlines() if "-> hicachectl run" in line]
    assert f"hicachectl run --config {config} --limit none" in lines
    assert all(f"--config {config}" in line for line in lines)

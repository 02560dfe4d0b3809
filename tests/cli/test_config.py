from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hicachectl.app import run_cli
from hicachectl.config_keys import catalogue
from hicachectl.envelope import unexplained_nulls
from hicachectl.schemas_io import document_schema


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the search for ./hicache.yaml starts in the current folder


def call(*argv: str, **environ: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run_cli(argv, {"COLUMNS": "100", **environ}, io.StringIO(), out, err)
    return code, out.getvalue(), err.getvalue()


def document(*argv: str, **environ: str) -> dict[str, Any]:
    code, out, _ = call(*argv, "-o", "json", **environ)
    data: dict[str, Any] = json.loads(out)
    assert data["exit_code"] == code
    return data


def test_show_prints_every_key_and_with_origin_its_file_and_line() -> None:
    Path("hicache.yaml").write_text("# pools\nrun:\n  host_slots: 4096\n")
    code, out, err = call("config", "show", "--origin", HICACHECTL_RUN_SEED="7")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:]}
    assert set(rows) == set(catalogue())
    assert rows["run.host_slots"] == ["4096", "file", "hicache.yaml:3"]
    assert rows["run.seed"] == ["7", "environment", "HICACHECTL_RUN_SEED"]
    assert rows["run.limit"] == ["null", "default", "-"]


def test_without_origin_only_values_are_shown() -> None:
    _, out, _ = call("config", "show")
    assert out.splitlines()[1].split() == ["KEY", "VALUE"]
    assert "536870912 (512.0 MiB)" in out


def test_show_has_what_a_run_without_flags_uses_and_names_the_default_profile() -> None:
    _, out, _ = call("config", "show", "--origin")
    assert out.splitlines()[0].endswith("(default no trace and no profile given)")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:]}
    assert rows["profile"][:2] == ["cpu-demo", "default"]
    assert rows["run.storage_path"][:2] == ["auto", "profile"]


def test_show_uses_no_demonstration_profile_where_a_trace_or_no_profile_is_asked_for() -> None:
    assert document("config", "show", HICACHECTL_RUN_TRACE="t.jsonl")["data"]["profile"] is None
    assert document("config", "show", HICACHECTL_PROFILE="none")["data"]["profile"] is None


@pytest.mark.parametrize("argv", [("config", "show"), ("config", "show", "--profile", "cpu-demo"), ("config", "path")])
def test_each_document_fits_its_schema_and_explains_its_nulls(argv: tuple[str, ...]) -> None:
    shown = document(*argv)
    name, schema = document_schema(" ".join(argv[:2]))
    jsonschema.validate(shown, schema)
    assert shown["schema"] == f"hicachectl.{name}"
    assert unexplained_nulls(shown["data"]) == []


def test_the_document_carries_the_reason_of_a_profile_value() -> None:
    shown = document("config", "show", HICACHECTL_PROFILE="cpu-demo")
    settings = {s["key"]: s for s in shown["data"]["settings"]}
    assert settings["run.restore"]["origin"] == "profile"
    assert "every path" in settings["run.restore"]["reason"]
    assert shown["data"]["profile_reason"] == "environment HICACHECTL_PROFILE"
    assert shown["data"]["values"]["run"]["storage_bytes"] == 512 * 2**20


def test_the_values_shown_are_a_file_that_gives_the_same_values() -> None:
    shown = document("config", "show", "--profile", "nvidia-h200")["data"]["values"]
    Path("hicache.yaml").write_text(yaml.safe_dump({"run": shown["run"], "tune": shown["tune"]} | {"profile": None}))
    # a file that sets trace to null and names a synthetic workload is not a contradiction
    again = document("config", "show")["data"]
    assert again["values"] == shown | {"profile": None}
    assert {s["origin"] for s in again["settings"]} == {"file"}


def test_a_wrong_file_is_three_lines_with_file_and_line_and_code_2() -> None:
    Path("hicache.yaml").write_text("run:\n  page_token: 64\n")
    code, out, err = call("config", "show")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "error: hicache.yaml:2: unknown key 'run.page_token'"
    assert "did you mean 'run.page_tokens'?" in err
    assert "HC-USAGE" in err
    assert document("config", "show")["status"] == "failed"


def test_a_named_file_is_used_and_must_exist() -> None:
    Path("mine.yaml").write_text("run: {seed: 3}\n")
    assert document("config", "show", "--config", "mine.yaml")["data"]["values"]["run"]["seed"] == 3
    assert document("config", "path", HICACHECTL_CONFIG="mine.yaml")["data"]["reason"] == "HICACHECTL_CONFIG"
    code, _, err = call("config", "show", "--config", "absent.yaml")
    assert code == 2
    assert "absent.yaml: no such file" in err


def test_path_says_which_place_is_used() -> None:
    none = document("config", "path")["data"]
    assert none["path"] is None
    assert [p["path"] for p in none["places"]] == ["hicache.yaml", "/etc/hicachectl/hicache.yaml"]
    Path("hicache.yaml").touch()
    assert document("config", "path")["data"]["places"][0] == {"path": "hicache.yaml", "state": "used"}
    missing = document("config", "path", "--config", "absent.yaml")["data"]
    assert missing["places"] == [{"path": "absent.yaml", "state": "missing"}]


def test_global_variables_are_no_config_keys_and_a_misspelt_one_is_refused() -> None:
    assert call("config", "show", HICACHECTL_COLOR="never", HICACHECTL_PROGRESS="none")[0] == 0
    code, _, err = call("config", "show", HICACHECTL_RUN_SEDE="1")
    assert code == 2
    assert "HICACHECTL_RUN_SEED" in err


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_no_value_is_cut_at_any_width(columns: str) -> None:
    for form in ("table", "wide"):
        _, out, _ = call("config", "show", "--origin", "--profile", "kunlun-p800-hygon", "-o", form, COLUMNS=columns)
        assert "page_first" not in out  # the profile's layout is layer_first
        for word in ("run.prefetch.per_ki_token_s", "layer_first", "34777", "2.82e-05"):
            assert word in out


def test_tsv_has_one_line_a_key() -> None:
    _, out, _ = call("config", "show", "-o", "tsv")
    lines = out.splitlines()
    assert lines[0].split("\t") == ["key", "value", "origin", "where", "reason"]
    assert [line.split("\t")[0] for line in lines[1:]] == list(catalogue())


def test_the_commands_need_neither_torch_nor_numpy() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from hicachectl.app import main\n"
        "sys.argv = ['hicachectl', *sys.argv[1:]]\n"
        "main()"
    )
    for argv in (["config", "show"], ["profile", "list"], ["profile", "validate", "cpu-demo"]):
        done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_help_loads_no_yaml_and_no_models() -> None:
    script = (
        "import io, sys\nfrom hicachectl.app import run_cli\n"
        "run_cli(sys.argv[1:], {}, io.StringIO(), io.StringIO(), io.StringIO())\n"
        "print(sorted({'yaml', 'hicachectl.config_models', 'numpy', 'torch'} & set(sys.modules)))"
    )
    for argv in (["config", "show", "--help"], ["profile", "--help"], ["config", "path", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hicachectl.app import run_cli
from hicachectl.envelope import unexplained_nulls
from hicachectl.profiles import profile_names
from hicachectl.schemas_io import document_schema

BROKEN = """\
name: mine
revision: 1
summary: a test
values:
  run.page_token: {value: 64, reason: r, source: s, confidence: read}
  run.seed: {value: one, reason: r, source: s, confidence: read}
"""


def call(*argv: str, **environ: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run_cli(argv, {"COLUMNS": "100", **environ}, io.StringIO(), out, err)
    return code, out.getvalue(), err.getvalue()


def document(*argv: str) -> dict[str, Any]:
    code, out, _ = call(*argv, "-o", "json")
    data: dict[str, Any] = json.loads(out)
    assert data["exit_code"] == code
    return data


def test_list_names_the_five_profiles_on_a_line_each_at_80_columns() -> None:
    code, out, _ = call("profile", "list", COLUMNS="80")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == list(profile_names())
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("name", ["cpu-demo", "kunlun-p800-hygon", "kunlun-p900", "nvidia-h200"])
def test_show_prints_the_reason_and_source_of_each_value(name: str) -> None:
    shown = document("profile", "show", name)
    jsonschema.validate(shown, document_schema("profile show")[1])
    assert unexplained_nulls(shown["data"]) == []
    code, out, _ = call("profile", "show", name, COLUMNS="80")
    assert code == 0
    assert out.count("  why     ") == out.count("  source  ") == len(shown["data"]["values"])
    assert all(len(line) <= 80 for line in out.splitlines())
    words = " ".join(out.split())
    for value in shown["data"]["values"]:
        assert value["reason"] in words
        assert value["source"] in words


@pytest.mark.parametrize("argv", [("profile", "list"), ("profile", "validate", "cpu-demo", "nope")])
def test_each_document_fits_its_schema_and_explains_its_nulls(argv: tuple[str, ...]) -> None:
    shown = document(*argv)
    jsonschema.validate(shown, document_schema(" ".join(argv[:2]))[1])
    assert unexplained_nulls(shown["data"]) == []


def test_validate_lists_every_problem_with_its_line_and_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BROKEN)
    shown = document("profile", "validate", "cpu-demo", str(path))
    assert (shown["exit_code"], shown["status"]) == (2, "findings")
    assert [p["ok"] for p in shown["data"]["profiles"]] == [True, False]
    assert [(d["code"], d["subject"]) for d in shown["diagnostics"]] == [
        ("HC-PROFILE", f"{path}:5"),
        ("HC-PROFILE", f"{path}:6"),
    ]
    code, out, _ = call("profile", "validate", str(path), COLUMNS="200")
    assert code == 2
    assert "did you mean 'run.page_tokens'?" in out
    assert "run.seed is 'one', not a whole number of at least 0" in out


def test_validate_of_good_profiles_ends_with_0() -> None:
    code, out, _ = call("profile", "validate", *profile_names())
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 5


def test_validate_checks_that_the_values_go_together(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        BROKEN[: BROKEN.index("  run.page")]
        + "  run.prefetch.base_s: {value: 60.0, reason: r, source: s, confidence: read}\n"
    )
    code, out, _ = call("profile", "validate", str(path))
    assert code == 2
    assert "max_s 10.0 is below run.prefetch.base_s 60.0" in " ".join(out.split())
    assert f"{path}:5" in out


def test_show_of_a_broken_profile_names_the_first_problem_and_counts_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BROKEN)
    code, out, err = call("profile", "show", str(path))
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"error: {path}:5: unknown key 'run.page_token'"
    assert "1 more" in err
    assert "HC-PROFILE" in err


def test_an_unknown_profile_gets_the_nearest_name() -> None:
    code, _, err = call("profile", "show", "cpu-dmeo")
    assert code == 2
    assert "did you mean 'cpu-demo'?" in err


def test_tsv_has_one_line_a_value() -> None:
    _, out, _ = call("profile", "show", "cpu-demo", "-o", "tsv")
    assert out.splitlines()[0].split("\t") == ["key", "value", "reason", "source", "confidence", "where"]


def test_output_is_plain_ascii_when_the_stream_is() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    assert (
        run_cli(["profile", "show", "kunlun-p800-hygon"], {"TERM": "dumb"}, io.StringIO(), stream, io.StringIO()) == 0
    )
    stream.flush()
    assert b"run.host_slots" in raw.getvalue()

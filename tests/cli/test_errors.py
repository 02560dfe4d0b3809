"""Three lines and a code; the page behind every code."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from cli_runner import QUIET, call, command_line
from fakes.fake import ENDINGS
from small_traces import conversations, write_trace

from hicachectl import errors
from hicachectl.errors import HicacheError, UsageError
from hicachectl.explanations import SECTIONS, codes, explanation, parse_page
from hicachectl.registry import COMMANDS, PLANNED
from hicachectl.render.error import error_lines

ROOT = Path(__file__).parents[2]

ON_A_DEVICE = [
    ("run", "--limit", "1"), ("run", "--limit", "1", "--check"), ("tune", "size", "--synthetic", "one-shot", "--steps", "none"),
    ("bench", "pool"), ("bench", "copy"), ("bench", "link"), ("bench", "model", "--geometry", "tiny-4k"),
]  # fmt: skip
"""A line of every command that takes --device."""


@pytest.mark.parametrize("how", sorted(ENDINGS))
def test_an_error_says_what_why_if_known_next_and_its_code(how: str) -> None:
    error = ENDINGS[how]
    assert isinstance(error, HicacheError)
    lines = [line for line, _ in error_lines(error)]
    assert lines[0].startswith("error: ")
    assert error.what in lines[0]
    assert (error.where or "") in lines[0]
    assert [line[:7] for line in lines[-2:]] == ["  next:", "  code:"]
    assert (error.why is None) or f"   why: {error.why}" in lines
    assert all(len(line) > 8 for line in lines)
    assert error.code in lines[-1]


def test_a_reason_that_only_repeats_the_first_line_is_left_out() -> None:
    lines = [line for line, _ in error_lines(UsageError("seed is x", where="--seed", hint="give a number"))]
    assert [line[:7] for line in lines] == ["error: ", "  next:", "  code:"]


def test_a_planned_command_is_told_from_a_misspelt_one() -> None:
    for line in (("bundle",), ("doctor",), ("export", "sglang")):
        ran = call(*line)
        assert ran.code == 2
        assert "planned and not there yet" in ran.err
    assert not {entry.name for entry in COMMANDS} & PLANNED.keys()


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_device_that_cannot_be_used_here_is_refused_with_the_reason_in_the_preflight_too(more: list[str]) -> None:
    ran = call("run", "--device", "mtia", "--limit", "1", *more)
    assert ran.code == 5
    assert "torch cannot use device mtia here" in ran.err
    assert "torch can use cpu" in ran.err


@pytest.mark.parametrize("line", ON_A_DEVICE, ids=" ".join)
def test_a_torch_without_cuda_is_told_the_same_way_by_every_command(line: tuple[str, ...]) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch was built with CUDA")
    ran = call(*line, "--device", "cuda")
    assert ran.code == 5
    text = " ".join(ran.err.split())
    assert f"why: this torch ({torch.__version__}) was built without CUDA" in text
    assert "next: install a torch that was built with it into this environment" in text


@pytest.mark.parametrize(
    "line", [("trace", "info"), ("trace", "curve"), ("tune", "show"), ("tune", "unit")], ids=" ".join
)
def test_a_file_that_this_user_may_not_read_is_no_fault_of_the_command_line(
    line: tuple[str, ...], tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root to become somebody else")
    path = tmp_path / "file"
    path.write_text("{}")
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if (
            folder.stat().st_uid == 0
            and folder.is_relative_to(tempfile.gettempdir())
            and str(folder) != tempfile.gettempdir()
        ):
            folder.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ran = subprocess.run(
        [*nobody, *command_line(*line, str(path))], env=QUIET, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    if "HC-" not in ran.stderr:
        pytest.skip("this interpreter cannot be run by another user")
    assert "does not parse" not in ran.stderr
    assert re.search(r"next: (let this user read it|sudo )", ran.stderr), ran.stderr


@pytest.mark.parametrize(
    "line",
    [
        ("run", "--check", "--report", "NAME"), ("trace", "convert", "t.jsonl", "NAME"),
        ("tune", "size", "--trace", "t.jsonl", "--steps", "none", "--l3", "infinite", "--l3-path", "NAME"),
        ("tune", "recipe", "new", "vendor-mine", "--output-file", "NAME"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_cannot_be_looked_at_is_no_fault_of_the_program(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("t.jsonl"), conversations(2, 2))
    ran = call(*("a" * 300 if word == "NAME" else word for word in line))
    assert (ran.code, "HC-BUG" in ran.err) == (2, False), ran.err


def test_a_misspelt_device_names_the_nearest() -> None:
    assert "next: did you mean 'cuda'? If not, give auto, cpu, cuda, " in call("run", "--device", "cud").err
    assert "did you mean" not in call("run", "--device", "musa").err


@pytest.mark.parametrize("line", ON_A_DEVICE, ids=" ".join)
@pytest.mark.parametrize("index", [0, 3])
def test_auto_takes_no_index_and_the_accelerator_of_that_index_is_named(line: tuple[str, ...], index: int) -> None:
    ran = call(*line, "--device", f"auto:{index}")
    assert (ran.code, f"'auto:{index}' is no device: auto takes no index" in ran.err) == (2, True), ran.err
    assert f"next: name the accelerator, such as cuda:{index}" in ran.err
    assert "did you mean" not in ran.err


def test_pool_sizes_are_asked_for_in_pages() -> None:
    for flag, wanted in (
        ("--host-slots", "a whole number of pages, 0 for no host tier"),
        ("--device-slots", "a whole number of pages of at least 1, or auto"),
    ):
        ran = call("run", flag, "3GB")
        assert (ran.code, f"is '3GB', not {wanted}" in ran.err, f"next: give {wanted}" in ran.err) == (2, True, True), (
            ran.err
        )


def test_a_sum_that_does_not_fit_prints_every_term() -> None:
    text = call("fake", "capacity").err
    assert re.findall(r"^ +(asked|in use|there) +([\d ]+)$", text, re.M) == [
        ("asked", "16 000"),
        ("in use", "210"),
        ("there", "12 000"),
    ]


def test_a_half_done_change_lists_applied_rolled_back_and_left() -> None:
    text = call("fake", "partial").err
    assert re.findall(r"^ +(applied|rolled back|left) +(.*)$", text, re.M) == [
        ("applied", "a, b"),
        ("rolled back", "a"),
        ("left", "b"),
    ]


@pytest.mark.parametrize("how", ["bug", "invariant"])
def test_a_fault_of_ours_names_a_trace_file_and_prints_no_traceback(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = call("fake", how, "-o", "json")
    (trace,) = tmp_path.iterdir()
    assert f" trace: {trace}\n" in ran.err
    assert "Traceback" not in ran.err + ran.out
    assert trace.stat().st_mode & 0o077 == 0
    assert "fake.py" in trace.read_text()
    assert ran.json["diagnostics"][0]["source"] == str(trace)


def test_debug_prints_the_traceback_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = call("fake", "bug", "--debug")
    assert "Traceback" in ran.err
    assert "ZeroDivisionError" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_trace_file_that_cannot_be_made_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    ran = call("fake", "bug")
    assert ran.code == 1
    assert "seven by zero" in ran.err


def test_a_misspelt_command_or_option_names_the_nearest() -> None:
    assert "'version'" in call("versoin").err
    assert "--output" in call("fake", "--outptu", "x").err


def codes_in_source() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in ("hicachectl", "runtime", "tuning", "profiles"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for code in re.findall(r"(?<![\w-])HC-[A-Z0-9]+(?:-[A-Z0-9]+)*(?![\w-])", node.value):
                        found.setdefault(code, str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("code", sorted({*codes_in_source(), *codes()} - {"HC-CODE"}))
def test_every_code_has_a_page_with_all_sections_and_one_command(code: str) -> None:
    page = explanation(code)
    assert page.code == code
    assert not page.title.endswith(".")
    commands = [line.strip() for line in page.command.splitlines() if line.startswith("    ")]
    assert len(commands) == 1
    words = [word for word in commands[0].split() if not word.startswith("-")]
    if "hicachectl" in words:
        assert words[words.index("hicachectl") + 1] in {e.name for e in COMMANDS} | PLANNED.keys()


def test_every_class_of_the_error_tree_has_a_code_with_a_page() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, HicacheError):
            assert kind.default_code in codes(), name


def test_explain_finds_a_code_in_any_case_and_names_the_nearest() -> None:
    assert call("explain", "hc-capacity", "-o", "json").json["data"]["pages"][0]["code"] == "HC-CAPACITY"
    missing = call("explain", "HC-CAPACITI")
    assert missing.code == 2
    assert "HC-CAPACITY" in missing.err


def test_explain_without_a_code_lists_all() -> None:
    assert [c["code"] for c in call("explain", "-o", "json").json["data"]["codes"]] == codes()


def test_a_page_with_a_missing_section_is_refused() -> None:
    whole = "# HC-X: a\n\n" + "\n\n".join(f"## {name}\n\ntext" for name in SECTIONS)
    assert parse_page(whole, where="x").code == "HC-X"
    for broken in (
        whole.replace("## What\n", "## Wat\n"),
        whole.replace("# HC-X: a", "# HC-X"),
        whole.rsplit("text", 1)[0],
    ):
        with pytest.raises(ValueError, match="wants"):
            parse_page(broken, where="x")

"""`hicachectl tune size`: flags whose values cannot be meant are refused before the long work, and every null has its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from size_calls import run, size

pytestmark = pytest.mark.usefixtures("chats_folder")
ASKED = ("--trace", "chats.jsonl", "--steps", "none")


@pytest.mark.parametrize(
    "flags",
    [
        ("--report", "chats.jsonl"), ("--write", "chats.jsonl", "--force"), ("--write", "a.html", "--report", "./a.html"),
        ("--write", "folder", "--force"), ("--report", "folder"), ("--report", "/proc/x.html"), ("--write", "/proc/x.yaml"),
        ("--write", "/dev/null", "--force"), ("--report", "nowhere/a.html"), ("--output-file", "nowhere/a.json"), ("--schema", "tune-size/9"),
        ("--output-file", "a" * 300), ("--report", "a" * 300), ("--write", "a" * 300),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant_is_refused_and_nothing_is_lost(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "folder").mkdir()
    before = (tmp_path / "chats.jsonl").read_bytes()
    ran = run(*ASKED, *flags)
    assert (ran.code, flags[0] in ran.err) == (2, True), ran.err
    assert (tmp_path / "chats.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chats.jsonl", "folder"]


def test_what_is_printed_does_not_replace_what_is_written() -> None:
    ran = run(*ASKED, "--write", "a.yaml", "--output-file", "./a.yaml")
    assert (ran.code, "--output-file and --write name the same file" in ran.err) == (2, True)
    assert not Path("state").exists()


@pytest.mark.parametrize(
    "flags",
    [("--time-budget", "-5"), ("--time-budget", "nan"), ("--steps", "\u00b2"), ("--steps", "\u0663"), ("--shared", "--ranks", "2")],
)  # fmt: skip
def test_what_would_mean_nothing_is_refused(flags: tuple[str, ...]) -> None:
    ran = run("--trace", "chats.jsonl", *flags)
    assert (ran.code, flags[0] in ran.err) == (2, True), ran.err


def test_running_requests_that_hold_all_of_l1_are_a_finding() -> None:
    ran = run(*ASKED, "--concurrency", "100000")
    assert ran.code == 0
    assert [one["code"] for one in ran.json["diagnostics"]].count("HC-SIZE-L1-BUSY") == 1
    assert "HC-SIZE-L1-BUSY" not in run(*ASKED, "--concurrency", "1", "--device-slots", "60").out


def nulls(value: Any, pointer: str = "") -> Iterator[str]:
    if value is None:
        yield pointer
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from nulls(inner, f"{pointer}/{key}")


@pytest.mark.parametrize("flags", [("--steps", "none"), ("--no-waterfall",), ("--max-bytes", "600KiB")])
def test_every_null_has_its_reason(flags: tuple[str, ...]) -> None:
    data = size("--trace", "chats.jsonl", *flags)
    facts = data.pop("facts")
    unexplained = [pointer for pointer in nulls(data) if not facts.get(pointer, {}).get("reason")]
    assert [pointer for pointer in unexplained if not pointer.endswith("reason")] == []  # that is null beside a value

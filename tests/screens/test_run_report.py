"""Golden text of the run report at 80, 100 and 120 columns, ASCII, no colour. UPDATE_SCREENS=1 rewrites the files; read them."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from cli_runner import call
from run_reports import REPORTS, all_tiers, costly, device_only, one_request

from hicachectl.render.run_advice import advice, command_with
from hicachectl.render.run_report import render_report
from hicachectl.render.run_words import MISS_WORDS, verdict
from hicachectl.render.screen import Screen
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.replay.report import ByTier

FOLDER = Path(__file__).parent


def drawn(name: str, width: int) -> str:
    stream = io.StringIO()
    render_report(Screen(stream, width=width, ascii=True), REPORTS[name]())
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_report_is_as_recorded(name: str, width: int) -> None:
    text, path = drawn(name, width), FOLDER / f"run-report-{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", range(60, 121))
def test_no_line_ends_inside_a_number(width: int) -> None:
    lines = drawn("all-tiers", width).splitlines()
    for line, after in pairwise(lines):
        parts = after.split()
        if parts and line and line[-1].isdigit() and after.startswith("   "):
            assert not re.fullmatch(r"[0-9]{3}[.,;]?|%[.,;]?|[KMGT]iB[.,;]?|[mu]?s[.,;]?", parts[0]), (line, after)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_one_screen_has_binary_units_only(name: str) -> None:
    words = drawn(name, 120).replace("/s", "").split()
    assert not {"kB", "MB", "GB", "TB"} & set(words)


def test_without_colour_the_verdict_is_a_word() -> None:
    assert [verdict(make()).answer.word for make in (all_tiers, costly, device_only, one_request)] == [
        "YES",
        "NO",
        "OPEN",
        "NO",
    ]


def test_the_gain_on_screen_is_saved_minus_moved() -> None:
    amounts = {name: amount for name, amount, _, _ in verdict(all_tiers()).terms}
    assert (amounts["saved"], amounts["moved"], amounts["net gain"]) == ("+1 min 01 s", "-3.7 s", "+57.5 s")


def test_every_reason_of_a_miss_has_words() -> None:
    assert set(MISS_WORDS) == {reason.value for reason in MissReason}


def test_hits_that_were_not_restored_are_no_gain() -> None:
    report = replace(all_tiers(), pages_restored=0)
    assert verdict(report).answer.word == "NO"
    assert "held 3 000 pages" in verdict(report).answer.text


def test_wrong_bytes_come_first_and_are_named() -> None:
    report = replace(all_tiers(), pages_mismatched=1)
    assert "wrong bytes" in advice(report)[0].why
    stream = io.StringIO()
    render_report(Screen(stream, width=100), report)
    assert "1 WRONG" in stream.getvalue()


def test_a_host_pool_past_the_plateau_is_not_to_grow() -> None:
    report = all_tiers()
    large = replace(
        report,
        pools=replace(report.pools, host_slots=9_000),
        reuse=replace(report.reuse, hit_pages_host_slots=sum(report.reuse.bins_log2)),
    )
    found = [item for item in advice(large) if "do not grow" in item.why]
    assert [item.flags for item in found] == [f"--host-slots {report.reuse.plateau_pages}"]


def test_a_cost_model_that_recomputes_much_is_compared_with_always() -> None:
    report = all_tiers()
    dear = replace(
        report,
        policies={**report.policies, "restore": "cost"},
        missed_tokens_by_reason={**report.missed_tokens_by_reason, "restore_dearer": 1_000_000},
    )
    assert "--restore always" in [item.flags for item in advice(dear)]
    assert "--restore always" not in [item.flags for item in advice(report)]


def test_advice_names_flags_that_run_knows() -> None:
    told = call("run", "--help").out
    flags = {
        word
        for make in REPORTS.values()
        for item in advice(make())
        for word in item.flags.split()
        if word.startswith("-")
    }
    assert "--host-slots" in flags
    assert [flag for flag in sorted(flags) if flag not in told] == []


def test_a_folder_that_held_pages_is_told_and_a_fresh_one_advised() -> None:
    text = " ".join(drawn("costly", 120).split())
    assert "held 2 100 pages from before this run: 700 of 3 809 hits" in text
    assert "all there is to hit" not in text
    assert "--storage-path auto" in [item.flags for item in advice(costly())]
    assert "--storage-path auto" not in [item.flags for item in advice(all_tiers())]


def test_rates_of_the_whole_run_and_of_the_last_transfers_are_told_apart() -> None:
    text = drawn("all-tiers", 120)
    assert "PATHS  measured over the whole run; rate while copying" in text
    assert "COST MODEL  at the end, from the last 32 transfers of a path; restore always" in text


@pytest.mark.parametrize(
    ("command", "flags", "wanted"),
    [
        ("hicachectl run --host-slots 8 --seed 1", "--host-slots 16", "hicachectl run --seed 1 --host-slots 16"),
        ("hicachectl run --host-slots=8", "--host-slots 16", "hicachectl run --host-slots 16"),
        ("hicachectl run --trace 'a b' --limit 4", "--limit none", "hicachectl run --trace 'a b' --limit none"),
        ("hicachectl run", "--backend cpu --verify all", "hicachectl run --backend cpu --verify all"),
    ],
)
def test_a_next_command_replaces_a_flag_instead_of_repeating_it(command: str, flags: str, wanted: str) -> None:
    assert command_with(command, flags) == wanted


def test_the_report_prints_each_flag_once() -> None:
    stream = io.StringIO()
    render_report(Screen(stream, width=120), all_tiers(), command="hicachectl run --host-slots 512")
    commands = [line for line in stream.getvalue().splitlines() if "-> hicachectl" in line and "--host-slots" in line]
    assert commands
    assert all(line.count("--host-slots") == 1 for line in commands)


def test_tiers_that_had_nothing_to_add_are_advised_away() -> None:
    report = all_tiers()
    full = replace(report.reuse, hit_pages_host_slots=sum(report.reuse.bins_log2))
    storage_idle = replace(report, reuse=full, pages_hit_by_tier=ByTier(809, 1_000, 0))
    assert "--storage-path none" in [item.flags for item in advice(storage_idle)]
    all_idle = replace(report, reuse=full, pages_hit_by_tier=ByTier(809, 0, 0))
    assert "--host-slots 0 --storage-path none" in [item.flags for item in advice(all_idle)]
    assert not [item for item in advice(report) if "Leave the" in item.why]
    assert not [item for item in advice(replace(all_idle, stop="limit")) if "Leave the" in item.why]

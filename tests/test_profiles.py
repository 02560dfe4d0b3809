from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hicachectl.config import load_config
from hicachectl.errors import HicacheError, ProfileError, UsageError
from hicachectl.profiles import profile_names
from hicachectl.profiles_io import Confidence, load_profile, problems_in_profile
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.storage.file import disk_bytes
from hicachectl.units import parse_size

GOOD = """\
name: mine
revision: 2
summary: a test
values:
  run.page_tokens:
    value: 64
    reason: because
    source: here
    confidence: assumed
"""


def problems_of(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    _, problems = problems_in_profile(str(path))
    for p in problems:
        assert isinstance(p, HicacheError)
        assert str(p.where).startswith(str(path))
    return [(int(str(p.where).rpartition(":")[2]), p.what) for p in problems]


NAMES = ("cpu-demo", "kunlun-p800-hygon", "kunlun-p900", "kv-host", "nvidia-h200")


def test_the_five_profiles_are_there_and_without_a_problem() -> None:
    assert profile_names() == NAMES
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert load_config(env={}, profile=name, cwd=Path("/nonexistent")).profile == profile


@pytest.mark.parametrize("name", NAMES)
def test_each_value_has_a_reason_a_source_and_no_machine_path(name: str) -> None:
    for value in load_profile(name).values.values():
        assert len(value.reason.split()) >= 5, value.key
        assert "/work" not in value.source
        assert ".." not in value.source


def test_a_profile_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    profile = load_profile(str(path))
    assert (profile.name, profile.revision) == ("mine", 2)
    value = profile.values["run.page_tokens"]
    assert (value.value, value.confidence, value.where) == (64, Confidence.ASSUMED, f"{path}:6")


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("name: mine", "nmae: mine", 1, "unknown key 'nmae'"),
        ("name: mine", "name: My Profile", 1, "name is 'My Profile'"),
        ("revision: 2", "revision: two", 2, "revision is 'two'"),
        ("revision: 2", "revision: 0", 2, "revision is 0"),
        ("revision: 2", "revision: true", 2, "revision is True"),
        ("summary: a test", "summary:", 3, "summary is None, not a text"),
        ("run.page_tokens", "run.page_token", 5, "unknown key 'run.page_token'"),
        ("run.page_tokens", "profile", 5, "cannot name another profile"),
        ("run.page_tokens", "run.compute", 5, "is a section"),
        ("value: 64", "value: '64'", 6, "run.page_tokens is '64', not a whole number"),
        ("value: 64", "valeu: 64", 6, "unknown key 'valeu' of run.page_tokens"),
        ("    reason: because\n", "", 5, "key 'reason' of run.page_tokens is missing"),
        ("reason: because", "reason: ''", 7, "reason is '', not a text"),
        ("source: here", "source: 3", 8, "source is 3, not a text"),
        ("confidence: assumed", "confidence: sure", 9, "confidence is 'sure', not one of read, derived, assumed"),
        ("confidence: assumed", "confidence: [read]", 9, "confidence is ['read']"),
        ("revision: 2", "name: again", 2, "key 'name' is given twice"),
    ],
)
def test_a_wrong_profile_names_the_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    assert old in GOOD
    found = problems_of(tmp_path, GOOD.replace(old, new))
    assert any(at == line and what in text for at, text in found), found


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    broken = GOOD.replace("revision: 2", "revision: x").replace("64", "none").replace("assumed", "sure")
    assert [line for line, _ in problems_of(tmp_path, broken)] == [2, 6, 9]
    with pytest.raises(ProfileError, match="revision is 'x'") as caught:
        load_profile(str(tmp_path / "mine.yaml"))
    assert "2 more" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "- a\n", "word\n"])
def test_what_is_not_a_mapping_is_one_problem(tmp_path: Path, text: str) -> None:
    assert len(problems_of(tmp_path, text)) == 1


def test_values_that_are_no_mapping_and_bare_values_are_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "name: a\nrevision: 1\nsummary: s\nvalues: 3\n") == [
        (4, "values is not a mapping of config keys")
    ]
    ((line, what),) = problems_of(tmp_path, "name: a\nrevision: 1\nsummary: s\nvalues:\n  run.seed: 3\n")
    assert line == 5
    assert "run.seed is not a mapping of value, reason" in what


def test_an_unknown_name_gets_the_nearest_one_and_a_missing_file_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("nvidia-h20")
    assert "nvidia-h200" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no such file"):
        load_profile("./absent.yaml")


def test_the_h200_compute_terms_are_the_fit_to_the_published_prefill_times() -> None:
    # docs/facts.md#h200-prefill: tokens, prefill seconds, from 2,000 tokens up
    rows = [(2000, 0.0667), (3500, 0.113), (8192, 0.273), (16384, 0.619), (32768, 1.481)]
    weighted = np.array([[1 / t, n / t, n * n / t] for n, t in rows])
    fit, *_ = np.linalg.lstsq(weighted, np.ones(len(rows)), rcond=None)
    values = load_profile("nvidia-h200").values
    terms = np.array([values[f"run.compute.{k}"].value for k in ("a_s", "b_s", "c_s")])
    np.testing.assert_allclose(terms, fit, rtol=2e-3)
    np.testing.assert_allclose(weighted @ terms, 1, atol=0.014)
    run = load_config(env={}, cwd=Path("/nonexistent")).run  # the defaults are the same fit
    assert [run.compute.a_s, run.compute.b_s, run.compute.c_s] == list(terms)


def test_the_p800_terms_break_even_where_published() -> None:
    values = load_profile("kunlun-p800-hygon").values
    a_s, b_s = values["run.compute.a_s"].value, values["run.compute.b_s"].value
    restore_s = 0.7791 + 3000 * 13.539e-6  # docs/facts.md#kunlun-break-even
    assert a_s + 3000 * b_s == pytest.approx(restore_s, rel=1e-3)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "page_bytes", "pool_bytes"),
    [
        ("nvidia-h200", 147456 * 64, 64 << 30),
        ("kunlun-p800-hygon", 89856 * 64, 200e9),
        ("kunlun-p900", 89856 * 64, 75e9),
    ],
)
def test_host_slots_are_the_whole_pages_of_the_pool_named_in_the_reason(
    name: str, page_bytes: int, pool_bytes: float
) -> None:
    value = load_profile(name).values["run.host_slots"]
    assert value.value == int(pool_bytes // page_bytes)
    assert f"{page_bytes:,}" in value.reason


def test_the_storage_size_of_the_demonstration_is_told_with_its_arithmetic() -> None:
    values = load_profile("cpu-demo").values
    held = parse_size(str(values["run.storage_bytes"].value)) // disk_bytes(preset("tiny-64k", 512).page_bytes)
    distinct = {
        int(block) for request in synthetic("multi-turn") for block in request.blocks[: request.input_tokens // 512]
    }
    reason = values["run.storage_bytes"].reason
    told = f"{held:,} of the {len(distinct):,} different pages of the workload, and {len(distinct) - held:,} must leave"
    assert told in reason

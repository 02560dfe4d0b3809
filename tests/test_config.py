from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hicachectl.config import Effective, OriginKind, find_config, load_config
from hicachectl.config_keys import catalogue, check_value, key_named
from hicachectl.errors import UsageError


def write(folder: Path, text: str, name: str = "hicache.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str | None = None, **given: object) -> Effective:
    path = write(tmp_path, text) if text is not None else None
    return load_config(path=path, **{"env": {}, "cwd": tmp_path, "system_file": tmp_path / "none", **given})  # type: ignore[arg-type]


PLACES: dict[OriginKind, int] = {
    OriginKind.FLAG: 11,
    OriginKind.ENVIRONMENT: 12,
    OriginKind.FILE: 13,
    OriginKind.PROFILE: 14,
}


@pytest.mark.parametrize("used", [c for n in range(5) for c in itertools.combinations(PLACES, n)])
def test_the_strongest_place_that_has_a_value_gives_it(tmp_path: Path, used: tuple[OriginKind, ...]) -> None:
    entry = "{value: 14, reason: r, source: s, confidence: assumed}"
    profile = write(tmp_path, f"name: p\nrevision: 1\nsummary: s\nvalues:\n  run.selective_hits: {entry}\n", "p.yaml")
    effective = load(
        tmp_path,
        "run:\n  selective_hits: 13\n" if OriginKind.FILE in used else None,
        flags={"run.selective_hits": "11" if OriginKind.FLAG in used else None},
        env={"HICACHECTL_RUN_SELECTIVE_HITS": "12"} if OriginKind.ENVIRONMENT in used else {},
        profile=str(profile) if OriginKind.PROFILE in used else None,
    )
    assert effective.run.selective_hits == (PLACES[used[0]] if used else 2)
    assert effective.origins["run.selective_hits"].kind is (used[0] if used else OriginKind.DEFAULT)


def test_every_key_has_an_origin_and_file_values_name_their_line(tmp_path: Path) -> None:
    effective = load(tmp_path, "# mine\nrun:\n  page_tokens: 64\n  compute:\n    a_s: 0.5\n")
    assert set(effective.origins) == set(catalogue())
    assert effective.origins["run.compute.a_s"].where == f"{tmp_path}/hicache.yaml:5"
    assert effective.origins["run.page_tokens"].where == f"{tmp_path}/hicache.yaml:3"
    assert (effective.run.page_tokens, effective.run.compute.a_s) == (64, 0.5)


def test_a_profile_value_carries_its_reason_into_the_origin(tmp_path: Path) -> None:
    origin = load(tmp_path, profile="cpu-demo").origins["run.restore"]
    assert origin.kind is OriginKind.PROFILE
    assert origin.where is not None
    assert origin.where.startswith("profiles/cpu-demo.yaml:")
    assert "every path" in str(origin.reason)


@pytest.mark.parametrize(
    ("text", "line", "what", "hint"),
    [
        ("run:\n  page_token: 64\n", 2, "unknown key 'run.page_token'", "run.page_tokens"),
        ("run:\n  seed: 1\n  compute:\n    as: 1\n", 4, "unknown key 'run.compute.as'", "run.compute.a_s"),
        ("rnu:\n  seed: 1\n", 1, "unknown key 'rnu'", "run"),
        ("run.seed: 1\n", 1, "unknown key 'run.seed'", "nest"),
        ("run:\n  prefetch.policy: timeout\n", 2, "unknown key 'prefetch.policy'", "nest"),
        ("run: 3\n", 1, "run is 3, not a section", "indented"),
        ("run:\n  compute: fast\n", 2, "run.compute is 'fast', not a section", "a_s:"),
        ("- run\n", 1, "not a mapping", "run:"),
        ("run:\n  page_tokens: many\n", 2, "run.page_tokens is 'many', not a whole number from 1 to 65536", "give"),
        ("run:\n  page_tokens: '64'\n", 2, "run.page_tokens is '64', not a whole number", "give"),
        ("run:\n  page_tokens: 64.0\n", 2, "run.page_tokens is 64.0, not a whole number", "give"),
        ("run:\n  page_tokens: true\n", 2, "run.page_tokens is True, not a whole number", "give"),
        ("run:\n  page_tokens: 0\n", 2, "run.page_tokens is 0, not a whole number from 1", "give"),
        ("run:\n  page_tokens:\n", 2, "run.page_tokens is null, not a whole number", "give"),
        ("run:\n  page_tokens: [64]\n", 2, "run.page_tokens is a list, not a whole number", "give"),
        ("run:\n  layout: page_frist\n", 2, "run.layout is 'page_frist', not one of layer_first", "page_first"),
        ("run:\n  eviction: lur\n", 2, "run.eviction is 'lur', not one of lru", "'lru'"),
        (
            "run:\n  device_slots: 0\n",
            2,
            "run.device_slots is 0, not a whole number of pages of at least 1, or auto",
            "give",
        ),
        ("run:\n  storage_bytes: 5 parsecs\n", 2, "run.storage_bytes is '5 parsecs', not a size", "64GiB"),
        ("run:\n  storage_bytes: -1\n", 2, "run.storage_bytes is -1, not a size", "64GiB"),
        ("run:\n  verify: sample:0\n", 2, "run.verify is 'sample:0', not all, off or sample:N", "give"),
        ("run:\n  restore_margin: 0.5\n", 2, "run.restore_margin is 0.5, not a number of at least 1", "give"),
        (
            "run:\n  metrics_port: 65536\n",
            2,
            "run.metrics_port is 65536, not a whole number from 0 to 65535 or null",
            "give",
        ),
        ("run:\n  geometry: qwen-8b\n", 2, "run.geometry 'qwen-8b' is not known", "qwen3-8b"),
        ("run:\n  geometry: ../x\n", 2, "run.geometry is '../x', not the name of", "give"),
        ("run:\n  seed: 1\n  seed: 2\n", 3, "given twice", "keep one"),
        ("run:\n  prefetch:\n    base_s: 5\n    max_s: 4\n", 4, "max_s 4", "raise max_s"),
        ("run:\n  trace: t.jsonl\n  synthetic: agent\n", 2, "exclude each other", "keep one"),
        ("profile: 3\n", 1, "profile is 3, not text", "give"),
    ],
)
def test_a_wrong_file_names_the_line_both_values_and_the_way_out(
    tmp_path: Path, text: str, line: int, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{tmp_path}/hicache.yaml:{line}")
    assert what in caught.value.what
    assert hint in str(caught.value.hint)


def test_a_wrong_value_is_refused_also_where_a_flag_overrides_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="page_tokens is 'x'"):
        load(tmp_path, "run:\n  page_tokens: x\n", flags={"run.page_tokens": 64})


@pytest.mark.parametrize(
    ("env", "what", "hint"),
    [
        (
            {"HICACHECTL_RUN_PAGE_TOKEN": "1"},
            "unknown environment variable HICACHECTL_RUN_PAGE_TOKEN",
            "HICACHECTL_RUN_PAGE_TOKENS",
        ),
        ({"HICACHECTL_RUN_SEED": "one"}, "run.seed is 'one', not a whole number", "give"),
        ({"HICACHECTL_RUN_COMPUTE_A_S": "nan"}, "run.compute.a_s is 'nan', not a number", "give"),
        ({"HICACHECTL_RUN_SESSION_GAP_S": "inf"}, "run.session_gap_s is 'inf', not a number", "give"),
        ({"HICACHECTL_PROFILE": "cpu-dmeo"}, "unknown profile 'cpu-dmeo'", "cpu-demo"),
    ],
)
def test_a_wrong_variable_is_named_with_the_way_out(tmp_path: Path, env: dict[str, str], what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, env=env)
    assert what in caught.value.what
    assert hint in str(caught.value.hint)


def test_text_from_flags_and_variables_becomes_numbers_sizes_and_null(tmp_path: Path) -> None:
    effective = load(
        tmp_path,
        profile="cpu-demo",
        flags={"run.device_slots": "96", "run.storage_bytes": "2GB", "run.storage_path": "none"},
        env={
            "HICACHECTL_RUN_COMPUTE_C_S": "1e-9",
            "HICACHECTL_RUN_LIMIT": "None",
            "HICACHECTL_RUN_SEED": "",
            "HICACHECTL_ROOT": "/x",
            "HOME": "/h",
        },
    )
    assert effective.run.device_slots == 96
    assert effective.run.storage_bytes == 2 * 10**9
    assert effective.run.storage_path is None  # the profile says auto
    assert effective.run.compute.c_s == 1e-9
    assert effective.origins["run.seed"].kind is OriginKind.PROFILE  # an empty variable is an unset one
    assert effective.origins["run.limit"].kind is OriginKind.ENVIRONMENT


def test_a_wrong_flag_is_named_as_the_user_wrote_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.verify is 'some'") as caught:
        load(tmp_path, flags={"run.verify": "some"})
    assert caught.value.where == "--verify"
    assert catalogue()["run.session_gap_s"].flag == "--session-gap"


def test_the_stronger_of_trace_and_synthetic_wins_and_one_place_may_not_give_both(tmp_path: Path) -> None:
    assert load(tmp_path, flags={"run.trace": "t"}, profile="cpu-demo").run.trace == "t"
    replaced = load(tmp_path, "run:\n  trace: t\n", flags={"run.synthetic": "agent"})
    assert replaced.run.trace is None
    assert replaced.origins["run.trace"].where == "--synthetic"
    with pytest.raises(UsageError, match="exclude each other"):
        load(tmp_path, flags={"run.trace": "t", "run.synthetic": "agent"})


def test_the_profile_named_in_the_file_is_loaded_and_a_flag_replaces_it(tmp_path: Path) -> None:
    by_file = load(tmp_path, "profile: nvidia-h200\n")
    assert by_file.profile is not None
    assert by_file.run.geometry == "qwen3-8b"
    assert load(tmp_path, "profile: nvidia-h200\n", profile="cpu-demo").run.geometry == "tiny-64k"
    assert load(tmp_path, "profile: nvidia-h200\n", env={"HICACHECTL_PROFILE": "none"}).profile is None


def test_the_file_is_found_here_then_in_the_system_folder_and_a_named_one_must_exist(tmp_path: Path) -> None:
    here, system = tmp_path / "here", tmp_path / "system.yaml"
    here.mkdir()
    assert find_config(None, env={}, cwd=here, system_file=system).path is None
    system.write_text("")
    assert find_config(None, env={}, cwd=here, system_file=system).path == system
    local = write(here, "")
    found = find_config(None, env={}, cwd=here, system_file=system)
    assert (found.path, found.searched) == (local, (local, system))
    assert find_config(None, env={"HICACHECTL_CONFIG": "e.yaml"}, cwd=here).path == Path("e.yaml")
    assert find_config(Path("f.yaml"), env={"HICACHECTL_CONFIG": "e.yaml"}, cwd=here).path == Path("f.yaml")
    with pytest.raises(UsageError, match="no such file"):
        load_config(env={}, path=here / "absent.yaml")


def test_a_measurement_stands_in_for_auto_and_for_a_default_and_for_nothing_else(tmp_path: Path) -> None:
    effective = load(tmp_path, "run:\n  device_slots: auto\n  host_slots: 7\n")
    measured = effective.with_measured("run.device_slots", 233, "longest request of the trace")
    assert (measured.run.device_slots, str(measured.origins["run.device_slots"])) == (
        233,
        "measured longest request of the trace",
    )
    assert effective.run.device_slots == "auto"
    assert measured.with_measured("run.host_slots", 9, "x") is measured
    assert (
        measured.with_measured("run.compute.b_s", 1e-5, "probe").origins["run.compute.b_s"].kind is OriginKind.MEASURED
    )
    with pytest.raises(UsageError, match=r"run\.device_slots is 0"):
        effective.with_measured("run.device_slots", 0, "empty trace")


def test_an_unknown_word_of_a_section_is_matched_to_the_nearest_key_anywhere() -> None:
    with pytest.raises(UsageError) as caught:
        key_named("run.per_ki_tokens_s")
    assert "run.prefetch.per_ki_token_s" in str(caught.value.hint)
    with pytest.raises(UsageError, match="is a section"):
        key_named("run.compute")


def test_every_default_is_a_value_its_own_key_accepts() -> None:
    for key in catalogue().values():
        assert check_value(key, key.default, text=False) == key.default
        assert key.description, key.name


def test_flags_and_variables_are_one_to_one_with_keys() -> None:
    keys = catalogue().values()
    assert len({k.flag for k in keys}) == len({k.env for k in keys}) == len(keys)


def test_data_holds_every_value_nested_and_every_origin() -> None:
    data = load_config(env={}, cwd=Path("/nonexistent"), system_file=Path("/nonexistent/x")).data()
    values = data["values"]
    assert isinstance(values, dict)
    assert values["run"]["prefetch"]["policy"] == "timeout"
    assert data["file"] == {
        "path": None,
        "searched": ["/nonexistent/hicache.yaml", "/nonexistent/x"],
        "reason": "no file in the search order",
    }


def test_a_trace_on_the_line_says_what_of_the_file_still_counts(tmp_path: Path) -> None:
    text = "run:\n  synthetic: agent\n  seed: 3\n  host_slots: 9\n  geometry: tiny-4k\n"
    told = load(tmp_path, text, flags={"run.trace": "t.jsonl"}).unused_workload()
    assert told is not None
    assert "synthetic agent is not replayed" in told
    assert told.endswith("still used from that file: run.geometry, run.host_slots")
    assert load(tmp_path, text).unused_workload() is None
    assert load(tmp_path, "run:\n  host_slots: 9\n", flags={"run.trace": "t.jsonl"}).unused_workload() is None

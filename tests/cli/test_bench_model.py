"""`bench model`: refusals before anything is measured, a break-even that says what it rests on, and nothing left behind."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import call, signalled
from files import files_below

from hicachectl.bench_model_data import model_measures, model_of
from hicachectl.bench_results import priors_of, read_bench
from hicachectl.render.bench_model import draw_model
from hicachectl.render.screen import Screen
from hicachectl.runtime.cost import Path as CostPath
from hicachectl.runtime.cost import RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.probes.restores import run_restore_probe

SMALL = (
    "bench",
    "model",
    "--geometry",
    "tiny-4k",
    "--page-tokens",
    "64",
    "--device",
    "cpu",
    "--lengths",
    "64,100,256,512",
)
MODEL = ("bench", "model", "--geometry", "qwen3-8b", "--page-tokens", "16", "--device", "cpu", "--lengths", "16,30,64")
H200 = RecomputeCost(7.65e-3, 2.84e-5, 5.12e-10)


@pytest.fixture
def prefill(tmp_path: Path) -> Path:
    path = tmp_path / "prefill.csv"
    rows = [f"{n},{H200.seconds(0, n)}" for n in (256, 512, 1024, 4096, 16384)]
    path.write_text("\n".join(["tokens,seconds", *rows]) + "\n")
    return path


def test_a_result_is_a_file_with_the_costs_of_every_path_and_of_a_prefill(tmp_path: Path, prefill: Path) -> None:
    path, where = tmp_path / "costs.json", tmp_path / "l3"
    ran = call(
        *MODEL, "--rounds", "3", "--path", str(where), "--prefill-file", str(prefill), "--prefill-hardware", "my engine",
        "-o", "json", "--output-file", str(path),
    )  # fmt: skip
    assert ran.code in (0, 9), ran.err  # 9: another load on this machine
    assert not where.exists()
    document = json.loads(path.read_text()) | {"exit_code": 0, "status": "ok"}
    path.write_text(json.dumps(document))
    found, data = read_bench(path), document["data"]
    for cost_path in CostPath:  # one of whose lengths is noise has none
        reason = data["facts"].get(f"/costs/{cost_path.value}", {}).get("reason", "")
        assert (cost_path in priors_of(found)) != ("% is the most that " in reason)
    recompute = found.costs.recompute
    assert recompute is not None
    assert (recompute.model, recompute.hardware) == ("qwen3-8b", "my engine")
    assert recompute.b_s == pytest.approx(H200.b_s, rel=1e-6)
    assert data["recompute"]["source"] == f"times in {prefill}"
    assert data["recompute"]["measured"] is True
    assert [fit["tier"] for fit in data["restore"]] == ["host", "storage"]
    for fit in data["restore"]:
        assert (fit["from_tokens"], fit["to_tokens"], fit["n_samples"]) == (16, 64, 9)  # 30 tokens are two pages
    assert {even["tier"] for even in data["break_even"]} == {"host", "storage"}
    assert [one["n_tokens"] for one in data["saved"] if one["tier"] == "host"] == [1024, 4096, 16384, 32768]
    for one in data["saved"]:
        assert one["saved_s"] == pytest.approx(one["recompute_s"] - one["restore_s"])
        assert one["recompute_s"] == pytest.approx(H200.skipped_s(0, one["n_tokens"]), rel=1e-6)
        assert one["beyond_measured"]
    length = found.find("host tier, 32 tokens", "restore_s")
    assert length is not None
    assert len(length.samples) == 3


def test_without_a_recompute_there_are_restores_alone_and_the_reason(tmp_path: Path) -> None:
    ran = call(*SMALL, "--rounds", "2", "--path", "none", "-o", "json")
    data = ran.json["data"]
    assert (data["recompute"], data["break_even"], data["saved"], data["storage"]) == (None, [], [], None)
    assert "--prefill-file" in data["recompute_reason"]
    assert data["facts"]["/storage"]["reason"] == "--path none"
    assert data["facts"]["/costs/storage_read"]["reason"] == "--path none"
    assert [fit["tier"] for fit in data["restore"]] == ["host"]
    assert data["restore"][0]["c_s"] == 0


@pytest.mark.parametrize(("path", "steps"), [("none", 12), (".", 13)])  # a storage tier is written once, before
def test_the_progress_ends_at_all_of_what_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, steps: int
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = call(*SMALL, "--rounds", "3", "--path", path, "--progress", "plain")
    assert f"{steps}/{steps} restores 100 %" in ran.err


def test_a_prefill_that_could_not_be_measured_leaves_the_restores_and_is_no_answer() -> None:
    ran = call(*MODEL, "--rounds", "2", "--path", "none", "--prefill", "synthetic", "--time-budget", "0", "-o", "json")
    assert ran.code == 9
    data = ran.json["data"]
    assert data["recompute"] is None
    assert data["recompute_reason"].startswith(
        "0 lengths of prefill were measured, 3 are needed for a curve (16 tokens: no time"
    )
    assert ran.json["diagnostics"][-1]["subject"] == "recompute"
    assert "--prefill-file" in ran.json["diagnostics"][-1]["hint"]


def test_a_layer_that_does_not_fit_is_refused_with_its_bytes() -> None:
    ran = call(
        "bench",
        "model",
        "--geometry",
        "qwen3-8b",
        "--device",
        "cpu",
        "--prefill",
        "synthetic",
        "--lengths",
        "16,16000000",
        "--path",
        "none",
    )
    assert ran.code == 10
    assert "a layer of the model" in ran.err


def test_pages_that_no_model_has_are_no_sum_with_a_prefill_and_leave_none_to_others(prefill: Path) -> None:
    ran = call(*SMALL, "--rounds", "2", "--path", "none", "--prefill-file", str(prefill), "-o", "json")
    data = ran.json["data"]
    assert data["recompute"]["measured"] is True
    (even,) = data["break_even"]
    assert (even["verdict"], even["n_tokens"], data["saved"]) == ("demo", None, [])
    assert even["reason"].endswith("the prefill is of a model that is not named")
    assert data["costs"]["recompute"] is None
    assert data["facts"]["/costs/recompute"]["reason"].startswith("tiny-4k is no model")


def test_a_configured_recompute_of_another_model_is_a_demo_and_no_measured_cost() -> None:
    ran = call(*SMALL, "--rounds", "2", "--path", "none", "--prefill", "configured", "-o", "json")
    data = ran.json["data"]
    assert data["recompute"]["measured"] is False
    assert (data["recompute"]["a_s"], data["recompute"]["n_samples"]) == (7.65e-3, 0)
    assert data["costs"]["recompute"] is None
    assert data["facts"]["/costs/recompute"]["reason"] == "its coefficients were given, not measured"
    (even,) = data["break_even"]
    assert (even["verdict"], even["n_tokens"], even["low_tokens"], data["saved"]) == ("demo", None, None, [])
    assert even["reason"] == (
        "the bytes moved are of tiny-4k (8 B a token), the prefill is of qwen3-8b (147 456 B a token)"
    )


def test_no_time_is_no_answer(tmp_path: Path) -> None:
    ran = call(*SMALL, "--path", str(tmp_path), "--time-budget", "0", "-o", "json")
    assert ran.code == 9
    assert ran.json["data"]["restore"] == []
    assert [one["hint"] for one in ran.json["diagnostics"]] == ["give a longer --time-budget, or leave it out"]
    assert list(tmp_path.iterdir()) == []


def test_where_time_ends_between_rounds_the_samples_that_are_fewer_have_the_reason() -> None:
    left = iter([True] * 5)
    probe = run_restore_probe(preset("tiny-4k", 16), [1, 2], rounds=4, go_on=lambda: next(left, False))
    model = model_of(probe, 16, None, "not asked for", "--path none")
    found = {one.subject: (len(one.samples), one.reason) for one in model_measures(probe, model, 16, 4) if one.samples}
    three, two = ((n, f"{n} of 4 samples: no time was left for more") for n in (3, 2))
    assert found == {
        "host tier, 16 tokens": three, "host tier, 32 tokens": two, "host write, 16 tokens": three, "host write, 32 tokens": two,
    }  # fmt: skip


def test_a_tier_without_an_answer_is_marked_over_what_it_would_save(prefill: Path) -> None:
    ran = call(
        "bench", "model", "--geometry", "qwen3-8b", "--page-tokens", "1", "--lengths", "1,2,4", "--rounds", "1", "--path", "none",
        "--prefill-file", str(prefill), "--device", "cpu", "-o", "json",
    )  # fmt: skip
    data = ran.json["data"]
    assert data["saved"]
    stream = io.StringIO()
    draw_model(Screen(stream, width=160), data)
    assert "FROM L2 host ?" in stream.getvalue()


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--path", " "), 2, "' ' names no folder"),
        (("--lengths", "512"), 2, "'512' are restores of 8 pages alone, a page has 64 tokens"),
        (("--lengths", "512,0512"), 2, "restores of 8 pages alone"),
        (("--lengths", "449,512"), 2, "restores of 8 pages alone"),
        (("--lengths", "1,\u00b2"), 2, "are no lengths"),
        (("--lengths", "512,x"), 2, "are no lengths"),
        (("--rounds", "10001"), 2, "--rounds"),
        (("--prefill", "guess"), 2, "one of none, configured, synthetic"),
        (("--prefill", "synthetic"), 2, "the layers of tiny-4k are not known"),
        (("--prefill-hardware", "mine"), 2, "--prefill-hardware without --prefill-file"),
        (("--prefill-file", "/nowhere.csv"), 2, "/nowhere.csv"),
        (("--prefill-file", "/dev/zero"), 2, "/dev/zero: it is no regular file"),
        (("--backend", "uva"), 2, "do not go together"),
        (("--device", "mtia"), 5, "torch cannot use device mtia here"),
        (("--lengths", "1,16000000", "--geometry", "mla-78"), 10, "host pool"),
        (("--root", "/"), 2, "snapshot"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_code(more: tuple[str, ...], code: int, words: str) -> None:
    ran = call(*SMALL, *more)
    assert ran.code == code, ran.err
    assert words in ran.err


def test_two_recomputes_and_too_few_lengths_of_one_are_refused(tmp_path: Path, prefill: Path) -> None:
    ran = call(*SMALL, "--prefill-file", str(prefill), "--prefill", "configured")
    assert ran.code == 2
    assert "both say what recomputing costs" in ran.err
    short = tmp_path / "short.csv"
    short.write_text("tokens,seconds\n100,1\n200,2\n200,2.1\n")
    ran = call(*SMALL, "--prefill-file", str(short))
    assert ran.code == 2
    assert "2 different lengths for a curve of 3 coefficients" in ran.err
    assert str(short) in ran.err


def test_a_disk_without_room_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(total=1 << 30, used=1 << 30, free=4096))
    ran = call(*SMALL, "--path", str(tmp_path / "none"))
    assert ran.code == 10
    assert "--path none" in ran.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_it_with_its_code_and_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ran = signalled(
        number, *SMALL, "--rounds", "10000", "--path", str(tmp_path / "new"), "-o", "json",
        when=lambda: list(tmp_path.glob("new/hicachectl-bench-*")),
    )  # fmt: skip
    assert ran.code == code, ran.err
    assert ran.json["exit_code"] == code
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_told_by_the_next(tmp_path: Path) -> None:
    killed = signalled(
        signal.SIGKILL, *SMALL, "--rounds", "10000", "--path", str(tmp_path),
        when=lambda: files_below(tmp_path, ".page"),
    )  # fmt: skip
    assert killed.code == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    ran = call(*SMALL, "--rounds", "1", "--path", str(tmp_path))
    assert f"removed {left}, which a killed process left" in "".join(ran.err.splitlines())
    assert list(tmp_path.iterdir()) == []

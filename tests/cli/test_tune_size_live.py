"""`hicachectl tune size --live` with real writers: files that grow, pipes, kills, Ctrl-C, traffic that drifts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_runner import QUIET, Ran, call, command_line
from live_writers import HEADER, append_in_new_process, batch, chats, log_line, trace_line

from hicachectl.envelope import unexplained_nulls
from hicachectl.schemas_io import document_schema

SIZE = ("tune", "size", "--geometry", "tiny-4k", "--page-tokens", "64", "--state-dir", "state", "-o", "json")
SCHEMA = document_schema("tune-size")[1]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def writers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that write meanwhile, ended by their ids."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def size(*argv: str, progress: str = "none") -> Ran:
    return call(*SIZE, "--progress", progress, *argv)


def piped(lines: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*SIZE, "--progress", "none", "--live", "-", *argv), input=lines, env=QUIET, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


def started(*argv: str, progress: str = "none") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line(*SIZE, "--progress", progress, *argv),
        env=QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def data_of(text: str) -> Any:
    document = json.loads(text)
    jsonschema.validate(document, SCHEMA)
    assert unexplained_nulls(document["data"]) == []
    return document["data"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def trace_text(requests: list[list[int]], *, first: int = 0) -> str:
    return "".join(trace_line(blocks, float(first + n)) for n, blocks in enumerate(requests))


JOURNAL, WINDOW = Path("state/size/s-0001/steps.jsonl"), Path("state/size/s-0001/window.jsonl")


def kinds() -> list[str]:
    lines = JOURNAL.read_text().splitlines(keepends=True) if JOURNAL.exists() else []
    return [json.loads(line)["kind"] for line in lines if line.endswith("\n")]


def test_a_growing_log_is_sized_and_every_pool_serves_requests_that_come_meanwhile(
    writers: list[subprocess.Popen[bytes]],
) -> None:
    log = Path("server.log")
    log.write_text("INFO starting\n")
    writers.append(append_in_new_process("".join(map(log_line, chats(8000))), log))
    ran = size("--live", "server.log", "--window", "300", "--time-budget", "200", progress="plain")
    assert ran.code == 0, ran.err
    data = data_of(ran.out)
    live = data["live"]
    assert (live["reads"], live["transport"], live["sees_requests_that_hit_entirely"]) == ("request-log", "file", True)
    assert (live["window"]["requests"], live["window"]["ended"]) == (300, "300 requests")
    assert [step["replayed"] for step in live["steps"]] == ["new requests"] * 4
    for step in live["steps"]:
        assert step["measured_hit_rate"] == step["exact_hit_rate"]
        assert (step["requests"], step["verdict"]) == (150, "holds")
    gain = [line for line in map(json.loads, JOURNAL.read_text().splitlines()) if line["kind"] == "done"][-1]["gain"]
    within = gain <= 0.01  # by where in the log the window began
    assert data["ended"] == ("plateau confirmed" if within else "steps done, plateau not confirmed")
    assert data["choice"]["pages"] == data["curve"]["plateau_pages"] == data["steps"][1]["pages"]
    for word in ("distinct pages", "unlimited hit rate", "over the last quarter", "300/300 requests"):
        assert word in ran.err
    kept = "".join(path.read_text() for path in Path("state").rglob("*.jsonl"))
    assert "secret" not in kept
    curve = call("trace", "curve", str(WINDOW), "--definition", "D3", "-o", "json").json["data"]
    assert (curve["plateau_pages"], curve["distinct_pages"]) == (
        data["curve"]["plateau_pages"],
        data["curve"]["distinct_pages"],
    )
    again = call("run", "--config", "hicache.yaml", "--progress", "none", "-o", "json")
    assert again.json["data"]["pages_hit"] == round(data["curve"]["total"] * data["choice"]["hit_rate"])


def test_a_pipe_that_ended_is_proven_on_what_it_gave_to_the_page() -> None:
    ran = piped(HEADER + trace_text(chats(300)))
    assert ran.returncode == 0, ran.stderr
    data = data_of(ran.stdout)
    live = data["live"]
    assert (live["transport"], live["window"]["ended"], live["window"]["requests"]) == ("stdin", "end of input", 300)
    assert {step["replayed"] for step in live["steps"]} == {"saved requests"}
    assert [(step["state"], step["difference_pages"], step["must_be_exact"]) for step in data["steps"]] == [
        ("done", 0, True)
    ] * 3
    assert data["ended"] == "plateau confirmed"


@pytest.mark.parametrize(("every", "ended"), [(12, "steps done, plateau not confirmed"), (60, "plateau confirmed")])
def test_twice_the_size_confirms_when_it_hits_at_most_a_point_more_whatever_the_window_said(
    every: int, ended: str
) -> None:
    def asked(n: int) -> list[int]:
        """Ten sessions of ten pages in turn; `every` so many requests one of two pages, which comes back from 240 on."""
        if (n + 1) % every:
            return list(range(100 + 10 * (n % 10), 110 + 10 * (n % 10)))
        n_back = min(10, 240 // every)
        once = 240 // every - n_back
        which = n // every if n // every < once else once + n // every % n_back
        return [1000 + 2 * which, 1001 + 2 * which]

    ran = piped(HEADER + trace_text([asked(n) for n in range(1500)]), "--window", "480")
    assert ran.returncode == 0, ran.stderr
    data = data_of(ran.stdout)
    assert {(step["replayed"], step["verdict"]) for step in data["live"]["steps"]} == {("new requests", "holds")}
    chosen, above = data["live"]["steps"][-2:]
    assert chosen["pages"] == data["choice"]["pages"]
    said, gain = (above[name] - chosen[name] for name in ("predicted_hit_rate", "measured_hit_rate"))
    assert (said > 0.015, gain > 0.015) == (every == 12, every == 12)
    assert data["ended"] == ended
    gains = [step["gain"] for step in data["live"]["steps"]]
    assert gains[:-1] == [None] * 3
    assert (gains[-1] > 0.01) == (every == 12)
    reasons = [data["facts"][f"/live/steps/{index}/gain"]["reason"] for index in range(3)]
    assert reasons == ["not compared: no larger than the size chosen then, or another was chosen since"] * 3
    told = [
        found["message"] for found in json.loads(ran.stdout)["diagnostics"] if found["code"] == "HC-SIZE-UNCONFIRMED"
    ]
    would, hit = (100 * (above["measured_hit_rate"] - off) for off in (gains[-1], 0))
    asked_of = f"of the requests that the pool of {above['pages']} pages served, {chosen['pages']} pages would have hit {would:.2f} %, it hit "
    assert [asked_of in text and f"{hit:.2f} %: {100 * gains[-1]:.2f} points more" in text for text in told] == [
        True
    ] * (every == 12)


def test_traffic_that_drifts_is_named_and_the_curve_made_anew_from_the_newest() -> None:
    once = [list(range(first, first + 14)) for first in range(10**6, 10**6 + 14 * 600, 14)]
    ran = piped(HEADER + trace_text([*chats(300), *once]), "--window", "300")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    drift = data_of(ran.stdout)["live"]["drift"]
    assert "new requests hit 0.00 %" in drift["reason"]
    assert drift["requests"] == 300
    assert 0 < drift["new_requests"] <= 300
    assert drift["chosen_before_pages"] > document["data"]["choice"]["pages"]
    assert document["data"]["trace"] == drift["file"] == "window-2.jsonl"
    assert [finding["code"] for finding in document["diagnostics"]] == ["HC-LIVE-DRIFT"]
    assert "drift" in kinds()
    again = piped("", "--window", "300", "--resume", "--force")
    assert again.returncode == 0, again.stderr
    found = data_of(again.stdout)
    assert (found["choice"], found["live"]["drift"]) == (document["data"]["choice"], drift)
    assert all(step["resumed"] for step in found["steps"])


def test_traffic_that_drifts_twice_has_no_answer() -> None:
    shorter = chats(300, turns=3, first=10**5)
    once = [list(range(first, first + 14)) for first in range(10**6, 10**6 + 14 * 900, 14)]
    ran = piped(HEADER + trace_text([*chats(300), *shorter, *once]), "--window", "300")
    assert ran.returncode == 9, ran.stderr
    data = data_of(ran.stdout)
    assert data["ended"] == "a step is not as predicted"
    assert (data["live"]["drift"]["requests"], data["live"]["steps"][-1]["verdict"]) == (300, "traffic drifted")
    assert kinds().count("drift") == 1


def test_economics_choose_from_what_live_steps_measured() -> None:
    Path("compute.yaml").write_text(
        "run:\n  compute:\n    a_s: 0.001\n    b_s: 0.001\n    c_s: 0.0\n    model: tiny-4k\n    hardware: made up\n"
    )
    ran = piped(HEADER + trace_text(chats(300)), "--config", "compute.yaml")
    data = data_of(ran.stdout)
    assert (ran.returncode, data["choice"]["rule"]) == (0, "economics"), ran.stderr
    assert data["choice"]["pages"] in [step["pages"] for step in data["steps"]]
    assert [one["stage"] for one in data["waterfall_left_out"]] == ["live steps"]


def test_requests_longer_than_l1_are_left_out_and_counted() -> None:
    long = [list(range(10**7, 10**7 + 40))]
    ran = piped(
        HEADER + trace_text([*chats(300), *long, *chats(500, first=10**5)]), "--window", "300", "--steps", "500"
    )
    assert data_of(ran.stdout)["live"]["too_long_requests"] == 1


def test_a_killed_window_goes_on_and_holds_every_request_once(writers: list[subprocess.Popen[bytes]]) -> None:
    path = Path("trace.jsonl")
    path.write_text(HEADER)
    argv = ("--live", "trace.jsonl", "--window", "900", "--steps", "none")
    process = started(*argv)
    wait_until(lambda: "collected" in kinds())
    writers.append(append_in_new_process(trace_text(chats(1000)), path, 0.004))
    wait_until(lambda: WINDOW.exists() and WINDOW.read_text().count("\n") > 50)
    process.kill()
    process.communicate()
    with WINDOW.open("a") as file:
        file.write('{"time_s": 3, "inp')  # what a kill may leave
    ran = size(*argv, "--resume")
    assert ran.code == 0, ran.err
    assert data_of(ran.out)["live"]["window"]["requests"] == 900
    times = [json.loads(line)["time_s"] for line in WINDOW.read_text().splitlines()[1:]]
    assert times == [float(n) for n in range(900)]


def test_a_run_killed_in_its_steps_goes_on_with_its_window_and_its_trials(
    writers: list[subprocess.Popen[bytes]],
) -> None:
    log = Path("server.log")
    log.write_text("INFO starting\n")
    writers.append(append_in_new_process("".join(map(log_line, chats(12_000))), log))
    argv = ("--live", "server.log", "--window", "300", "--time-budget", "300")
    process = started(*argv)
    wait_until(lambda: kinds().count("done") >= 2)
    process.kill()
    process.communicate()
    n_done, window = kinds().count("done"), WINDOW.read_bytes()
    assert n_done < 4, "killed too late"
    ran = size(*argv, "--resume")
    assert ran.code in (0, 9), ran.err
    data = data_of(ran.out)
    assert (data["id"], WINDOW.read_bytes()) == ("s-0001", window)
    assert "going on with s-0001: " in ran.err and f", {n_done} steps are done" in ran.err
    resumed = [data["base"]["resumed"], *(step["resumed"] for step in data["steps"])]
    if data["live"]["drift"] is None:
        assert resumed == [True] * n_done + [False] * (4 - n_done)
    else:  # by chance of which requests a step met; then all of them are made anew
        assert not any(resumed)
    assert len(data["live"]["steps"]) == 4
    other = size("--live", "server.log", "--window", "301", "--resume", "--force")
    assert (other.code, "asked for something else: window" in other.err) == (2, True)
    Path("hicache.yaml").unlink()
    assert size("--synthetic", "one-shot", "--resume").code == 2
    WINDOW.write_bytes(window[: window.rfind(b"\n", 0, -1) + 1])  # a whole line less
    cut = size(*argv, "--resume", "--force")
    assert cut.code == 2
    assert f"recorded were {len(window)}" in cut.err


def test_ctrl_c_ends_the_window_and_a_second_one_the_run(writers: list[subprocess.Popen[bytes]]) -> None:
    path = Path("trace.jsonl")
    path.write_text(HEADER)
    process = started("--live", "trace.jsonl", "--steps", "none")
    wait_until(lambda: "collected" in kinds())
    writers.append(append_in_new_process(trace_text(chats(5000)), path))
    wait_until(lambda: WINDOW.exists() and WINDOW.read_text().count("\n") > 30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert data_of(out)["live"]["window"]["ended"] == "Ctrl-C"
    process = started("--live", "trace.jsonl", "--force")
    second = Path("state/size/s-0002/steps.jsonl")
    wait_until(lambda: second.exists() and "collected" in second.read_text())
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:  # two that come too close to each other are one
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_stored_blocks_are_sized_and_said_to_be_no_look_ups(writers: list[subprocess.Popen[bytes]]) -> None:
    path = Path("events.msgpack")
    path.write_bytes(b"")
    stop = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            for n, blocks in enumerate(chats(4000)):
                if stop.wait(0.002):
                    return
                file.write(batch(blocks, len(blocks) - 2, ts=10.0 * n))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        ran = size("--live", "events.msgpack", "--window", "150", "--steps", "none")
    finally:
        stop.set()
        thread.join()
    assert ran.code == 0, ran.err
    live = data_of(ran.out)["live"]
    assert (live["reads"], live["sees_requests_that_hit_entirely"]) == ("kv-events", False)
    assert live["told_from"] == "blocks that were stored"
    assert "HC-LIVE-STORED" in [finding["code"] for finding in ran.json["diagnostics"]]
    assert any("those that hit entirely are not seen" in note for note in live["notes"])


def test_a_publisher_of_events_is_followed() -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'hicachectl[live]'")
    stop, context = threading.Event(), zmq.Context()
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def publish() -> None:
        for n, blocks in enumerate(chats(100_000)):
            if stop.wait(0.002):
                break
            if n % 50 != 49:  # what a slow subscriber misses
                socket.send_multipart([b"", n.to_bytes(8, "big"), batch(blocks, len(blocks) - 2, ts=10.0 * n)])
        socket.close(linger=0)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        ran = size("--live", f"tcp://127.0.0.1:{port}", "--window", "150", "--steps", "none")
    finally:
        stop.set()
        thread.join()
        context.term()
    assert ran.code == 0, ran.err
    live = data_of(ran.out)["live"]
    assert (live["transport"], live["window"]["requests"]) == ("zmq", 150)
    assert live["seen"]["missed_batches"] >= 1
    assert [f["code"] for f in ran.json["diagnostics"] if f["code"].startswith("HC-LIVE")] == [
        "HC-LIVE-STORED",
        "HC-LIVE-GAP",
    ]


def test_without_pyzmq_a_publisher_is_unsupported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    ran = size("--live", "tcp://127.0.0.1:5557")
    assert (ran.code, "hicachectl[live]" in ran.err) == (5, True)
    assert not Path("state").exists()


def test_a_window_without_a_request_ends_with_9_and_what_was_seen() -> None:
    Path("server.log").write_text("INFO starting\n")
    ran = size("--live", "server.log", "--window", "1s")
    assert (ran.code, ran.json["diagnostics"][0]["code"]) == (9, "HC-LIVE-EMPTY")
    for words in ("no request came: 1 s", "0 lines"):
        assert words in ran.err
    assert not Path("hicache.yaml").exists()


def test_bad_input_is_named_with_its_line_and_leaves_the_window_so_far() -> None:
    ran = piped(HEADER + trace_text(chats(20)) + "{broken\n{broken\n")
    assert ran.returncode == 2
    assert "2 of 22 lines are broken" in ran.stderr
    assert ":22" in ran.stderr
    assert piped('{"hash_ids": [1]}\n').returncode == 2
    assert piped("").returncode == 9


@pytest.mark.parametrize(
    "argv",
    [("--geometry", "qwen3-8b", "--ranks", "3"), ("--shared",), ("--l2", "both"), ("--l3", "0"), ("--steps", "0"), ("--max-bytes", "lots")],
)  # fmt: skip
def test_what_cannot_be_sized_is_refused_before_a_window_is_collected_for_it(argv: tuple[str, ...]) -> None:
    ran = piped(HEADER + trace_text(chats(20)), *argv)
    wrong = [word for word in argv if word.startswith("--")][-1]
    assert (ran.returncode, wrong in ran.stderr) == (2, True), ran.stderr
    assert not Path("state").exists()


@pytest.mark.parametrize(
    "argv",
    [("--live", "missing.log"), ("--live", "x", "--trace", "y"), ("--live", "x", "--limit", "3"), ("--window", "3"),
     ("--live", "x", "--window", "soon"), ("--replay-endpoint", "tcp://h:1"), ("--live", "x", "--resume")],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_anything_is_written(argv: tuple[str, ...]) -> None:
    assert size(*argv).code == 2
    assert not Path("state").exists()


def test_the_screen_says_what_was_followed_and_how_new_requests_did(writers: list[subprocess.Popen[bytes]]) -> None:
    log = Path("server.log")
    log.write_text("INFO starting\n")
    writers.append(append_in_new_process("".join(map(log_line, chats(8000))), log))
    ran = call(
        *SIZE[:-2], "--live", "server.log", "--window", "300", "--time-budget", "200", "--progress", "none", "--ascii", "--report", "size.html",
        env={"COLUMNS": "120"},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    for words in (
        "LIVE    server.log, request-log (file), told from prompts that were asked",
        "WINDOW  300 requests",
        "OWN CURVE",
        "holds",
    ):
        assert words in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120
    page = Path("size.html").read_text()
    assert "<h2>Live traffic</h2>" in page
    assert "told from prompts that were asked" in page

"""The host pool's memory as `hicachectl run` makes it: settings from every place, what each step got, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, call, command_line
from run_calls import conversation_trace, replay, run
from small_host import small_host, write_host

from hicachectl.memory_room import host_memory
from hicachectl.run_seat import Seat


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def steps_of(data: Any) -> dict[str, Any]:
    return {step["name"]: step for step in data["pools"]["host_memory"]["steps"]}


@pytest.mark.parametrize("kind", ["anonymous", "memfd", "tmpfs"])
def test_every_kind_serves_and_tells_what_each_step_was_asked_for_and_got(tmp_path: Path, kind: str) -> None:
    before = set(os.listdir("/dev/shm"))
    data = replay("--trace", conversation_trace(tmp_path), "--host-memory-kind", kind, "--host-memory-threads", "2")
    memory, steps = data["pools"]["host_memory"], steps_of(data)
    assert memory["kind"] == kind
    assert list(steps)[:6] == ["reserve", "bind", "advise", "populate", "verify", "register"]
    assert steps["populate"]["asked"] == "every page touched, by 2 threads"
    assert steps["bind"]["asked"] == "no policy"
    assert all(step["state"] == "done" or step["reason"] for step in steps.values())
    assert data["facts"]["/pools/host_memory/placement"]["reason"] == "see the step bind of host_memory"
    assert set(os.listdir("/dev/shm")) == before


def test_a_named_file_is_there_while_it_runs_and_gone_afterwards(tmp_path: Path) -> None:
    path = f"/dev/shm/hicachectl-run-{os.getpid()}"
    data = replay("--trace", conversation_trace(tmp_path), "--host-memory-kind", "tmpfs", "--host-memory-path", path)
    assert path in steps_of(data)["reserve"]["asked"]
    assert not os.path.exists(path)


def test_somebody_elses_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    theirs = Path(f"/dev/shm/hicachectl-theirs-{os.getpid()}")
    theirs.write_text("keep")
    try:
        for check in ([], ["--check"]):
            ran = run("--host-memory-kind", "tmpfs", "--host-memory-path", str(theirs), *check)
            assert ran.code == 2
            assert str(theirs) in ran.err
            assert "is there already" in ran.err
        assert theirs.read_text() == "keep"
    finally:
        theirs.unlink()


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_file_on_a_disk_is_refused_with_the_file_system(tmp_path: Path, check: list[str]) -> None:
    ran = run("--host-memory-kind", "tmpfs", "--host-memory-path", "/proc/pool", *check)
    assert ran.code == 2
    assert "not on tmpfs" in ran.err
    assert "/proc/pool" in ran.err


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_pool_of_hugetlb_pages_that_is_too_small_is_not_ready_with_the_arithmetic(check: list[str]) -> None:
    ran = run("--host-slots", "10000000", "--host-memory-kind", "hugetlb", *check)
    assert ran.code == 10
    assert "hugetlb" in ran.err
    assert "pages wanted" in ran.err or "no hugetlb pool" in ran.err


def look_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str | bytes]) -> None:
    """Let the preflight see the memory of a host of these files."""
    write_host(tmp_path / "host", files)
    monkeypatch.setattr("hicachectl.run_plan.look_at_memory", partial(host_memory, tmp_path / "host"))


@pytest.mark.parametrize(("version", "group"), [(1, "/serving"), (2, "/serving.slice")])
def test_a_limit_of_a_control_group_of_either_version_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, group: str
) -> None:
    look_at(monkeypatch, tmp_path, small_host(version))
    assert run("--host-slots", "100000", "--check").code == 0
    ran = run("--host-slots", "300000", "--check")  # 1.1 GiB of 1 GiB left
    assert ran.code == 10
    assert "usable memory under the cgroup limit" in ran.err
    assert f"limit of cgroup {group} " in ran.err


def test_a_control_group_that_cannot_be_seen_is_a_warning_and_no_freedom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(monkeypatch, tmp_path, small_host() | {"/proc/self/cgroup": "0::/../other\n"})
    ran = run("--host-slots", "100", "--check")
    (found,) = [one for one in ran.json["diagnostics"] if one["code"] == "HC-CGROUP-LIMIT"]
    assert found["severity"] == "warn"
    assert "/../other is outside of the control group namespace" in found["message"]
    look_at(monkeypatch, tmp_path / "seen", small_host())
    assert "HC-CGROUP-LIMIT" not in str(run("--host-slots", "100", "--check").json["diagnostics"])


def test_a_limit_on_reserved_pages_is_refused_before_the_kernel_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = "/sys/kernel/mm/hugepages/hugepages-1048576kB"
    slice_ = "/sys/fs/cgroup/serving.slice"
    free = {f"{pool}/nr_hugepages": "600", f"{pool}/free_hugepages": "600", f"{pool}/resv_hugepages": "0"}
    on = {"/sys/fs/cgroup/cgroup.controllers": "memory hugetlb", f"{slice_}/hugetlb.1GB.max": "max"}
    monkeypatch.setattr("hicachectl.run_plan.require_pool", lambda *_: None)  # what the kernel of this machine has
    wanted = (
        "--host-slots",
        "300000",
        "--host-memory-kind",
        "hugetlb",
        "--host-memory-hugetlb-bytes",
        "1GiB",
        "--check",
    )
    look_at(monkeypatch, tmp_path / "free", small_host() | free | on)
    assert run(*wanted).code == 0  # the pages of the default size are none, and no matter
    limits = {f"{slice_}/hugetlb.1GB.max": "0", f"{slice_}/hugetlb.1GB.current": "0"}
    look_at(monkeypatch, tmp_path / "none", small_host() | free | on | limits)
    ran = run(*wanted)
    assert ran.code == 10
    assert "free hugetlb memory under the cgroup limit is 0 B" in ran.err
    assert "limit of cgroup /serving.slice (hugetlb.1GB.max)" in ran.err


@pytest.mark.parametrize(
    ("flag", "value", "word"),
    [
        ("--host-memory-kind", "anonymus", "'anonymous'"),
        ("--host-memory-placement", "interleaved", "'interleave'"),
        ("--host-memory-weights", "0=300", "300"),
        ("--host-memory-weights", "0=1,0=2", "twice"),
        ("--host-memory-path", "pool", "start"),
        ("--host-memory-threads", "0", "1 to 1024"),
        ("--host-memory-chunk-bytes", "600GiB", "64GiB"),
        ("--host-memory-chunk-bytes", "0", "64GiB"),
        ("--host-memory-must-register", "perhaps", "true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag_and_what_is_wanted(flag: str, value: str, word: str) -> None:
    ran = run(flag, value)
    assert ran.code == 2
    assert flag in ran.err
    assert word in ran.err


def test_settings_come_from_flag_variable_file_and_profile_and_config_show_names_the_place(tmp_path: Path) -> None:
    Path("hicache.yaml").write_text("run:\n  host_memory:\n    threads: 3\n    huge_pages: false\n")
    entry = "{value: memfd, reason: ranks share it, source: s, confidence: assumed}"
    Path("p.yaml").write_text(f"name: p\nrevision: 1\nsummary: s\nvalues:\n  run.host_memory.kind: {entry}\n")
    env = {"HICACHECTL_RUN_HOST_MEMORY_CHUNK_BYTES": "2GiB", "HICACHECTL_PROFILE": "p.yaml"}
    shown = call("config", "show", "--origin", "-o", "json", env=env).json["data"]["settings"]
    found = {s["key"]: (s["value"], s["origin"], s["where"]) for s in shown if s["key"].startswith("run.host_memory.")}
    assert found["run.host_memory.threads"][:2] == (3, "file")
    assert found["run.host_memory.threads"][2].endswith("hicache.yaml:3")
    assert found["run.host_memory.huge_pages"][:2] == (False, "file")
    assert found["run.host_memory.kind"][:2] == ("memfd", "profile")
    assert found["run.host_memory.chunk_bytes"][:2] == (2 << 30, "environment")
    data = replay("--trace", conversation_trace(tmp_path), "--profile", "p.yaml", "--host-memory-threads", "1", env=env)
    steps = steps_of(data)
    assert data["pools"]["host_memory"]["kind"] == "memfd"
    assert steps["populate"]["asked"].endswith("by 1 thread")
    assert steps["advise"]["asked"] == "small pages"


def test_a_placement_is_set_read_back_and_told_on_the_screen(tmp_path: Path) -> None:
    trace = conversation_trace(tmp_path)
    data = replay("--trace", trace, "--host-memory-placement", "interleave")
    bind = steps_of(data)["bind"]
    assert bind["asked"].startswith("interleave on node")
    screen = call(
        "run",
        "--trace",
        trace,
        "--geometry",
        "tiny-4k",
        "--storage-path",
        "none",
        "--host-memory-placement",
        "interleave",
    )
    assert "HOST MEMORY  anonymous" in screen.out
    assert "asked interleave on node" in screen.out


def test_a_refused_placement_is_a_finding_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Seat(own_node=900, index=0, socket_nodes=(900,), memory_nodes=(900,))
    monkeypatch.setattr("hicachectl.run_memory.read_seat", lambda device: seat)
    ran = run("--trace", conversation_trace(tmp_path), "--host-memory-placement", "local")
    assert (ran.code, ran.json["status"]) == (0, "findings")
    (finding,) = [d for d in ran.json["diagnostics"] if d["code"] == "HC-POOL-MEMORY"]
    assert "asked local on node 900" in finding["message"]
    assert "nodes [900] are not both online and allowed" in finding["message"]
    assert ran.json["data"]["pools"]["host_memory"]["placement"] is None


def test_a_shared_pool_without_huge_pages_is_warned_of_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicachectl.run_memory.small_pages_reason", lambda *_: "shmem_enabled is never")
    argv = ("--trace", conversation_trace(tmp_path), "--host-memory-kind", "memfd")
    codes = {d["code"]: d for d in run(*argv).json["diagnostics"]}
    assert "shmem_enabled is never" in codes["HC-SHM-4K"]["message"]
    codes = {d["code"]: d for d in run(*argv, "--host-memory-huge-pages", "false").json["diagnostics"]}
    assert "HC-SHM-4K" not in codes


def test_what_a_killed_run_left_is_removed_by_the_next_one_and_told(tmp_path: Path) -> None:
    path = f"/dev/shm/hicachectl-killed-{os.getpid()}"
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from shared_pools import own; pool = own({path!r}); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = run("--host-memory-kind", "tmpfs", "--host-memory-path", path, "--check")
        child.kill()
    assert held.code == 2
    assert f"process {child.pid} made this pool and holds it" in held.err
    assert os.path.exists(path)
    argv = ("--trace", conversation_trace(tmp_path), "--host-memory-kind", "tmpfs", "--host-memory-path", path)
    assert run(*argv, "--check").code == 0
    assert os.path.exists(path)
    steps = steps_of(replay(*argv))
    assert f"process {child.pid}, which made this pool, is gone" in steps["reserve"]["text"]
    assert steps["name"]["text"] == f"{path}, until it is closed"
    assert not os.path.exists(path)


@pytest.mark.parametrize(("numbers", "code"), [((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130)])
def test_a_signal_that_ends_a_run_removes_its_file(numbers: tuple[signal.Signals, ...], code: int) -> None:
    path = f"/dev/shm/hicachectl-signal-{os.getpid()}"
    argv = command_line("run", "--host-memory-kind", "tmpfs", "--host-memory-path", path, "--progress", "none")
    with subprocess.Popen(argv, env=dict(QUIET), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.path.exists(path)
        for number in numbers:
            child.send_signal(number)
            time.sleep(0.2)
        assert child.wait(60) == code
    assert not os.path.lexists(path)

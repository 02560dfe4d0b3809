"""`hicachectl bench`: refusals with their codes, answers and none, and results that are read back from a file."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document
from cli_runner import call
from fake_memory import MIB, FakeDriver, FakeKernel
from small_host import V1_GROUP, small_host, write_host

from hicachectl.bench_copy_data import copy_doubts, copy_headline
from hicachectl.bench_data import NO_TIME, Costs, LineCost, fewer, measure, no_costs_note, not_answered
from hicachectl.bench_pool_data import pool_costs, pool_details, pool_measures
from hicachectl.bench_results import priors_of, read_bench
from hicachectl.commands import bench_pool
from hicachectl.data_digest import with_digest
from hicachectl.envelope import plain, unexplained_nulls
from hicachectl.errors import ExitCode, UsageError
from hicachectl.input_file import LARGEST_BYTES
from hicachectl.memory_room import host_memory
from hicachectl.render.bench_words import draw_head
from hicachectl.render.screen import Screen
from hicachectl.runtime.memory.budget import GroupLimit, HugetlbRoom
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.register import NoRegistrar
from hicachectl.runtime.probes.pool import default_cases, run_pool_probe

POOL = ("bench", "pool", "--device", "cpu", "--threads", "1", "--kind", "anonymous")


def test_a_result_is_a_file_that_is_read_back_with_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    ran = call(*POOL, "--size", "8MiB", "--rounds", "3", "-o", "json", "--output-file", str(path))
    assert ran.code in (0, 9)  # 9: another load on this machine
    document = json.loads(path.read_text()) | {"exit_code": 0}
    path.write_text(json.dumps(document))
    found = read_bench(path)
    assert (found.kind, found.setting.device, found.setting.rounds) == ("pool", "cpu", 3)
    total = found.find("anonymous huge, 1 thread", "total_s")
    assert total is not None
    assert len(total.samples) == 3
    register = found.find("anonymous huge, 1 thread", "register_s")
    assert register is not None
    assert (register.samples, register.p50) == ((), None)
    assert register.reason == "the device is the CPU: there is no driver to register with"
    assert register.expected is None
    assert total.expected is None
    reasons = document["data"]["facts"]
    assert reasons["/costs/make_s_per_gib"]["reason"].startswith("a pool of 8388608 bytes, 268435456 are the fewest")
    make = document["data"]["make"]
    assert (make["case"], make["threads"], make["registered"]) == ("anonymous huge, 1 thread", 1, False)


def test_no_time_is_no_answer_and_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    ran = call(*POOL, "--size", "4MiB", "--time-budget", "0", "-o", "json", "--output-file", str(path))
    assert ran.code == 9
    with pytest.raises(UsageError, match="no answer"):
        read_bench(path)


def test_a_budget_that_ends_between_rounds_says_at_every_number_that_samples_are_fewer() -> None:
    looks = iter([True, True, False])
    spec = default_cases((1,))[1]
    probe = run_pool_probe(
        4 * MIB, [spec], rounds=5, registrar=NoRegistrar("x"), calls=FakeKernel(), go_on=lambda: next(looks)
    )
    measured = [one for one in pool_measures(probe) if one.samples]
    assert {one.reason for one in measured} == {"2 of 5 samples: no time was left for more"}
    stream = io.StringIO()
    method = {"setting": {"method": "m", "rounds": 5, "device": "cpu", "device_reason": "r", "accelerator": None, "driver": None,
                          "processor": "p", "cores": "2", "memory": "1", "kernel": "k", "torch": "2"}}  # fmt: skip
    draw_head(Screen(stream, width=200), "T", method | {"measures": plain(tuple(measured))})
    assert "fewer    2 of 5 samples: no time was left for more: anonymous huge, 1 thread\n" in stream.getvalue()


def test_where_every_case_is_refused_the_code_is_that_of_the_refusal(tmp_path: Path) -> None:
    ran = call(
        "bench",
        "pool",
        "--device",
        "cpu",
        "--size",
        "4MiB",
        "--kind",
        "tmpfs",
        "--tmpfs",
        str(tmp_path / "no"),
        "-o",
        "json",
    )
    refused = ran.json["data"]["cases"][0]["refused"]
    assert str(tmp_path / "no") in refused
    assert ran.code == ran.json["exit_code"] == 2
    (told,) = ran.json["diagnostics"]
    assert (told["code"], told["severity"], ran.json["status"]) == ("HC-USAGE", "failure", "failed")
    assert "HC-NO-ANSWER" not in ran.out + ran.err
    for part in ("error: ", "  next: ", "  code: HC-USAGE"):
        assert part in ran.err


def test_memory_that_this_user_may_not_have_is_denied() -> None:
    def refuse(call: str) -> None:
        if call == "file":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "open /dev/shm")

    cases = default_cases((1,), tmpfs="/dev/shm")
    mine = [case for case in cases if case.spec.kind is Kind.TMPFS]
    denied = run_pool_probe(MIB, mine, rounds=1, registrar=NoRegistrar("x"), calls=FakeKernel(refuse))
    refusal = bench_pool.refusal_of(denied)
    assert refusal is not None
    assert refusal.exit_code is ExitCode.DENIED
    some = run_pool_probe(MIB, cases, rounds=1, registrar=NoRegistrar("x"), calls=FakeKernel(refuse))
    assert bench_pool.refusal_of(some) is None


@pytest.mark.parametrize(
    ("size", "total"), [("900TiB", " 900.0 TiB"), ("1PiB", " 1.0 PiB"), ("100PiB", " 100.0 PiB"), ("1PB", " 909.5 TiB")]
)
def test_a_pool_that_does_not_fit_is_refused_with_every_term(size: str, total: str) -> None:
    ran = call(*POOL, "--size", size)
    assert ran.code == 10
    for term in ("pool, one at a time", "total", "other use", "left to the machine", "usable memory", total):
        assert term in ran.err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--device", "mtia"), 5, "torch cannot use device mtia here"),
        (("--kind", "paper"), 2, "'paper' is no kind of memory"),
        (("--threads", "0"), 2, "no thread counts"),
        (("--threads", "\u00b2"), 2, "no thread counts"),
        (("--size", "1MiB"), 2, "less than a huge page"),
        (("--rounds", "0"), 2, "--rounds"),
        (("--root", "/"), 2, "snapshot"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_code(more: tuple[str, ...], code: int, words: str) -> None:
    ran = call("bench", "pool", *more)
    assert ran.code == code
    assert words in ran.err


COPY = ("bench", "copy", "--device", "cpu", "--geometry", "tiny-4k")


def test_a_copy_result_has_what_a_transfer_costs_and_what_could_not_run(tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    ran = call(
        *COPY,
        "--pages",
        "40",
        "--rounds",
        "9",
        "--layout",
        "page_first_direct",
        "-o",
        "json",
        "--output-file",
        str(path),
    )
    assert ran.code in (0, 9)  # 9: another load on this machine
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"exit_code": 0}))
    found = read_bench(path)
    assert "copies within host memory" in found.setting.method
    rows = {row["backend"]: row["refused"] for row in found.data["rows"]}
    assert {backend for backend, refused in rows.items() if refused is None} == {"cpu", "torch"}
    assert rows["strided"] == "strided comes with a CUDA device"
    assert found.data["costs_of"]["layout"] == "page_first_direct"
    assert {one.quantity for one in found.measures if one.subject.startswith("host read, ")} == {"transfer_s"}
    measured = priors_of(found)
    reasons = document["data"]["facts"]
    for name in ("host_read", "host_write"):
        known = [cost for cost_path, cost in measured.items() if cost_path.value == name]
        reason = reasons.get(f"/costs/{name}", {}).get("reason", "")
        assert bool(known) != ("gave no answer: " in reason or "the most that a line may miss" in reason), reason


def test_a_backend_that_cannot_run_here_alone_is_unsupported_and_no_time_is_no_answer() -> None:
    ran = call(*COPY, "--pages", "2", "--backend", "uva", "-o", "json")
    assert ran.code == 5
    assert all(row["refused"] == "uva comes with a CUDA device" for row in ran.json["data"]["rows"])
    assert [one["code"] for one in ran.json["diagnostics"]] == ["HC-UNSUPPORTED"]
    for part in (
        "copy backend uva cannot run on device cpu",
        "why: uva comes with a CUDA device",
        "next: leave --backend out",
        "HC-UNSUPPORTED",
    ):
        assert part in ran.err
    ran = call(*COPY, "--pages", "2", "--time-budget", "0", "-o", "json")
    assert ran.code == 9
    assert {row["refused"] for row in ran.json["data"]["rows"] if row["backend"] == "torch"} == {
        "no time was left for it"
    }


MEASURES = [
    (*COPY, "--pages", "2", "--layout", "page_first", "--backend", "cpu", "--rounds", "3"),
    (
        "bench",
        "model",
        "--device",
        "cpu",
        "--geometry",
        "tiny-4k",
        "--path",
        "none",
        "--lengths",
        "512,2048",
        "--rounds",
        "3",
    ),
]


@pytest.mark.parametrize("line", MEASURES, ids=lambda line: line[1])
def test_pools_are_made_as_the_configuration_of_run_says_and_told(line: tuple[str, ...]) -> None:
    def made(kind: str, **more: str) -> dict[str, Any]:
        env = {f"HICACHECTL_RUN_HOST_MEMORY_{name}": word for name, word in {"KIND": kind, **more}.items()}
        ran = call(*line, "-o", "json", env=env)
        assert ran.code in (0, 9), ran.err  # 9: another load on this machine
        memory: dict[str, Any] = ran.json["data"]["host_memory"]
        return memory

    assert (made("anonymous")["kind"], made("memfd")["kind"]) == ("anonymous", "memfd")
    small = made("anonymous", HUGE_PAGES="false")
    assert (small["huge_share"], small["placement"], small["registered_with"]) == (0.0, None, None)
    named = f"/dev/shm/hicachectl-bench-{os.getpid()}"
    assert made("tmpfs", PATH=named)["kind"] == "tmpfs"
    assert not os.path.exists(named)


@pytest.mark.parametrize("line", MEASURES, ids=lambda line: line[1])
def test_memory_that_goes_with_nothing_is_refused_as_run_refuses_it(line: tuple[str, ...]) -> None:
    ran = call(*line, env={"HICACHECTL_RUN_HOST_MEMORY_PATH": "/dev/shm/a.pool"})
    assert ran.code == 2
    assert "host_memory.path /dev/shm/a.pool goes with kind tmpfs" in ran.err


def test_a_pool_of_reserved_pages_is_no_part_of_the_plain_memory_that_is_asked_for() -> None:
    kind = {"HICACHECTL_RUN_HOST_MEMORY_KIND": "hugetlb"}
    plain, reserved = (call(*COPY, "--pages", "1000000000", env=env) for env in ({}, kind))
    assert (plain.code, reserved.code) == (10, 10)
    assert "host pool, 2 x 1000000000 + 8 pages" in plain.err
    assert "host pool" not in reserved.err
    assert "device pool, in host memory" in reserved.err


LOOKS = [
    COPY, ("bench", "pool", "--device", "cpu", "--threads", "1", "--kind", "anonymous"), ("bench", "store", "--geometry", "tiny-4k"),
    ("bench", "model", "--device", "cpu", "--geometry", "tiny-4k"), ("bench", "link", "--device", "cpu"),
]  # fmt: skip


@pytest.mark.parametrize("line", LOOKS, ids=lambda line: line[1])
def test_a_control_group_that_leaves_nothing_is_refused_and_one_that_cannot_be_seen_is_told(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {f"{V1_GROUP}/memory.limit_in_bytes": str(MIB), f"{V1_GROUP}/memory.usage_in_bytes": str(MIB)}
    hidden = {"/proc/self/cgroup": "0::/../other\n", "/proc/meminfo": "MemTotal: 1 kB\nMemAvailable: 1 kB\n"}
    for name, files in (("full", small_host(1) | full), ("hidden", small_host(2) | hidden)):
        write_host(tmp_path / name, files)
        monkeypatch.setattr("hicachectl.memory_room.host_memory", partial(host_memory, tmp_path / name))
        ran = call(*line)
        assert ran.code == 10, ran.err
        words = " ".join(ran.err.split())
        if name == "full":
            assert "usable memory under the cgroup limit is 0 B" in words
            assert "limit of cgroup /serving/engine " in words
        else:
            assert "a limit of a control group may leave less memory than is counted on: /../other is outside" in words


def test_a_pool_of_reserved_pages_whose_control_group_allows_too_few_is_told_beforehand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = HugetlbRoom(2 * MIB, 1 << 30, GroupLimit(3 * MIB, 0, "cgroup /pod (hugetlb.2MB.max)"))
    monkeypatch.setattr("hicachectl.memory_room.hugetlb_room", lambda: room)
    line = (
        "bench",
        "pool",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--size",
        "4MiB",
        "--rounds",
        "1",
        "--time-budget",
        "0",
    )
    words = " ".join(call(*line, "--kind", "hugetlb").err.split())
    assert "cgroup /pod (hugetlb.2MB.max) allows 3.0 MiB, 0 B are used: 2.0 MiB can be had, 4.0 MiB are asked" in words
    assert "can be had" not in " ".join(call(*line, "--kind", "anonymous").err.split())


def test_the_memory_of_a_measurement_is_on_its_screen() -> None:
    ran = call(*MEASURES[0], env={"HICACHECTL_RUN_HOST_MEMORY_KIND": "memfd"})
    assert "memory   memfd, no placement, " in ran.out


def test_the_geometry_comes_from_flag_file_or_profile_and_else_suits_the_device(tmp_path: Path) -> None:
    file = tmp_path / "hicache.yaml"
    file.write_text("run:\n  geometry: tiny-64k\n  page_tokens: 16\n")

    def of(*more: str) -> tuple[str, int]:
        ran = call("bench", "copy", "--device", "cpu", "--pages", "1", "--time-budget", "0", "-o", "json", *more)
        return ran.json["data"]["geometry"], ran.json["data"]["page_tokens"]

    assert of() == ("tiny-512k", 512)
    assert of("--config", str(file)) == ("tiny-64k", 16)
    assert of("--config", str(file), "--geometry", "tiny-4k") == ("tiny-4k", 16)
    ran = call(
        "bench", "copy", "--device", "cpu", "--dtype", "int8", "--pages", "1", "--time-budget", "0", "-o", "json"
    )
    assert (ran.json["data"]["dtype"], ran.json["data"]["page_bytes"]) == ("int8", 256 << 10)


def test_the_progress_of_copies_counts_the_pairs_that_can_run_and_ends_at_all_of_them() -> None:
    only = ("--layout", "layer_first,page_first", "--backend", "cpu,uva", "--pages", "1", "--rounds", "1")
    ran = call(*COPY, *only, "-o", "json", "--progress", "plain")
    lines = [line for line in ran.err.splitlines() if " bench copy" in line]
    assert "bench copy: layer_first cpu  0/2 pairs 0 %" in lines[1]
    assert "bench copy: page_first cpu  1/2 pairs 50 %" in lines[2]
    assert "2/2 pairs 100 %  done in" in lines[-1]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--device", "mtia"), 5, "torch cannot use device mtia here"),
        (("--layout", "sideways"), 2, "'sideways' is no layout"),
        (("--backend", "cpu,pigeon"), 2, "'pigeon' is no copy backend"),
        (("--geometry", "qwen3-8c"), 2, "qwen3-8b"),
        (("--page-tokens", "0"), 2, "page_tokens"),
        (("--pages", "1000000000"), 10, "host pool, 2 x 1000000000 + 8 pages"),
        (("--root", "/"), 2, "snapshot"),
    ],
)
def test_a_copy_that_cannot_be_measured_is_refused_with_its_code(more: tuple[str, ...], code: int, words: str) -> None:
    ran = call("bench", "copy", *more)
    assert ran.code == code
    assert words in ran.err


def written(folder: Path, made: Any) -> Path:
    path = folder / "copy.json"
    path.write_text(json.dumps(made))
    return path


def test_measured_costs_are_what_the_cost_model_may_start_from(tmp_path: Path) -> None:
    made = bench_document(costs=Costs(host_read=LineCost(1e-4, 2e-11, 9)))
    assert unexplained_nulls(made["data"]) == []
    found = priors_of(read_bench(written(tmp_path, made)))
    assert [(path.value, cost.fixed_s, cost.per_byte_s) for path, cost in found.items()] == [("host_read", 1e-4, 2e-11)]


def test_a_later_field_is_passed_over(tmp_path: Path) -> None:
    made = bench_document()
    made["data"]["measures"][0]["later"] = 1
    if isinstance(made.get("data"), dict):
        made["data"] = with_digest(made["data"])
    assert read_bench(written(tmp_path, made)).measures[0].p50 == 2.0


def line(**changes: Any) -> dict[str, Any]:
    return {"fixed_s": 1e-4, "per_byte_s": 2e-11, "n_samples": 9, **changes}


def test_what_never_ends_or_is_too_long_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    (tmp_path / "latin").write_bytes(b"\xff")
    for name, words in (
        ("/dev/zero", "no regular file"), ("pipe", "no regular file"), ("", "no regular file"), ("long", "more than 16777216 bytes"),
        ("latin", "no UTF-8 text"), ("a\0b", "cannot read"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words) as caught:
            read_bench(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)


def test_an_edited_or_cut_result_is_refused_with_the_place(tmp_path: Path) -> None:
    def edit(change: Any) -> Any:
        made = bench_document()
        change(made)
        return made

    for change, words in (
        (lambda d: d["data"]["measures"][0].update(p50=1.0), r"measures\[0\].p50 is 1.0, 2.0, the median"),
        (lambda d: d["data"]["measures"][0].update(samples=["1"]), r"measures\[0\].samples\[0\] is '1', float"),
        (lambda d: d["data"]["measures"][0].pop("subject"), r"measures\[0\].subject is 'nothing'"),
        (lambda d: d["data"]["setting"].update(rounds=True), "setting.rounds is True, int"),
        (lambda d: d["data"]["costs"].update(host_read={"fixed_s": 1}), "costs.host_read.per_byte_s"),
        (lambda d: d["data"].pop("costs"), "data.costs is None, an object"),
        (lambda d: d.update(data=None), "data is None, an object"),
        (lambda d: d.pop("data"), "data is None, an object"),
        (lambda d: d.update(collected_at="not a time"), "collected_at is 'not a time', a time such as"),
        (
            lambda d: d["data"]["measures"][0].update(samples=[], p50=None),
            r"measures\[0\].samples is a list of 0 values",
        ),
        (lambda d: d["data"]["measures"][0].update(samples=[-1.0], p50=-1.0), r"samples\[0\] is -1.0, a number from 0"),
        (lambda d: d["data"]["measures"][0].update(samples=[1e300], p50=1e300), r"samples\[0\] is 1e\+300"),
        (lambda d: d["data"]["costs"].update(make_s_per_gib=-3.0), "costs.make_s_per_gib is -3.0"),
        (lambda d: d["data"]["costs"].update(make_s_per_gib=0), "costs.make_s_per_gib is 0.0"),
        (
            lambda d: d["data"]["costs"].update(host_read=line(fixed_s=10**400)),
            r"host_read.fixed_s is 10{59}\.\.\. \(401 char",
        ),
        (
            lambda d: d["data"]["costs"].update(host_read=line(fixed_s=1e300)),
            r"host_read.fixed_s is 1e\+300, a number from 0 to 3600",
        ),
        (lambda d: d["data"]["costs"].update(host_read=line(per_byte_s=-1e-9)), "host_read.per_byte_s is -1e-09"),
        (lambda d: d["data"]["costs"].update(host_read=line(fixed_s=0, per_byte_s=0)), "host_read is '0 s"),
        (lambda d: d["data"]["costs"].update(host_read=line(n_samples=-3)), "host_read.n_samples is -3"),
        (
            lambda d: d["data"]["costs"].update(host_read=line(from_bytes=8192, to_bytes=4096)),
            "host_read.from_bytes to to_bytes is '8192 to 4096', a smaller size",
        ),
        (
            lambda d: d["data"]["costs"].update(host_read=line()),
            "host_read.n_samples is 9, 0, the samples of its transfers",
        ),
        (
            lambda d: d["data"]["costs"].update(
                recompute={"a_s": -5, "b_s": 0, "c_s": 0, "model": "x", "hardware": "x"}
            ),
            "recompute.a_s is -5",
        ),
        (lambda d: d.update(schema="hicachectl.bench-copy/2"), "version 2 of bench-copy, this release reads 1"),
        (lambda d: d.update(schema="hicachectl.topo/1"), "no result of bench"),
        (lambda d: d.update(exit_code=9), "no answer"),
        (lambda d: d.pop("exit_code"), "exit_code is None"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            read_bench(written(tmp_path, edit(change)))
        assert caught.value.where == str(tmp_path / "copy.json")
    twice = json.dumps(bench_document()).replace('"exit_code": 0', '"exit_code": 9, "exit_code": 0', 1)
    for text, words in (
        ("", "no JSON"), ("[]", "the document is a list of 0 values, an object"), ("{", "no JSON"), ("{}", "schema is None"),
        ("[" * 100_000, "nested too deep"), ("[" * 300 + "]" * 300, "nested too deep"), (twice, "field 'exit_code' is there 2 times: 9 and 0"), ('{"a": NaN}', "NaN is no number"),
        ('{"a": 1' + "0" * 5000 + "}", "no JSON"),
    ):  # fmt: skip
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UsageError, match=words) as caught:
            read_bench(tmp_path / "x.json")
        assert caught.value.where == str(tmp_path / "x.json")
    with pytest.raises(UsageError, match="cannot read"):
        read_bench(tmp_path / "missing.json")


def test_a_file_without_a_cost_is_told_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    ran = call(*POOL, "--size", "8MiB", "--rounds", "3", "-o", "json", "--output-file", str(path))
    told = (
        f"{path} holds no cost, so --costs will refuse it: a pool of 8388608 bytes, 268435456 are the fewest" in ran.err
    )
    assert told == (ran.code == 0)  # 9, another load on this machine, tells it already
    assert call(*POOL, "--size", "8MiB", "--rounds", "3", "-o", "json").err.count("holds no cost") == 0
    of = bench_document("copy", Costs(host_read=LineCost(2e-5, 3e-11, 9)))["data"]
    none = bench_document("copy")["data"]
    none["facts"]["/costs/host_read"] = {"reason": "noise"}
    assert (no_costs_note(of, "f"), no_costs_note(bench_document("link")["data"], "f")) == (None, None)
    assert str(no_costs_note(none, "f")).startswith("f holds no cost, so --costs will refuse it: noise")


def test_more_rounds_are_the_remedy_of_a_file_without_a_cost_against_noise_alone() -> None:
    data = bench_document("copy")["data"]
    for why, samples, reason, remedy in (
        (
            "a, load_s: 50 % is the most that counts as an answer",
            [1.0, 2.0, 9.0],
            None,
            "measure again with more --rounds on",
        ),
        (
            "transfers of one size only: no line through them",
            [1.0] * 3,
            None,
            "see to what the reasons name, then measure",
        ),
        (
            "a, load_s: 3 are the fewest that count as an answer",
            [1.0] * 2,
            fewer(2, 9),
            "give a longer --time-budget, or",
        ),
        ("no time was left to fit it", [], NO_TIME, "give a longer --time-budget, or"),
    ):
        data["facts"]["/costs/host_read"] = {"reason": why}
        data["measures"] = [plain(measure("a", "load_s", samples, reason=reason))]
        assert f"{why}; {remedy}" in str(no_costs_note(data, "f"))


def test_noise_is_a_finding_and_only_all_of_it_is_no_result() -> None:
    calm, wild = measure("a", "x_s", [1.0, 1.1, 1.2]), measure("b", "x_s", [1.0, 2.0, 9.0])
    one, two = measure("d", "x_s", [1.0]), measure("e", "x_s", [1.0, 1.0])
    absent = measure("c", "x_s", [], reason="cannot run here")
    findings, code = not_answered([calm, wild, absent], "more rounds")
    assert ([f.subject for f in findings], code) == (["b"], ExitCode.OK)
    assert not_answered([wild, absent], "x")[1] is ExitCode.NO_RESULT
    (nothing,), code = not_answered([absent, absent], "x")
    assert (nothing.message, code) == ("nothing was measured: cannot run here", ExitCode.NO_RESULT)
    assert nothing.hint == "see to what the reasons name, then measure again"
    for short in (measure("c", "x_s", [], reason=NO_TIME), measure("c", "x_s", [1.0, 1.0], reason=fewer(2, 9))):
        (late,), _ = not_answered([short], "more rounds")
        assert late.hint == "give a longer --time-budget, or leave it out"
    (few,), _ = not_answered([measure("c", "x_s", [1.0, 1.0])], "more rounds")
    assert few.hint == "more rounds"
    assert not_answered([calm], "x") == ((), ExitCode.OK)
    findings, code = not_answered([one, two], "x")
    assert code is ExitCode.NO_RESULT
    assert [f.message for f in findings] == [
        f"x_s: {n}: spread unknown, 3 are the fewest that count as an answer" for n in ("1 sample", "2 samples")
    ]
    assert not_answered([one, calm], "x")[1] is ExitCode.OK


def test_a_pool_costs_a_start_its_cold_time_and_only_where_that_is_an_answer() -> None:
    def probe(n_bytes: int, rounds: int = 3, registrar: Any = None) -> tuple[Costs, str, dict[str, Any]]:
        cases = default_cases((1, 4))
        seconds = [0.0]

        def clock() -> float:
            seconds[0] += 1.0
            return seconds[0]

        found = run_pool_probe(
            n_bytes,
            cases,
            rounds=rounds,
            registrar=registrar or NoRegistrar("no driver"),
            calls=FakeKernel(),
            clock=clock,
        )
        colder = tuple(
            replace(row, before=tuple(replace(one, total_s=90.0) for one in row.before)) for row in found.rows
        )
        found = replace(found, rows=colder)
        measures = pool_measures(found)
        costs, why = pool_costs(found, measures, accelerated=registrar is not None)
        return costs, why.get("/costs/make_s_per_gib", ""), pool_details(found, measures)

    costs, _, details = probe(512 * MIB)
    assert costs.make_s_per_gib == 180.0
    make = details["make"]
    assert (make["case"], make["threads"], make["registered"]) == ("anonymous huge, 4 threads", 4, False)
    assert make["cold_s_per_gib"] == 180.0 > make["warm_s_per_gib"]
    for costs, why, words in (
        (*probe(255 * MIB)[:2], "a pool of 267386880 bytes, 268435456 are the fewest"),
        (*probe(512 * MIB, rounds=1)[:2], "1 sample: spread unknown"),
        (
            *probe(512 * MIB, registrar=NoRegistrar("no cudart"))[:2],
            "not registered, as run would on this device: no cudart",
        ),
    ):
        assert costs == Costs()
        assert words in why
    assert probe(512 * MIB, registrar=FakeDriver())[0].make_s_per_gib == 180.0


def test_a_copy_faster_than_the_plain_copy_is_no_answer_and_names_its_peak() -> None:
    rows = [
        measure("a", "load_s", [1.0, 1.0, 1.0]), measure("a", "load_peak_s", [1.2, 1.2, 1.2]),
        measure("a", "load_share_of_peak", [1.2, 1.2, 1.2]), measure("b", "backup_s", [1.0, 1.0, 1.0]),
        measure("b", "backup_peak_s", [1.0, 9.0, 30.0]), measure("b", "backup_share_of_peak", [9.0, 9.0, 9.0]),
    ]  # fmt: skip
    findings, code = not_answered(copy_headline(rows), "x", copy_doubts(rows))
    assert code is ExitCode.NO_RESULT
    assert [f.subject for f in findings] == ["a", "b"]
    assert findings[0].message.startswith(
        "load_s: 120 % of the rate of one contiguous copy of the same bytes, 110 % is the most"
    )
    assert findings[1].message.startswith("backup_s: its peak (backup_peak_s): the middle half of 3 samples")

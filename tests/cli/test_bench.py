"""`hicachectl bench`: refusals with their codes, answers and none, and results that are read back from a file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench_files import bench_document
from cli_runner import call
from fake_memory import MIB, FakeKernel

from hicachectl.bench_data import Costs, LineCost, measure, not_answered
from hicachectl.bench_results import priors_of, read_bench
from hicachectl.commands import bench_pool
from hicachectl.data_digest import with_digest
from hicachectl.envelope import unexplained_nulls
from hicachectl.errors import ExitCode, UsageError
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
    assert register.expected is not None
    assert register.expected.source == "docs/facts.md#h200-pools"


def test_no_time_is_no_answer_and_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    ran = call(*POOL, "--size", "4MiB", "--time-budget", "0", "-o", "json", "--output-file", str(path))
    assert ran.code == 9
    with pytest.raises(UsageError, match="no answer"):
        read_bench(path)


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


def test_memory_that_this_user_may_not_have_is_denied() -> None:
    def refuse(call: str) -> None:
        if call == "file":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "open /dev/shm")

    cases = default_cases((1,), tmpfs="/dev/shm")
    mine = [case for case in cases if case.spec.kind is Kind.TMPFS]
    denied = run_pool_probe(MIB, mine, rounds=1, registrar=NoRegistrar("x"), calls=FakeKernel(refuse))
    assert bench_pool.exit_code(denied, ExitCode.NO_RESULT) is ExitCode.DENIED
    some = run_pool_probe(MIB, cases, rounds=1, registrar=NoRegistrar("x"), calls=FakeKernel(refuse))
    assert bench_pool.exit_code(some, ExitCode.OK) is ExitCode.OK


def test_a_pool_that_does_not_fit_is_refused_with_every_term() -> None:
    ran = call(*POOL, "--size", "900TiB")
    assert ran.code == 10
    for term in ("pool, one at a time", "total", "other use", "left to the machine", "usable memory"):
        assert term in ran.err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--device", "mtia"), 5, "torch cannot use device mtia here"),
        (("--kind", "paper"), 2, "'paper' is no kind of memory"),
        (("--threads", "0"), 2, "no thread counts"),
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
    measured = priors_of(found)
    reasons = document["data"]["facts"]
    for name in ("host_read", "host_write"):
        known = [cost for cost_path, cost in measured.items() if cost_path.value == name]
        assert bool(known) != (reasons.get(f"/costs/{name}", {}).get("reason", "").endswith("gave no answer"))


def test_a_backend_that_cannot_run_here_alone_is_unsupported_and_no_time_is_no_answer() -> None:
    ran = call(*COPY, "--pages", "2", "--backend", "uva", "-o", "json")
    assert ran.code == 5
    assert all(row["refused"] == "uva comes with a CUDA device" for row in ran.json["data"]["rows"])
    ran = call(*COPY, "--pages", "2", "--time-budget", "0", "-o", "json")
    assert ran.code == 9
    assert {row["refused"] for row in ran.json["data"]["rows"] if row["backend"] == "torch"} == {
        "no time was left for it"
    }


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


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--device", "mtia"), 5, "torch cannot use device mtia here"),
        (("--layout", "sideways"), 2, "'sideways' is not known"),
        (("--backend", "cpu,pigeon"), 2, "'pigeon' is not known"),
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
    made["data"] = with_digest(made["data"])
    assert read_bench(written(tmp_path, made)).measures[0].p50 == 2.0


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
        (lambda d: d.update(data=None), "data.setting is None"),
        (lambda d: d.update(schema="hicachectl.bench-copy/2"), "version 2 of bench-copy, this release reads 1"),
        (lambda d: d.update(schema="hicachectl.topo/1"), "no result of bench"),
        (lambda d: d.update(exit_code=9), "no answer"),
        (lambda d: d.pop("exit_code"), "exit_code is None"),
    ):
        with pytest.raises(UsageError, match=words):
            read_bench(written(tmp_path, edit(change)))
    for text in ("", "[]", "{", "{}"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UsageError):
            read_bench(tmp_path / "x.json")
    with pytest.raises(UsageError, match="cannot read"):
        read_bench(tmp_path / "missing.json")


def test_noise_is_a_finding_and_only_all_of_it_is_no_result() -> None:
    calm, wild = measure("a", "x_s", [1.0, 1.1, 1.2]), measure("b", "x_s", [1.0, 2.0, 9.0])
    absent = measure("c", "x_s", [], reason="cannot run here")
    findings, code = not_answered([calm, wild, absent], "more rounds")
    assert ([f.subject for f in findings], code) == (["b"], ExitCode.OK)
    assert not_answered([wild, absent], "x")[1] is ExitCode.NO_RESULT
    (nothing,), code = not_answered([absent, absent], "x")
    assert (nothing.message, code) == ("nothing was measured: cannot run here", ExitCode.NO_RESULT)
    assert not_answered([calm], "x") == ((), ExitCode.OK)

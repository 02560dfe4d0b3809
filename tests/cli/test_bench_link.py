"""`hicachectl bench link`: which accelerators, nodes and cases are meant, the document, findings, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_runner import QUIET, call
from fakes.link_rig import FakeFlow
from link_results import MIB, Host, Seen, ask, codes, document, setting

from hicachectl.bench_link_run import nodes_of_targets, nodes_result
from hicachectl.bench_results import read_bench
from hicachectl.context import read_origin
from hicachectl.envelope import Result, envelope
from hicachectl.errors import CapacityError, ExitCode, Unsupported, UsageError
from hicachectl.link_targets import chosen_targets, link_targets, memory_nodes
from hicachectl.runtime.memory.budget import HostMemory
from hicachectl.runtime.probes.link_math import Way
from hicachectl.schemas_io import document_schema

ANY_NOISE = (ExitCode.OK, ExitCode.NO_RESULT)
"""Short samples of this machine: whether they are calm enough for an answer is not what is tested."""
X4, X5 = "0000:63:00.0", "0000:64:00.0"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host") / "h")


def cases(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(result)["cases"]
    return found


# -- the document -----------------------------------------------------------------------------------------------------


def test_a_sound_host_has_a_measure_a_case_with_its_expected_range_and_no_finding(host: Host) -> None:
    result = host.link(ask())
    data = document(result)
    made = envelope(result, read_origin(None))
    jsonschema.validate(made, document_schema("bench-link")[1])
    assert (result.exit_code, codes(result)) == (ExitCode.OK, [])
    assert len(data["cases"]) == len(data["measures"])
    for case, one in zip(data["cases"], data["measures"], strict=True):
        assert (one["subject"], one["p50"]) == (case["subject"], case["bytes_per_s"])
        assert one["expected"]["low"] < one["p50"] <= one["expected"]["high"] == case["link_math_bytes_per_s"]
        assert "link math of 0000:" in one["expected"]["source"]
        assert "docs/facts.md#h200-link" in one["expected"]["source"]
    assert len({(one["subject"], one["quantity"]) for one in data["measures"]}) == len(data["measures"])
    assert {case["case"] for case in data["cases"]} == {"alone", "uplink", "spread", "against", "host"}
    assert [(one["name"], one["node"], one["uplink"]) for one in data["accelerators"]][4:6] == [
        ("X4", 5, "U2"),
        ("X5", 5, "U2"),
    ]


def test_the_file_of_a_result_is_read_back(host: Host, tmp_path: Path) -> None:
    import json

    result = host.link(ask("X4"))
    (tmp_path / "link.json").write_text(json.dumps(envelope(result, read_origin(None))))
    found = read_bench(tmp_path / "link.json")
    assert found.kind == "link"
    one = found.find("X4 node 5 alone 256.0 MiB", "d2h_bytes_per_s")
    assert one is not None and one.p50 == pytest.approx(0.86 * 31.5e9, rel=0.01)


def test_writers_behind_one_uplink_that_wait_for_each_other_are_found_with_the_next_step(host: Host) -> None:
    def strict(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        waits = not flow.up and len([one for one in batch if not one.up]) > 1 and flow.device in ("cuda:4", "cuda:5")
        return host.fair(flow, batch) / (4 if waits else 1)

    result = host.link(ask("U2"), strict)
    assert codes(result) == [("HC-UPLINK-SLOW", X4), ("HC-UPLINK-SLOW", X5)]
    assert all("--prove" in (one.hint or "") for one in result.diagnostics)
    assert {case["accelerator"] for case in cases(result) if case["low"]} == {X4, X5}


def test_a_port_that_stays_below_its_top_speed_under_load_is_a_finding(tmp_path: Path) -> None:
    slow = Host(tmp_path / "h")
    uplink = slow.uplinks[X4]
    slow.root.at(f"/sys/bus/pci/devices/{uplink.port}/current_link_speed").write_text("8.0 GT/s PCIe\n")
    result = slow.link(ask("U2", ways=(Way.D2H,)))
    assert ("HC-LINK-SPEED", uplink.port) in codes(result)
    assert document(result)["accelerators"][0]["uplink_under_load_gt_s"] == 8.0
    assert not [one for one in codes(slow.link(ask("U1", ways=(Way.D2H,)))) if one[0] == "HC-LINK-SPEED"]


def test_refused_policies_are_told_in_the_document(host: Host) -> None:
    data = document(host.link(ask("X4", nodes=(0, 5)), unbound=(0,)))
    by_node = {one["node"]: one for one in data["memory"]}
    assert by_node[5]["placement"] == "local on node 5"
    assert by_node[0]["placement"] is None
    assert by_node[0]["reasons"] == ["bind: policy not applied: EPERM"]


def test_memory_that_could_not_be_registered_is_a_finding_and_no_verdict_on_the_link(host: Host) -> None:
    result = host.link(ask("U2"), lambda flow, batch: 0.28 * host.fair(flow, batch), unregistered=("cuda:4", "cuda:5"))
    assert codes(result) == [("HC-LINK-UNREGISTERED", X4), ("HC-LINK-UNREGISTERED", X5)]
    assert all("locked-memory limit" in one.message for one in result.diagnostics)
    data = document(result)
    assert all(one["expected"] is None for one in data["measures"])
    assert not any(case["low"] for case in data["cases"])
    assert "is not registered" in data["facts"]["/measures/0/expected"]["reason"]
    assert {one["registered_with"] for one in data["memory"]} == {None}


def test_a_budget_that_ends_in_a_case_says_so_at_its_rates(host: Host) -> None:
    asked: list[None] = []

    def stop() -> str | None:
        asked.append(None)
        return "the time budget is used up" if len(asked) > 5 else None

    data = document(host.link(ask("X4", rounds=5), stop=stop))
    assert data["stopped"] == "the time budget is used up"
    assert [one["reason"] for one in data["measures"]] == ["4 of 5 samples: the time budget is used up"]


def test_a_device_whose_address_is_unknown_is_measured_without_expectation_and_says_why(host: Host) -> None:
    data = document(
        host.link(ask(), devices=[Seen("xpu:0", None, reason="torch tells no address of xpu")], speed=lambda f, b: 1e9)
    )
    assert {case["accelerator"] for case in data["cases"]} == {"xpu:0"}
    assert all(one["expected"] is None for one in data["measures"])
    assert data["facts"]["/measures/0/expected"]["reason"] == "torch tells no address of xpu"


# -- what is meant ----------------------------------------------------------------------------------------------------


def test_a_name_is_an_accelerator_an_uplink_an_address_or_a_torch_name(host: Host) -> None:
    everyone = link_targets(host.machine, host.seen)
    for name, wanted in (
        ("X4", ["X4"]), ("x4", ["X4"]), (X4, ["X4"]), ("cuda:4", ["X4"]), ("U2", ["X4", "X5"]),
        (host.uplinks[X4].port, ["X4", "X5"]), (None, [f"X{i}" for i in range(8)]),
    ):  # fmt: skip
        assert [one.name for one in chosen_targets(host.machine, everyone, name)] == wanted
    with pytest.raises(UsageError, match="U9 cannot be loaded") as caught:
        chosen_targets(host.machine, everyone, "U9")
    assert "U3" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="torch does not see it"):
        chosen_targets(host.machine, everyone[:4], "X7")


def test_torch_numbers_do_not_decide_which_accelerator_is_which(host: Host) -> None:
    turned = [Seen(one.name, other.address) for one, other in zip(host.seen, reversed(host.seen), strict=True)]
    assert [(one.name, one.device) for one in link_targets(host.machine, turned)][:2] == [
        ("X0", "cuda:7"),
        ("X1", "cuda:6"),
    ]


def test_local_is_the_own_node_and_all_puts_it_first(host: Host) -> None:
    everyone = link_targets(host.machine, host.seen)
    assert nodes_of_targets(host.machine, everyone, None)[X4] == (5,)
    assert nodes_of_targets(host.machine, everyone, ())[X4] == (5, 0, 1, 2, 3, 4, 6, 7)
    assert nodes_of_targets(host.machine, everyone, (0, 5))[X4] == (5, 0)
    with pytest.raises(UsageError, match="node 12 has no memory"):
        nodes_of_targets(host.machine, everyone, (12,))


def test_an_unknown_node_is_the_only_one_there_is_or_none_never_node_0(tmp_path: Path) -> None:
    vm = Host(tmp_path / "vm", "1n0x-vm")
    stranger = link_targets(vm.machine, [Seen("cuda:0", "0000:09:00.0")])
    assert nodes_of_targets(vm.machine, stranger, None) == {"0000:09:00.0": (0,)}
    many = Host(tmp_path / "many")
    stranger = link_targets(many.machine, [Seen("cuda:0", "0000:09:00.0")])
    assert nodes_of_targets(many.machine, stranger, None) == {"0000:09:00.0": (None,)}
    assert "not among the PCI devices" in (stranger[0].math_reason or "")


def test_nodes_outside_the_cpuset_and_accelerators_own_memory_are_left_out(tmp_path: Path) -> None:
    boxed, device = Host(tmp_path / "a", "cpuset-container"), Host(tmp_path / "b", "device-memory")
    assert set(memory_nodes(boxed.machine)) <= set(boxed.machine.numa.allowed_nodes.value or ())
    own = {node.id for node in device.machine.numa.nodes if node.kind.value == "device-memory"}
    assert own and not own & set(memory_nodes(device.machine))


def test_concurrent_leaves_the_matrix_out(host: Host) -> None:
    found = cases(host.link(ask("U2", nodes=(), concurrent=True, sizes=(MIB, 256 * MIB), ways=(Way.D2H,))))
    assert [(one["case"], one["node"]) for one in found] == [
        ("alone", 4), ("alone", 5), ("alone", 5),  # X4 has node 4 apart from X5
        ("uplink", 5), ("uplink", 5), ("spread", 4), ("spread", 5), ("against", 5), ("against", 5),
    ]  # fmt: skip


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_memory_that_is_not_there_is_refused_with_every_term(host: Host) -> None:
    with pytest.raises(CapacityError) as caught:
        host.link(ask(), memory=HostMemory(total_bytes=4 << 30, available_bytes=2 << 30))
    assert any("8 accelerators" in name for name, _ in caught.value.terms)


def test_an_accelerator_that_is_named_where_there_is_none_is_unsupported(host: Host) -> None:
    with pytest.raises(Unsupported, match="X4 cannot be loaded"):
        nodes_result(ask("X4"), host.machine, "torch sees no accelerator", setting)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (("--size", "0"), 2, "a copy of 0 bytes"),
        (("--size", "12parsec"), 2, "'12parsec' is not a size"),
        (("--direction", "up"), 2, "'up' is no direction"),
        (("--node", "near"), 2, "'near' names no nodes"),
        (("--node", "4095", "--device", "cpu"), 2, "node 4095 has no memory"),
        (("--device", "mtia"), 5, "torch"),
        (("X0", "--device", "cpu"), 5, "X0 cannot be loaded"),
        (("--size", "1MiB", "--device", "cpu"), 2, "--size with --device cpu"),
        (("--direction", "both", "--concurrent", "--device", "cpu"), 2, "--direction, --concurrent with --device cpu"),
        (("--root", "/"), 2, "snapshot"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_code(line: tuple[str, ...], code: int, words: str) -> None:
    ran = call("bench", "link", *line)
    assert ran.code == code, ran.err
    assert words in ran.err


# -- without an accelerator -------------------------------------------------------------------------------------------


def test_without_an_accelerator_it_copies_between_nodes_and_says_so() -> None:
    ran = call("bench", "link", "--device", "cpu", "--seconds", "0.02", "--rounds", "3", "-o", "json")
    assert ran.code in ANY_NOISE, ran.err
    data = ran.json["data"]
    assert data["no_accelerator"] == "--device cpu was given"
    assert data["cases"] == data["accelerators"] == []
    assert len(data["pairs"]) == len(data["measures"]) >= 1
    assert all(pair["bytes_per_s"] > 0 for pair in data["pairs"])
    shown = call("bench", "link", "--device", "cpu", "--seconds", "0.02", "--rounds", "3")
    assert "no accelerator: memory between nodes" in shown.out
    assert "No link was measured" in shown.out


def test_memory_between_nodes_is_no_link_to_topo_and_the_next_step_is_not_to_do_it_again(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    call(
        "bench",
        "link",
        "--device",
        "cpu",
        "--seconds",
        "0.02",
        "--rounds",
        "3",
        "-o",
        "json",
        "--output-file",
        str(path),
    )
    saved = json.loads(path.read_text()) | {"exit_code": 0, "status": "ok"}  # 9: another load on this machine
    path.write_text(json.dumps(saved))
    ran = call("topo", "--measured", str(path))
    assert (ran.code, "it measured memory between nodes, no link" in ran.err) == (2, True), ran.err
    assert "next: topo without --measured, or, where torch sees an accelerator: hicachectl bench link" in ran.err


def test_progress_ends_with_all_of_it_done_and_options_of_links_are_told_to_have_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind() -> Any:
        raise Unsupported("torch sees no accelerator", why="no driver")

    monkeypatch.setattr("hicachectl.prove_load.see_accelerators", blind)
    ran = call(
        "bench", "link", "--size", "1MiB", "--seconds", "0.02", "--rounds", "3", "-o", "json", "--progress", "plain"
    )
    assert ran.code in ANY_NOISE, ran.err
    assert "--size without effect: no link is loaded" in ran.err
    n = len(ran.json["data"]["pairs"])
    assert f"{n}/{n} cases 100 %  done in" in ran.err.splitlines()[-1]


def test_memory_between_nodes_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from hicachectl.app import main\n"
        "sys.argv = ['hicachectl', 'bench', 'link', '--seconds', '0.02', '--rounds', '3', '-o', 'json']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=QUIET, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode in ANY_NOISE, done.stderr
    assert '"torch cannot be loaded' in done.stdout


def test_between_nodes_too_a_budget_is_asked_before_each_sample(host: Host) -> None:
    asked: list[None] = []

    def stop() -> str | None:
        asked.append(None)
        return "no time" if len(asked) > 5 else None  # before the pair, the run that does not count, and three samples

    data = document(
        nodes_result(ask(seconds=0.02, rounds=30, nodes=(0,)), host.machine, "no driver", setting, stop=stop)
    )
    assert [one["reason"] for one in data["measures"]][:1] == ["3 of 30 samples: no time"]
    assert (len(data["pairs"]), data["stopped"]) == (1, "no time")


def test_time_that_is_used_up_is_no_result() -> None:
    ran = call("bench", "link", "--device", "cpu", "--time-budget", "0", "-o", "json")
    assert (ran.code, ran.json["data"]["stopped"]) == (9, "the time budget is used up")

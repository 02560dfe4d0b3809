"""`topo --measured`: what `bench link` measured stands in the place of link math, and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call
from fakes.link_rig import FakeFlow
from link_results import Host, Seen, ask, setting

from hicachectl.bench_link_cases import LinkRate, fit_cases, read_cases
from hicachectl.bench_link_run import nodes_result
from hicachectl.bench_results import read_bench
from hicachectl.context import origin_of
from hicachectl.data_digest import with_digest
from hicachectl.envelope import Result, envelope, unexplained_nulls
from hicachectl.link_targets import link_targets
from hicachectl.topo_measured import with_measured
from hicachectl.tuning.host.facts import known

X4, X5 = "0000:63:00.0", "0000:64:00.0"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host") / "8n8x-4up16")


def strict(host: Host) -> Any:
    """Device to host is half as fast where two write behind one uplink."""

    def speed(flow: FakeFlow, batch: list[FakeFlow]) -> float:
        writers = [one for one in batch if not one.up]
        return host.fair(flow, batch) / (2 if not flow.up and len(writers) > 1 else 1)

    return speed


def save(at: Host, result: Result, path: Path, **changes: Any) -> Path:
    made = json.loads(json.dumps(envelope(result, origin_of(at.root)))) | changes
    path.write_text(json.dumps(made))
    return path


def test_measured_rates_stand_in_the_place_of_link_math_with_their_source(host: Host, tmp_path: Path) -> None:
    file = save(host, host.link(ask("U2"), strict(host)), tmp_path / "link.json")
    ran = call("topo", "--root", str(host.root.path), "--measured", str(file), "-o", "json")
    assert ran.code == 0, ran.err
    data = ran.json["data"]
    assert unexplained_nulls(data) == []
    before = call("topo", "--root", str(host.root.path), "-o", "json").json["data"]
    at = next(i for i, one in enumerate(data["uplinks"]) if X4 in one["accelerators"])
    measured, math = data["uplinks"][at], before["uplinks"][at]
    link = math["capacity_bytes_per_s"]
    assert measured["capacity_bytes_per_s"] == pytest.approx(0.86 * link / 2)  # the lower way, both together
    assert measured["busy_bytes_per_s"] == pytest.approx(0.86 * link / 4)
    fact = data["facts"][f"/uplinks/{at}/capacity_bytes_per_s"]
    assert (fact["confidence"], "bench link of" in fact["source"], "d2h" in fact["source"]) == ("read", True, True)
    assert measured["solo_bytes_per_s"][X4] == pytest.approx(0.86 * link)
    assert [one for i, one in enumerate(data["uplinks"]) if i != at] == [
        one for i, one in enumerate(before["uplinks"]) if i != at
    ]
    assert ran.json["diagnostics"] == call("topo", "--root", str(host.root.path), "-o", "json").json["diagnostics"]


def test_the_screen_says_which_are_measured(host: Host, tmp_path: Path) -> None:
    file = save(host, host.link(ask("U2")), tmp_path / "link.json")
    shown = call("topo", "--root", str(host.root.path), "--measured", str(file)).out
    assert "U2: measured, not link math" in shown
    assert "the others are link math" in shown
    other = save(host, host.link(ask("U2")), tmp_path / "old.json", boot_id="00000000-0000-0000-0000-000000000000")
    assert "another boot" in call("topo", "--root", str(host.root.path), "--measured", str(other)).out


def rates(at: Host, result: Result, path: Path) -> tuple[LinkRate, ...]:
    found = read_bench(save(at, result, path))
    return fit_cases(read_cases(found), found).kept


def test_an_uplink_of_which_not_all_were_loaded_keeps_its_link_math(host: Host, tmp_path: Path) -> None:
    kept = [one for one in rates(host, host.link(ask("U2")), tmp_path / "f.json") if one.accelerator != X5]
    before = host.uplinks[X4]
    (found,) = (one for one in with_measured(host.machine, kept, "x").uplinks if X4 in one.accelerators)
    assert found.capacity_bytes_per_s == before.capacity_bytes_per_s
    assert found.solo_bytes_per_s[X4] != before.solo_bytes_per_s[X4]
    assert found.solo_bytes_per_s[X5] == before.solo_bytes_per_s[X5]
    assert with_measured(host.machine, [], "x") == host.machine


def test_an_accelerator_alone_on_its_uplink_is_its_capacity(tmp_path: Path) -> None:
    one = Host(tmp_path / "domain8", "domain8")
    address = next(uplink.accelerators[0] for uplink in one.machine.uplinks if len(uplink.accelerators) == 1)
    kept = rates(one, one.link(ask(address)), tmp_path / "f.json")
    (found,) = (uplink for uplink in with_measured(one.machine, kept, "x").uplinks if address in uplink.accelerators)
    assert found.capacity_bytes_per_s.value == found.solo_bytes_per_s[address].value
    assert found.capacity_bytes_per_s.source.startswith("x")


def shown(host: Host, file: Path) -> Any:
    return call("topo", "--root", str(host.root.path), "--measured", str(file), "-o", "json")


def test_rates_of_memory_that_is_not_registered_are_refused_or_left_out(host: Host, tmp_path: Path) -> None:
    slow = lambda flow, batch: 0.28 * host.fair(flow, batch)  # noqa: E731
    none = shown(
        host, save(host, host.link(ask("U2"), slow, unregistered=("cuda:4", "cuda:5")), tmp_path / "none.json")
    )
    assert (none.code, "none of its rates says" in none.err, "host memory not registered" in none.err) == (
        2,
        True,
        True,
    )
    ran = shown(host, save(host, host.link(ask("U2"), unregistered=("cuda:5",)), tmp_path / "half.json"))
    assert ran.code == 0
    assert "left out: X5" in ran.err and "host memory not registered" in ran.err
    at = next(i for i, one in enumerate(ran.json["data"]["uplinks"]) if X4 in one["accelerators"])
    facts = ran.json["data"]["facts"]
    assert "bench link" not in facts[f"/uplinks/{at}/capacity_bytes_per_s"]["source"]  # one of its two is missing
    assert "bench link" in facts[f"/uplinks/{at}/solo_bytes_per_s/{X4}"]["source"]
    assert "bench link" not in facts[f"/uplinks/{at}/solo_bytes_per_s/{X5}"]["source"]


def test_small_copies_say_nothing_of_a_link(host: Host, tmp_path: Path) -> None:
    ran = shown(host, save(host, host.link(ask("U2", sizes=(4096,))), tmp_path / "small.json"))
    assert (ran.code, "copies of 4.0 KiB, below 16.0 MiB starting them bounds" in ran.err) == (2, True), ran.err


def test_one_sample_says_nothing_of_a_link(host: Host, tmp_path: Path) -> None:
    file = save(host, host.link(ask("U2", rounds=1)), tmp_path / "one.json", exit_code=0, status="ok")
    ran = shown(host, file)
    assert (ran.code, "fewer than 3 samples" in ran.err) == (2, True), ran.err


def test_where_one_way_is_noisy_the_other_is_not_taken_for_the_lower_of_both(host: Host, tmp_path: Path) -> None:
    made = json.loads(json.dumps(envelope(host.link(ask("U2")), origin_of(host.root))))
    for case, one in zip(made["data"]["cases"], made["data"]["measures"], strict=True):
        if case["case"] == "uplink" and case["direction"] == "d2h":
            middle = one["p50"]
            one["samples"], one["spread"] = [0.2 * middle, middle, 1.2 * middle], 9.9
    (tmp_path / "noisy.json").write_text(json.dumps(made | {"data": with_digest(made["data"])}))
    ran = shown(host, tmp_path / "noisy.json")
    assert ran.code == 0, ran.err
    assert "left out: X4 node 5 uplink 256.0 MiB d2h" in ran.err
    at = next(i for i, one in enumerate(ran.json["data"]["uplinks"]) if X4 in one["accelerators"])
    facts = ran.json["data"]["facts"]
    assert "bench link" not in facts[f"/uplinks/{at}/capacity_bytes_per_s"]["source"]
    assert "bench link" in facts[f"/uplinks/{at}/solo_bytes_per_s/{X4}"]["source"]


def every(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Put values into every case, and a rate into its measure too, so that only its own meaning is wrong."""

    def edit(data: dict[str, Any]) -> None:
        for case, one in zip(data["cases"], data["measures"], strict=True):
            case |= changes
            if isinstance(changes.get("bytes_per_s"), (int, float)):
                one["samples"], one["p50"] = [changes["bytes_per_s"]] * 3, changes["bytes_per_s"]

    return edit


def first_case(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["cases"][0].update(changes)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: [case.pop(name) for case in data["cases"]] and None


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda data: data.pop("cases"), ("data.cases", "None", "a list is expected")),
        (lambda data: data.update(cases="abc"), ("data.cases", "'abc'", "a list is expected")),
        (lambda data: data.update(cases=[1] * len(data["measures"])), ("cases[0]", "1", "an object is expected")),
        (lambda data: data["cases"].pop(), ("cases", "one a measure")),
        (lambda data: data.pop("memory"), ("data.memory", "None", "a list is expected")),
        (without("direction"), ("cases[0].direction", "nothing")),
        (without("size_bytes"), ("cases[0].size_bytes", "nothing")),
        (first_case(direction="up"), ("cases[0].direction", "'up'", "h2d, d2h, both")),
        (first_case(direction="d2h"), ("cases[0].direction", "'d2h'", "h2d_bytes_per_s")),
        (first_case(case="lonely"), ("cases[0].case", "'lonely'", "alone")),
        (first_case(size_bytes=4096), ("cases[0].subject", "4.0 KiB")),
        (first_case(size_bytes=-1), ("cases[0].size_bytes", "-1", "above 0")),
        (first_case(node=3), ("cases[0].subject", "node 3")),
        (first_case(bytes_per_s="fast"), ("cases[0].bytes_per_s", "'fast'", "float")),
        (first_case(bytes_per_s=1e9), ("cases[0].bytes_per_s", "1000000000.0", "measures[0].p50")),
        (first_case(bytes_per_s=None), ("cases[0].bytes_per_s", "None", "measures[0].p50")),
        (every(bytes_per_s=0), ("cases[0].bytes_per_s", "0.0", "above 0")),
        (every(bytes_per_s=1e15), ("cases[3].bytes_per_s", "1e+15", "link math of 0000:63:00.0 is 3.15077e+10")),
        (every(bytes_per_s=31e9), ("the sum of cases[].bytes_per_s of U2", "link math of")),
    ],
)
def test_a_case_that_cannot_be_is_refused_with_its_field_and_both_values(
    host: Host, tmp_path: Path, edit: Callable[[dict[str, Any]], None], words: tuple[str, ...]
) -> None:
    made = json.loads(json.dumps(envelope(host.link(ask("U2")), origin_of(host.root))))
    edit(made["data"])
    (tmp_path / "link.json").write_text(json.dumps(made | {"data": with_digest(made["data"])}))
    ran = shown(host, tmp_path / "link.json")
    assert ran.code == 2, ran.err
    for word in (str(tmp_path / "link.json"), *words):
        assert word in ran.err, ran.err


@pytest.mark.parametrize("rate", [-5e9, float("nan"), 1e300])
def test_a_rate_that_is_none_is_refused(host: Host, tmp_path: Path, rate: float) -> None:
    made = json.loads(json.dumps(envelope(host.link(ask("U2")), origin_of(host.root))))
    every(bytes_per_s=rate)(made["data"])
    (tmp_path / "link.json").write_text(json.dumps(made))
    ran = shown(host, tmp_path / "link.json")
    assert ran.code == 2, ran.err
    assert str(tmp_path / "link.json") in ran.err


def test_files_of_other_hosts_and_without_links_are_refused(host: Host, tmp_path: Path) -> None:
    root = str(host.root.path)
    other = save(host, host.link(ask("U2")), tmp_path / "other.json", host="elsewhere")
    none = save(
        host, nodes_result(ask(seconds=0.02, rounds=3, nodes=(0,)), host.machine, "no driver", setting), tmp_path / "none.json",
        exit_code=0, status="ok",
    )  # fmt: skip
    for path, words in (
        (other, "measured on elsewhere, this is"),
        (none, "no link"),
        (tmp_path / "gone.json", "cannot read"),
    ):
        ran = call("topo", "--root", root, "--measured", str(path))
        assert (ran.code, words in ran.err) == (2, True), ran.err
    lost = call("topo", "--measured", str(other), "matrix", "--root", root)
    assert (lost.code, "--measured is an option of topo" in lost.err) == (2, True)


def test_in_a_virtual_machine_the_accelerators_own_end_is_believed_at_its_top_speed(host: Host) -> None:
    card = next(device for device in host.machine.devices if device.address == X4)
    alone = replace(host.machine, uplinks=())
    seen = [Seen("cuda:0", X4)]
    (target,) = link_targets(alone, seen)
    assert target.own_bytes_per_s == pytest.approx(31.5e9, rel=0.01)
    assert "own end" in (target.math_source or "")
    idle = replace(card, link=replace(card.link, speed_now_gt_s=known(2.5, "x")))
    (target,) = link_targets(replace(alone, devices=(idle,)), seen)
    assert target.own_bytes_per_s is None
    assert "2.5 of 16 GT/s" in (target.math_reason or "")

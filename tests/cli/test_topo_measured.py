"""`topo --measured`: what `bench link` measured stands in the place of link math, and of nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import call
from fakes.link_rig import FakeFlow
from link_results import Host, Seen, ask, document, setting

from hicachectl.bench_link_run import nodes_result
from hicachectl.context import origin_of
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


def test_an_uplink_of_which_not_all_were_loaded_keeps_its_link_math(host: Host) -> None:
    cases = document(host.link(ask("U2")))["cases"]
    kept = [case for case in cases if case["accelerator"] != X5]
    before = host.uplinks[X4]
    (found,) = (one for one in with_measured(host.machine, kept, "x").uplinks if X4 in one.accelerators)
    assert found.capacity_bytes_per_s == before.capacity_bytes_per_s
    assert found.solo_bytes_per_s[X4] != before.solo_bytes_per_s[X4]
    assert found.solo_bytes_per_s[X5] == before.solo_bytes_per_s[X5]
    assert with_measured(host.machine, [], "x") == host.machine


def test_an_accelerator_alone_on_its_uplink_is_its_capacity(tmp_path: Path) -> None:
    one = Host(tmp_path / "domain8", "domain8")
    address = next(uplink.accelerators[0] for uplink in one.machine.uplinks if len(uplink.accelerators) == 1)
    cases = document(one.link(ask(address)))["cases"]
    (found,) = (uplink for uplink in with_measured(one.machine, cases, "x").uplinks if address in uplink.accelerators)
    assert found.capacity_bytes_per_s.value == found.solo_bytes_per_s[address].value
    assert found.capacity_bytes_per_s.source.startswith("x")


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

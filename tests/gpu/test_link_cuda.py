"""`bench link` and the load of --prove on CUDA devices: which device is which, and rates that a link can have."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
import torch

from hicachectl.errors import ExitCode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
MIB = 1 << 20


def test_every_device_has_an_address_of_its_own() -> None:
    from hicachectl.runtime.transfer.accelerators import find_accelerators

    found = find_accelerators()
    assert len(found) == torch.cuda.device_count()
    addresses = [one.address or "" for one in found]
    assert all(re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) for address in addresses)
    assert len(set(addresses)) == len(addresses)


def test_copies_that_run_together_move_what_they_say_and_leave_nothing() -> None:
    from hicachectl.link_room import REGION_BYTES
    from hicachectl.runtime.memory.live import LIVE
    from hicachectl.runtime.probes.flows import run_together
    from hicachectl.runtime.transfer.link_rig import TorchRig

    with closing(TorchRig(64 * MIB, region_bytes=REGION_BYTES)) as rig:
        up, down = rig.flow("cuda:0", None, 64 * MIB, up=True), rig.flow("cuda:0", None, 64 * MIB, up=False)
        assert rig.memory("cuda:0", None).registered_with is not None
        alone = run_together([up], 0.2)[0].bytes_per_s
        both = run_together([up, down], 0.2)
        assert 1e9 < alone < 1e12
        assert sum(rate.bytes_per_s for rate in both) > alone / 2
    assert len(LIVE) == 0


def test_the_command_measures_every_case_and_registers_its_memory() -> None:
    for library in ("typer", "rich", "pydantic", "yaml"):
        pytest.importorskip(library, reason=f"the command line needs {library}")
    from cli_runner import call

    done = call("bench", "link", "--seconds", "0.1", "--rounds", "3", "-o", "json")
    assert done.code in (ExitCode.OK, ExitCode.NO_RESULT), done.err
    data = done.json["data"]
    assert data["no_accelerator"] is None
    assert len(data["accelerators"]) == torch.cuda.device_count()
    assert all(case["bytes_per_s"] > 0 for case in data["cases"])
    assert all(one["registered_with"] for one in data["memory"])
    large = {
        (case["accelerator"], case["direction"]): case["bytes_per_s"]
        for case in data["cases"]
        if case["case"] == "alone"
    }
    for address in {one["address"] for one in data["accelerators"]}:
        assert large[address, "both"] > large[address, "h2d"]


def test_the_load_of_prove_writes_from_every_accelerator_of_an_uplink() -> None:
    for library in ("typer", "rich", "pydantic", "yaml"):
        pytest.importorskip(library, reason=f"the command line needs {library}")
    from fakes.items import item

    from hicachectl.prove_load import D2H_CONCURRENT, Loads, see_accelerators
    from hicachectl.tuning.host.root import HostRoot

    address = see_accelerators()[0].address
    loads = Loads(HostRoot())
    wanted = item("pcie.ido", probe=D2H_CONCURRENT, subject=address)
    assert loads.refusal(wanted) is None
    with closing(loads.probes[D2H_CONCURRENT]()) as probe:
        first, second = probe.run([wanted]), probe.run([wanted])
    assert address in first
    assert set(first) == set(second)
    assert all(rate > 1e9 for rate in first.values())

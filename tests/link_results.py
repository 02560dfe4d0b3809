"""Results of `bench link` on recorded hosts with accelerators that move no bytes, for tests of the document and the screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.link_rig import FakeFlow, FakeRig, Speed
from hosts.builder import write_shape

from hicachectl.bench_data import Setting
from hicachectl.bench_link_run import LinkAsk, links_result
from hicachectl.envelope import Result, plain, unexplained_nulls
from hicachectl.runtime.memory.budget import HostMemory
from hicachectl.runtime.probes.link_math import Way
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot

MIB = 1 << 20
ROOMY = HostMemory(total_bytes=1 << 40, available_bytes=1 << 39)


@dataclass(frozen=True)
class Seen:
    """What torch says of a device."""

    name: str
    address: str | None
    model: str | None = "R300"
    reason: str | None = None


def setting(method: str) -> Setting:
    return Setting(
        method, 3, "cuda:0", "8 seen by torch", "R300", None, None, "2.11.0", "Linux 6.18.0", "Hygon C86", "256 usable of 256",
        "1500.0 GiB", {"driver": "no /proc/driver/nvidia/version", "cuda": "this torch was built without CUDA"},
    )  # fmt: skip


def ask(target: str | None = None, **changes: Any) -> LinkAsk:
    given: dict[str, Any] = {
        "target": target, "nodes": None, "sizes": (256 * MIB,), "ways": tuple(Way), "concurrent": False, "seconds": 0.1, "rounds": 3,
    }  # fmt: skip
    return LinkAsk(**(given | changes))


class Host:
    """A recorded host whose accelerators torch sees under the numbers of their order, or as `seen` says."""

    def __init__(self, folder: Path, shape: str = "8n8x-4up16") -> None:
        write_shape(shape, folder)
        self.root = HostRoot(folder, name=shape)
        self.machine: Machine = read_machine(self.root)
        cards = [device.address for device in self.machine.devices if device.kind == "accelerator"]
        self.seen: list[Any] = [Seen(f"cuda:{at}", address) for at, address in enumerate(cards)]
        self.uplinks = {address: uplink for uplink in self.machine.uplinks for address in uplink.accelerators}

    def fair(self, flow: FakeFlow, batch: list[FakeFlow]) -> float:
        """86 % of the uplink, shared by those behind it that go the same way."""
        address = {one.name: one.address for one in self.seen}
        uplink = self.uplinks[address[flow.device]]
        same = [one for one in batch if self.uplinks[address[one.device]] is uplink and one.up == flow.up]
        return 0.86 * (uplink.capacity_bytes_per_s.value or 30e9) / len(same)

    def link(self, asked: LinkAsk, speed: Speed | None = None, **more: Any) -> Result:
        memory = more.pop("memory", ROOMY)
        rig = FakeRig(speed or self.fair, unbound=more.pop("unbound", ()), unregistered=more.pop("unregistered", ()))
        result = links_result(
            asked, self.machine, more.pop("devices", self.seen), setting, root=self.root, rig=lambda most: rig,
            host=lambda: memory, **more,
        )  # fmt: skip
        assert not rig.held
        return result


def document(result: Result) -> dict[str, Any]:
    """The document's data as JSON has it; every null must have its reason."""
    data = drawn(result)
    assert unexplained_nulls(data) == []
    return data


def drawn(result: Result) -> dict[str, Any]:
    """What the command gives to the screen: the data."""
    data: dict[str, Any] = json.loads(json.dumps(plain(result.data)))
    return data


def codes(result: Result) -> Sequence[tuple[str, str | None]]:
    return [(one.code, one.subject) for one in result.diagnostics]

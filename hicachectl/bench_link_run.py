"""What `bench link` does: look at the host, load the links or else the memory between nodes, and put the document together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hicachectl.bench_data import Costs, Setting, bench_result, not_answered
from hicachectl.bench_link_data import (
    link_details,
    link_headline,
    link_measures,
    link_reasons,
    node_details,
    node_measures,
    node_reasons,
)
from hicachectl.envelope import Diagnostic, Result, Severity
from hicachectl.errors import Unsupported, UsageError
from hicachectl.link_room import REGION_BYTES, RESERVE_BYTES, require_link_room
from hicachectl.link_targets import chosen_targets, link_targets, memory_nodes
from hicachectl.memory_room import host_memory
from hicachectl.prove_load import torch_rig
from hicachectl.runtime.memory.budget import Ask, HostMemory, ledger
from hicachectl.runtime.probes.link import METHOD, Rig, run_link_probe
from hicachectl.runtime.probes.link_cases import LinkCase, link_cases, one_to_one
from hicachectl.runtime.probes.link_math import LinkTarget, Way
from hicachectl.runtime.probes.link_verdict import judge_memory, judge_rows
from hicachectl.tuning.host.pci import parse_link_speed
from hicachectl.tuning.host.root import HostRoot
from hicachectl.units import format_bytes

if TYPE_CHECKING:
    from hicachectl.tuning.host.model import Machine

__all__ = ["LinkAsk", "links_result", "nodes_of_targets", "nodes_result"]

_AGAIN = "give more --rounds or a larger --seconds, on a quiet machine"


@dataclass(frozen=True, slots=True)
class LinkAsk:
    """What is asked for. `target` is a display name or an address (None: all), `nodes` None: each accelerator's own."""

    target: str | None
    nodes: tuple[int, ...] | None
    sizes: tuple[int, ...]
    ways: tuple[Way, ...]
    concurrent: bool
    seconds: float
    rounds: int


def links_result(
    ask: LinkAsk,
    machine: Machine,
    devices: Sequence[Any],
    setting: Callable[[str], Setting],
    *,
    root: HostRoot,
    rig: Callable[[int], Rig] = torch_rig,
    host: Callable[[], HostMemory] = host_memory,
    told: Callable[[int, int, str], None] = lambda number, total, text: None,
    stop: Callable[[], str | None] = lambda: None,
) -> Result:
    """Load the links of the asked accelerators and return the document. Takes memory and gives it back; changes nothing.

    `devices` are torch's, `setting` makes the document's setting of the method. Raises UsageError for a target or node that is not
    there, CapacityError with its terms where the memory is not, Vanished when a device goes away.
    """
    everyone = link_targets(machine, devices)
    targets = chosen_targets(machine, everyone, ask.target)
    nodes = nodes_of_targets(machine, everyone, ask.nodes)
    spread = one_to_one(everyone, memory_nodes(machine)) if not ask.nodes else None
    cases = link_cases(
        targets, nodes, ways=ask.ways, sizes=ask.sizes, concurrent_only=ask.concurrent, among=everyone, spread=spread
    )
    most = max(ask.sizes)
    loaded = {one.target.address for case in cases for one in case.busy}
    require_link_room(host(), len(loaded), most, "give a smaller --size, or name one accelerator")
    ports = {uplink.id: uplink for uplink in machine.uplinks}
    speeds: dict[str, float] = {}

    def look(case: LinkCase) -> None:
        for one in case.busy:
            uplink = ports.get(one.target.uplink or "")
            if uplink is None:
                continue
            now = root.text(f"/sys/bus/pci/devices/{uplink.port}/current_link_speed").then(parse_link_speed).value
            if now is not None:
                speeds[uplink.id] = max(now, speeds.get(uplink.id, 0.0))

    with closing(rig(most)) as made:
        probe = run_link_probe(
            cases, made, seconds=ask.seconds, rounds=ask.rounds, under_load=look, stop=stop,
            told=lambda number, case: told(number, len(cases), _words(case)),
        )  # fmt: skip
    measures = link_measures(probe)
    noisy, code = not_answered(link_headline(probe, measures), _AGAIN)
    found = [
        *(
            Diagnostic(one.code, Severity.WARN, one.message, subject=one.subject, hint=one.hint, source="bench link")
            for one in (*judge_memory(probe), *judge_rows(probe.sound_rows))
        ),
        *_slow_ports(machine, speeds),
        *noisy,
    ]
    models = {device.name: device.model for device in devices}
    return bench_result(
        "link", setting(METHOD), measures, Costs(), link_details(probe, targets, models, speeds),
        diagnostics=found, exit_code=code, reasons=link_reasons(probe, targets),
    )  # fmt: skip


def nodes_result(
    ask: LinkAsk,
    machine: Machine,
    why: str,
    setting: Callable[[str], Setting],
    *,
    host: Callable[[], HostMemory] = host_memory,
    told: Callable[[int, int, str], None] = lambda number, total, text: None,
    stop: Callable[[], str | None] = lambda: None,
) -> Result:
    """Measure memory between nodes instead, because of `why`, and return the document. Takes memory and gives it back."""
    from hicachectl.runtime.probes.node_memory import NODE_METHOD, run_node_probe

    if ask.target is not None:
        raise Unsupported(
            f"{ask.target} cannot be loaded", where=ask.target, why=why, hint="run it where torch sees it"
        )
    ledger(host(), [Ask("memory to copy", 2 * REGION_BYTES)], reserve_bytes=RESERVE_BYTES).require("free some memory")
    memory = _known_nodes(machine, ask.nodes) if ask.nodes is not None else memory_nodes(machine)
    cpus = _cpus_of(machine)
    total = max(1, len(memory) * len([node for node in cpus if cpus[node]]))
    stopped: list[str] = []

    def asked() -> str | None:
        word = stop()
        if word is not None:
            stopped.append(word)
        return word

    rows = run_node_probe(
        cpus, memory, seconds=ask.seconds, rounds=ask.rounds, region_bytes=REGION_BYTES, stop=asked,
        told=lambda number, i, j: told(number, total, f"CPUs of node {i}, memory of node {j}"),
    )  # fmt: skip
    measures = node_measures(rows)
    findings, code = not_answered(measures, _AGAIN)
    distances = {
        (node.id, other): distance
        for node in machine.numa.nodes
        for other, distance in (node.distances.value or {}).items()
    }
    details = node_details(rows, why, ask.seconds, stopped[0] if stopped else None, distances)
    return bench_result(
        "link", setting(NODE_METHOD), measures, Costs(), details, diagnostics=findings, exit_code=code, reasons=node_reasons(),
    )  # fmt: skip


def nodes_of_targets(
    machine: Machine, targets: Sequence[LinkTarget], asked: tuple[int, ...] | None
) -> dict[str, tuple[int | None, ...]]:
    """Return the nodes each target is measured with, its own first. Pure. Raises UsageError for a node that may not be used.

    `asked` None: its own; where that is not known the only node there is, else memory from anywhere.
    """
    usable = memory_nodes(machine)
    if asked is not None:
        nodes = _known_nodes(machine, asked)
        return {
            target.address: tuple(sorted(nodes, key=lambda node: (node != target.own_node, node))) for target in targets
        }
    only = usable[0] if len(usable) == 1 else None
    return {target.address: (target.own_node if target.own_node in usable else only,) for target in targets}


def _known_nodes(machine: Machine, asked: tuple[int, ...]) -> tuple[int, ...]:
    """The asked nodes, all for none named. Raises UsageError for one that may not be used."""
    usable = memory_nodes(machine)
    unknown = sorted(set(asked) - set(usable))
    if unknown:
        raise UsageError(
            f"node {unknown[0]} has no memory that this process may use", where="--node",
            why=f"usable are {', '.join(map(str, usable)) or 'none'} (online, with memory, in Mems_allowed_list)",
            hint="--node all",
        )  # fmt: skip
    return asked or usable


def _cpus_of(machine: Machine) -> Mapping[int, tuple[int, ...]]:
    allowed = machine.numa.allowed_cpus.value
    return {
        node.id: tuple(cpu for cpu in node.cpus.value or () if allowed is None or cpu in allowed)
        for node in machine.numa.nodes
        if node.online.value is not False
    }


def _slow_ports(machine: Machine, speeds: Mapping[str, float]) -> list[Diagnostic]:
    """Links that stay below their top speed while data moves: what topo could only ask about."""
    found = []
    for uplink in machine.uplinks:
        now, top = speeds.get(uplink.id), uplink.link.speed_max_gt_s.value
        if now is not None and top is not None and now < top:
            found.append(
                Diagnostic(
                    "HC-LINK-SPEED",
                    Severity.WARN,
                    f"{uplink.id} is at {now:g} of {top:g} GT/s while data moves: it is not idle, it trained low",
                    subject=uplink.port,
                    hint=f"sudo lspci -vvs {uplink.port}",
                    source=f"/sys/bus/pci/devices/{uplink.port}/current_link_speed",
                )
            )
    return found


def _words(case: LinkCase) -> str:
    names = " ".join(one.target.name for one in case.rows)
    first = case.rows[0]
    node = "" if first.node is None else f" node {first.node}"
    return f"{case.scenario.value} {names}{node} {first.way.value} {format_bytes(case.size_bytes)}"

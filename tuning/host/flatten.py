"""A machine as the flat `data` of a document: plain values under stable keys, and where each came from. Pure.

`data.facts` maps the JSON pointer of every value that was read to its source and confidence, and of every null to the
reason. `nodes`, `devices`, `uplinks`, `memory` keep their keys; new ones may join them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import ConfigSpace, Host, Machine, Memory, Node, Numa, PciDevice, Uplink
from hicachectl.tuning.host.places import field_names, names_of
from hicachectl.tuning.host.privacy import command_line

__all__ = ["flatten"]

Data = dict[str, Any]

_NOTHING = {"node": "of the whole host", "link": "no link registers decoded"}
"""Why a field that is no fact is null."""
_CONFIG_ABOVE = {"ido_request": ("ido", "request"), "ido_completion": ("ido", "completion")}
"""Fields of the config space that have a place of their own in a device."""
_PLACES = ("express_at", "acs_at")
"""Where registers lie is nothing to report."""


def flatten(machine: Machine, findings: Iterable[object] = (), placements: Iterable[object] = ()) -> Data:
    """Return the `data` of `topo -o json`: host, numa, nodes, devices, uplinks, memory, placement, findings, facts. Pure.

    `findings` are dataclasses with the fields of a diagnostic, `placements` those of `tuning/placement.py`.
    """
    flat = _Flat()
    data = {
        "host": _host(flat, machine.host),
        "numa": _numa(flat, machine.numa),
        "nodes": [_node(flat, node, f"/nodes/{i}") for i, node in enumerate(machine.numa.nodes)],
        "devices": [_device(flat, device, f"/devices/{i}") for i, device in enumerate(machine.devices)],
        "uplinks": [_uplink(flat, uplink, f"/uplinks/{i}") for i, uplink in enumerate(machine.uplinks)],
        "memory": _memory(flat, machine.memory),
        "placement": [_placement(placement) for placement in placements],
        "findings": [_finding(finding) for finding in findings],
    }
    flat.lists(machine.numa.listed, "")
    flat.lists(machine.listed, "")
    data["facts"] = flat.facts
    return data


class _Flat:
    """Collects `facts` while values go out flat."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, str]] = {}

    def fact(self, found: Fact[Any], pointer: str) -> Any:
        """Return the plain value and note where it came from."""
        note = {"confidence": found.confidence.value}
        if found.source:
            note["source"] = found.source
        if found.value is None:
            note["reason"] = found.reason or "unknown"
        self.facts[pointer] = note
        return _plain(found.value)

    def part(self, thing: Any, pointer: str, *, without: Sequence[str] = ()) -> Data:
        """Return the fields of a dataclass as an object, nested ones included."""
        return {
            name: self.any(getattr(thing, name), f"{pointer}/{name}")
            for name in field_names(thing)
            if name not in without
        }

    def any(self, value: Any, pointer: str) -> Any:
        """Return a fact, a dataclass, a mapping or a list of them as plain data."""
        if isinstance(value, Fact):
            return self.fact(value, pointer)
        if value is None:
            self.null(pointer, "", _NOTHING.get(pointer.rpartition("/")[2], "nothing there"))
            return None
        if is_dataclass(value) and not isinstance(value, type):
            made = self.part(value, pointer, without=("listed",))
            self.lists(getattr(value, "listed", {}), pointer)
            return made
        if isinstance(value, Mapping):
            return {str(key): self.any(item, f"{pointer}/{_escaped(str(key))}") for key, item in value.items()}
        if isinstance(value, tuple):
            return [self.any(item, f"{pointer}/{i}") for i, item in enumerate(value)]
        return _plain(value)

    def lists(self, listed: Mapping[str, Fact[int]], pointer: str) -> None:
        """Note of each list whether it could be read; an empty one without a reason is really empty."""
        for name, found in listed.items():
            self.fact(found, f"{pointer}/{_escaped(name)}")

    def null(self, pointer: str, source: str, reason: str) -> None:
        """Note a null that stands for a whole object."""
        self.facts[pointer] = {"confidence": "read", "reason": reason} | ({"source": source} if source else {})


def _host(flat: _Flat, host: Host) -> Data:
    made: Data = flat.any(host, "/host")
    if isinstance(made.get("command_line"), str):
        made["command_line"] = command_line(made["command_line"])
    return made


def _numa(flat: _Flat, numa: Numa) -> Data:
    return flat.part(numa, "/numa", without=("nodes", "listed"))


def _node(flat: _Flat, node: Node, pointer: str) -> Data:
    made: Data = flat.any(node, pointer)
    return made


def _device(flat: _Flat, device: PciDevice, pointer: str) -> Data:
    made: Data = {"address": device.address, "class": flat.fact(device.class_code, f"{pointer}/class")}
    for name in ("vendor", "device", "revision", "subsystem", "name"):
        made[name] = flat.fact(getattr(device, name), f"{pointer}/{name}")
    made |= {"kind": device.kind, "kind_rule": device.kind_rule}
    for name in ("node", "node_fallback", "local_cpus", "driver"):
        made[name] = flat.fact(getattr(device, name), f"{pointer}/{name}")
    made["link"] = flat.any(device.link, f"{pointer}/link")
    made["ido"] = {}
    for name, (group, key) in _CONFIG_ABOVE.items():
        made[group][key] = flat.fact(getattr(device.config, name), f"{pointer}/{group}/{key}")
    made["relaxed_ordering"] = flat.fact(device.config.relaxed_ordering, f"{pointer}/relaxed_ordering")
    made["path"] = list(device.path)
    seen = {"class_code", *made}
    rest = [
        name for name in names_of(PciDevice) if name not in seen and name not in ("config", "path", "parent", "listed")
    ]
    for name in rest:
        made[name] = flat.any(getattr(device, name), f"{pointer}/{name}")
    made["parent"] = device.parent
    if device.parent is None:
        flat.null(f"{pointer}/parent", "/sys/bus/pci/devices", "on a root bus")
    made["config"] = _config(flat, device.config, f"{pointer}/config")
    flat.lists(getattr(device, "listed", {}), pointer)
    return made


def _config(flat: _Flat, config: ConfigSpace, pointer: str) -> Data | None:
    """The config space, or null with one reason where nothing of it could be decoded."""
    elsewhere = {*_CONFIG_ABOVE, *_PLACES, "relaxed_ordering"}
    inside = [name for name in names_of(ConfigSpace) if name not in elsewhere]
    decoded = [getattr(config, name) for name in inside if name != "readable_bytes"]
    facts = [found for found in decoded if isinstance(found, Fact)]
    if all(found.value is None for found in facts) and len({found.reason for found in facts}) == 1:
        flat.null(pointer, facts[0].source, facts[0].reason or "unknown")
        return None
    return {name: flat.any(getattr(config, name), f"{pointer}/{name}") for name in inside}


def _uplink(flat: _Flat, uplink: Uplink, pointer: str) -> Data:
    made: Data = flat.any(uplink, pointer)
    return made


def _memory(flat: _Flat, memory: Memory) -> Data:
    made: Data = flat.any(memory, "/memory")
    return made


def _finding(finding: object) -> Data:
    return {
        name: _plain(getattr(finding, name)) for name in ("code", "severity", "subject", "message", "hint", "source")
    }


def _placement(placement: Any) -> Data:
    names = ("policy", "pool_bytes", "bytes_by_node", "reached_bytes", "installed_bytes", "costs")
    made = {name: _plain(getattr(placement, name)) for name in names}
    if placement.installed_bytes is None:
        made["installed_bytes_reason"] = placement.installed_reason
    made["usable"] = placement.refused is None
    return made if placement.refused is None else made | {"reason": placement.refused}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value

"""No file that goes missing or is refused makes a claim stronger: numbers shrink or become null, findings go with a null of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hosts.builder import write_shape
from hosts.shapes import SHAPES

from hicachectl.render.topo_words import ido
from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.matrix import find_matrix
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot, Touched
from hicachectl.tuning.host.uplinks import is_unidentified
from hicachectl.tuning.placement import placements

REASONS = ("no such file", "permission denied")


class Remembering(HostRoot):
    """A recording that reads each path once, of which one file cannot be read for `lost`: (path, reason)."""

    lost: tuple[str, str] = ("", "")

    def __init__(self, path: Path) -> None:
        super().__init__(path, name="recording")
        self._known: dict[tuple[Any, ...], Any] = {}

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        return self._once(path, lambda: super(Remembering, self).data(path, n_bytes), "data", n_bytes)

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        return self._once(path, lambda: super(Remembering, self).piece(path, offset, n_bytes), "piece", offset, n_bytes)

    def link(self, path: str) -> Fact[str]:
        return self._once(path, lambda: super(Remembering, self).link(path), "link")

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        found = self._once(path, lambda: super(Remembering, self).names(path), "names")
        folder, _, name = self.lost[0].rpartition("/")
        real = self._once("", lambda: self._real(path), "real", path) if self.lost[1] == REASONS[0] else ""
        if real and real == self._once("", lambda: self._real(folder), "real", folder):
            return found.then(lambda names: tuple(one for one in names if one != name))
        return found

    def exists(self, path: str) -> bool:
        return path != self.lost[0] and bool(self._once(path, lambda: super(Remembering, self).exists(path), "exists"))

    def _once(self, path: str, read: Any, *what: Any) -> Any:
        if path and path == self.lost[0]:
            return unknown(path, self.lost[1])
        key = (*what, path)
        if key not in self._known:
            self._known[key] = read()
        return self._known[key]


@dataclass(frozen=True)
class Claims:
    """What an operator takes from one look."""

    machine: Machine
    numbers: Mapping[tuple[str, str], Fact[Any]]
    """What is stronger when it is larger, by place."""
    ratios: Mapping[tuple[str, str], Fact[Any]]
    """What is stronger when it is smaller."""
    bits: Mapping[str, str]
    words: Mapping[tuple[str, str], Any]
    findings: Mapping[tuple[str, str], str]
    nulls: frozenset[str]


def claims(machine: Machine) -> Claims:
    """Collect the claims of a machine, by accelerator: the names of uplinks may change."""
    numbers: dict[tuple[str, str], Fact[Any]] = {}
    ratios: dict[tuple[str, str], Fact[Any]] = {}
    bits: dict[str, str] = {}
    devices = {device.address: device for device in machine.devices}
    for uplink in machine.uplinks:
        for card in uplink.accelerators:
            numbers |= {
                (card, "capacity"): uplink.capacity_bytes_per_s, (card, "busy"): uplink.busy_bytes_per_s,
                (card, "present"): uplink.present_bytes_per_s, (card, "solo"): uplink.solo_bytes_per_s[card],
                (uplink.port, "top speed"): uplink.link.speed_max_gt_s, (uplink.port, "top width"): uplink.link.width_max,
            }  # fmt: skip
            ratios[card, "oversubscription"] = uplink.oversubscription
            strangers = sum(is_unidentified(devices[one]) for one in uplink.shared_by)
            bits[card] = ido([devices[one].config for one in uplink.accelerators], strangers)
    matrix = find_matrix(machine)
    words = {(pair.accelerator, str(pair.to)): pair.path_class.value for pair in matrix.to_nodes}
    words |= {
        (pair.accelerator, f"{pair.to}"): pair.vendor_word.value for pair in matrix.to_accelerators if pair.vendor_word
    }
    facts = flatten(machine)["facts"]
    return Claims(
        machine, numbers, ratios, bits, words,
        {(finding.code, finding.subject): finding.message for finding in judge(machine)},
        frozenset(note.get("source", "") for note in facts.values() if "reason" in note),
    )  # fmt: skip


def whole(name: str, folder: Path) -> tuple[Remembering, Claims, tuple[str, ...]]:
    """Read a host once, and list the files that the readers read, of many alike the first and last six."""
    write_shape(name, folder)
    root = Remembering(folder)
    before = claims(read_machine(root))
    alike: dict[str, list[str]] = {}
    for path in sorted(root.touched.files):
        if counts(name, path):
            alike.setdefault(re.sub(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+", "", path), []).append(path)
    return root, before, tuple(path for paths in alike.values() for path in dict.fromkeys((*paths[:6], *paths[-6:])))


def counts(name: str, path: str) -> bool:
    """Whether a file is left out in turn.

    Not where other files then stand in: without a runtime status the registers are read, and without link files the link
    registers speak, which say something else on odd-links alone.
    """
    return not path.endswith("/power/runtime_status") and not (name == "odd-links" and "/current_link_" in path)


def stronger(before: Claims, after: Claims, path: str) -> Iterator[str]:
    """Yield the claims of `after` that a file less cannot justify."""
    for place, fact in after.numbers.items():
        old = before.numbers.get(place)
        if fact.value is not None and old is not None and (old.value is None or fact.value > old.value * (1 + 1e-9)):
            yield f"{place}: {old.value} became {fact.value}"
    for place, fact in after.ratios.items():
        old = before.ratios.get(place)
        if fact.value is not None and old is not None and (old.value is None or fact.value < old.value * (1 - 1e-9)):
            yield f"{place}: {old.value} became {fact.value}"
    for card, text in after.bits.items():
        if text != before.bits.get(card) and "?" not in text and "unread" not in text:
            yield f"bits of {card}: {before.bits.get(card)} became {text}"
    for pair, word in after.words.items():
        if word is not None and word != before.words.get(pair):
            yield f"path of {pair}: {before.words.get(pair)} became {word}"
    if not any(source.startswith(path) or path in source for source in after.nulls):
        for code, subject in before.findings.keys() - after.findings.keys():
            yield f"{code} of {subject} went without a word"
    yield from placed(before.machine, after.machine)


def placed(before: Machine, after: Machine) -> Iterator[str]:
    """Pools that the whole host would not have held, without a word of what is not known."""
    node = {one.id: one for one in before.numa.nodes}
    allowed = before.numa.allowed_nodes.value
    room = before.memory.cgroup.memory_room_bytes.value
    for one in placements(after):
        if one.refused is not None or one.unknown:
            continue
        for ident, n_bytes in one.bytes_by_node.items():
            free = node[ident].memory_available_bytes.value or node[ident].memory_free_bytes.value or 0
            if node[ident].kind.value != "memory" or (allowed is not None and ident not in allowed):
                yield f"{one.policy.value}: node {ident} holds no pool"
            elif n_bytes > free:
                yield f"{one.policy.value}: {n_bytes} of {free} bytes on node {ident}"
        if room is not None and one.pool_bytes > room:
            yield f"{one.policy.value}: {one.pool_bytes} of {room} bytes in the control group"


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_that_cannot_be_read_makes_no_claim_stronger(name: str, tmp_path: Path) -> None:
    root, before, paths = whole(name, tmp_path / name)
    wrong = []
    for reason, path in product(REASONS, paths):
        if path.endswith("/memory.max") and reason == REASONS[0]:
            continue  # the root group has no such file: no limit
        root.lost, root.touched = (path, reason), Touched()
        root._folders.clear()
        wrong += [f"{reason}: {path}: {what}" for what in stronger(before, claims(read_machine(root)), path)]
    assert wrong == []

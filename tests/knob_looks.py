"""A look at a host as tune takes it, for tests of knobs: from a made-up root, or from values without any file.

`look(tmp_path, spec, wants("thp.enabled=madvise"))` writes and reads a root; `seen(machine(), {path: "word"})` is a look of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosts.builder import build_root
from hosts.spec import GIB, HostSpec, NodeSpec, distances

from hicachectl.tuning.access import read_doors, read_target
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.facts import known
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.knobs.table import MEMORY_KNOBS
from hicachectl.tuning.owners import read_owners
from hicachectl.tuning.sight import Door, Sight
from hicachectl.tuning.target import Method, Target

__all__ = ["DEFAULTS", "THP", "items", "look", "one", "seen", "small", "wants"]

THP = "/sys/kernel/mm/transparent_hugepage"
DEFAULTS = {
    "thp.size.2048kB": "inherit", "thp.enabled": "madvise", "thp.defrag": "auto", "thp.shmem": "advise", "khugepaged.defrag": "1",
    "tmpfs.huge": "advise", "numa.balancing": "0", "numa.zone-reclaim": "report", "numa.interleave-weight": "offer",
    "limits.memlock": "report", "limits.hugetlb": "report", "limits.cgroup": "report",
}  # fmt: skip
"""The words a profile would choose."""


def wants(*chosen: str, bound: bool = False, only: Sequence[str] = (), **more: str) -> Choices:
    """Return choices of `knob=value` words; none chosen means the defaults."""
    pairs = dict(word.split("=", 1) for word in chosen) or DEFAULTS
    wanted = {knob: Choice(value, "a test", "test") for knob, value in {**pairs, **more}.items()}
    return Choices("test", 1, wanted, only=tuple(only), bound=bound)


def small(n_nodes: int = 1, **changes: Any) -> HostSpec:
    """Return a host of `n_nodes` nodes with 8 GiB each, 6 GiB free, nearly all in huge blocks, and no PCI function."""
    rows = distances(n_nodes, n_nodes)
    nodes = tuple(
        NodeSpec(i, f"{2 * i}-{2 * i + 1}", 8 * GIB, 6 * GIB, distances=rows[i], weight=1) for i in range(n_nodes)
    )
    return replace(HostSpec(nodes=nodes), **changes)


def look(folder: Path, spec: HostSpec, choices: Choices, knobs: Sequence[Knob] = MEMORY_KNOBS) -> Sight:
    """Write a host and read what the knobs ask for."""
    root = HostRoot(build_root(folder / "root", spec), name="made-up")
    machine = read_machine(root)
    targets = tuple(dict.fromkeys(target for knob in knobs for target in knob.targets(machine, choices)))
    return Sight(
        machine,
        {target: read_target(root, target) for target in targets},
        read_owners(root, [target.path for target in targets]),
        read_doors(root, targets),
    )


def seen(machine: Machine, words: Mapping[str, str], offers: Mapping[str, tuple[str, ...]] | None = None) -> Sight:
    """Return a look at which each path held its word; paths that are no files are mounts."""
    targets = {path: Target(_method(path), path) for path in words}
    doors = {
        targets[path]: Door(known(listed, path), known(False, "mounts")) for path, listed in (offers or {}).items()
    }
    return Sight(machine, {targets[path]: known(word, path) for path, word in words.items()}, {}, doors)


def items(sight: Sight, choices: Choices, knobs: Sequence[Knob] = MEMORY_KNOBS) -> tuple[Item, ...]:
    """Return the items of all knobs, in order."""
    return tuple(item for knob in knobs for item in knob.items(sight, choices))


def one(sight: Sight, choices: Choices, ident: str) -> Item:
    """Return the one item of that id."""
    found = [item for item in items(sight, choices) if item.id == ident]
    assert len(found) == 1, [item.id for item in items(sight, choices)]
    return found[0]


def _method(path: str) -> Method:
    return (
        Method.SYSCTL if path.startswith("/proc/sys/") else Method.SYSFS if path.startswith("/sys/") else Method.MOUNT
    )

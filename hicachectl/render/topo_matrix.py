"""The screen and the document of `topo matrix`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.render.topo_screen import Seen
from hicachectl.render.topo_words import Names, node_text, rate
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.gaps import maybe_accelerators, why_no_accelerators, why_no_nodes, why_unidentified
from hicachectl.tuning.host.matrix import LEGEND, VENDOR_LEGEND, Matrix, Pair
from hicachectl.tuning.host.model import Machine
from hicachectl.units import counted

__all__ = ["draw_matrix", "matrix_data"]

_NVLINK = "NVML was not asked; a pair may also have NVLink"


def matrix_data(machine: Machine, found: Matrix) -> dict[str, Any]:
    """Return the `data` of `topo matrix -o json`: one object a pair, nulls with their reason beside them. Pure."""
    rates = _solo(machine)
    pairs = [_pair_data(pair, "node") for pair in found.to_nodes]
    pairs += [_pair_data(pair, "accelerator") for pair in found.to_accelerators]
    data: dict[str, Any] = {
        "accelerators": [
            {
                "address": device.address,
                "node": device.node.value,
                "solo_bytes_per_s": rates[device.address].value if device.address in rates else None,
            }
            | _reasons(
                node=device.node, solo_bytes_per_s=rates.get(device.address, Fact(None, "", reason="no port above it"))
            )
            for device in found.accelerators
        ],
        "nodes": list(found.nodes),
        "pairs": pairs,
        "nvlink": None,
        "nvlink_reason": _NVLINK,
        "maybe_accelerators": [device.address for device in maybe_accelerators(machine)],
        "legend": LEGEND,
        "vendor_legend": VENDOR_LEGEND,
    }
    if not found.accelerators and (why := why_no_accelerators(machine)):
        data["accelerators_reason"] = why
    if not found.nodes and (why := why_no_nodes(machine)):
        data["nodes_reason"] = why
    return data


def draw_matrix(screen: Screen, machine: Machine, found: Matrix, names: Names, seen: Seen) -> None:
    """Draw accelerators by nodes, accelerators by accelerators, and the legends."""
    why = None if found.accelerators else why_no_accelerators(machine)
    n_nodes = "?" if not found.nodes and why_no_nodes(machine) else len(found.nodes)
    counts = f"{counted(len(found.accelerators) if why is None else '?', 'accelerator')}, {counted(n_nodes, 'node')}"
    screen.print(f"MATRIX  {counts}  {seen}", "bold")
    if not found.accelerators:
        screen.paragraph("", "no accelerator" if why is None else f"accelerators not known: {why}")
    else:
        _draw_tables(screen, machine, found, names)
        doubtful = maybe_accelerators(machine)
        if doubtful:
            screen.paragraph("may be more: ", why_unidentified(doubtful))
    screen.print()
    screen.paragraph("LEGEND  ", _words(LEGEND.items()))
    screen.paragraph("nvidia-smi topo -m  ", _words(VENDOR_LEGEND.items()))
    screen.paragraph("NVLink  ", f"? ({_NVLINK})")


def _draw_tables(screen: Screen, machine: Machine, found: Matrix, names: Names) -> None:
    rates = _solo(machine)
    titles = [names.of(device.address) for device in found.accelerators]
    columns = [
        Column("ACCEL"),
        Column("ADDRESS"),
        Column("NODE", right=True, keep=1),
        Column("SOLO GiB/s", right=True, keep=2),
    ]
    rows: list[list[str | None]] = []
    for device in found.accelerators:
        cells = [_class(pair) for pair in found.to_nodes if pair.accelerator == device.address]
        rows.append(
            [names.of(device.address), device.address, node_text(device), rate(rates.get(device.address)), *cells]
        )
    screen.print("path class to each node (n0 is node 0)")
    screen.table(Table([*columns, *(Column(f"n{node}") for node in found.nodes)], rows))
    for caption, cell in (
        ("path class between accelerators", _class),
        ("in the words of nvidia-smi topo -m, PCIe only", _vendor),
    ):
        screen.print()
        screen.print(caption)
        lines = [
            [names.of(device.address), *(cell(p) for p in found.to_accelerators if p.accelerator == device.address)]
            for device in found.accelerators
        ]
        screen.table(Table([Column(""), *map(Column, titles)], lines))


def _class(pair: Pair) -> str:
    return "?" if pair.path_class.value is None else pair.path_class.value.value


def _vendor(pair: Pair) -> str:
    return "?" if pair.vendor_word is None or pair.vendor_word.value is None else pair.vendor_word.value.value


def _pair_data(pair: Pair, kind: str) -> dict[str, Any]:
    word = pair.vendor_word or Fact(None, "", reason="for two accelerators only")
    return {
        "accelerator": pair.accelerator,
        "to_kind": kind,
        "to": pair.to,
        "path_class": pair.path_class.value,
        "vendor_word": word.value,
    } | _reasons(path_class=pair.path_class, vendor_word=word)


def _reasons(**facts: Fact[Any]) -> dict[str, str]:
    return {f"{name}_reason": fact.reason for name, fact in facts.items() if fact.reason is not None}


def _solo(machine: Machine) -> dict[str, Fact[float]]:
    return {address: found for uplink in machine.uplinks for address, found in uplink.solo_bytes_per_s.items()}


def _words(items: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{word} {meaning}" for word, meaning in items)

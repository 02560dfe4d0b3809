"""The screen of `bench link`: a row an accelerator and case, its rate beside link math, then the memory, then what did not run."""

from __future__ import annotations

from typing import Any

from hicachectl.bench_data import LEAST_SAMPLES, NOISY_SPREAD
from hicachectl.render.bench_words import Data, draw_head, draw_no_answer, number
from hicachectl.render.screen import Screen
from hicachectl.render.table import Column, Table
from hicachectl.units import GIB, counted, format_bytes

__all__ = ["draw_link"]

_CASES = {
    "alone": "nothing else busy",
    "uplink": "all behind its uplink the same way",
    "spread": "the same, each with a node of its own",
    "against": "its neighbours the other way",
    "host": "all accelerators the same way",
}


def draw_link(screen: Screen, data: Data) -> None:
    """Draw the document of `bench link`."""
    if data["no_accelerator"] is None:
        _draw_links(screen, data)
    else:
        _draw_nodes(screen, data)
    if data["stopped"] is not None:
        screen.paragraph("  ", f"not all was measured: {data['stopped']}")


def _draw_links(screen: Screen, data: Data) -> None:
    accelerators = {one["address"]: one for one in data["accelerators"]}
    draw_head(screen, f"BENCH LINK  {counted(len(accelerators), 'accelerator')}", data)
    several = len({case["case"] for case in data["cases"]}) > 1
    columns = (
        Column("ACCEL"), Column("ADDRESS", keep=4), Column("UPLINK", keep=3), Column("NODE", right=True), Column("CASE"), Column("WAY"),
        Column("SIZE", right=True), Column("GiB/s", right=True), Column("EXPECTED", right=True, keep=1), Column("OF MATH", right=True, keep=2),
        Column("SPREAD %", right=True, keep=5), Column(""),
    )  # fmt: skip
    in_matrix = _draw_matrix(screen, data, accelerators)
    rows = [
        _cells(case, found, accelerators, _unsure(data, found))
        for case, found in zip(data["cases"], data["measures"], strict=True)
        if case["subject"] not in in_matrix
    ]
    screen.table(Table(columns, rows, rest="-o json"))
    draw_no_answer(screen, data)
    if several:
        there = [case for case in _CASES if any(one["case"] == case for one in data["cases"])]
        screen.paragraph("  CASE  ", "; ".join(f"{case}: {_CASES[case]}" for case in there))
    if any(one["expected"] is not None for one in data["measures"]):
        screen.paragraph(
            "  EXPECTED  ",
            "up to link arithmetic, from four fifths of the share of it that one H200 reached: 87 % one way, 77 % both ways at once "
            "(docs/facts.md#h200-link); ! is below; none for copies below 16 MiB, which starting them bounds, nor where memory is not registered",
        )
    for one in data["accelerators"]:
        if one["own_link_bytes_per_s"] is None:
            screen.paragraph(f"  {one['name']}: ", f"link math is not known: {one['link_math_reason']}")
    _draw_memory(screen, data)
    for case in data["cases"]:
        if case["refused"] is not None:
            screen.paragraph(f"  {case['subject']} {case['direction']}: ", f"not measured: {case['refused']}")


def _draw_matrix(screen: Screen, data: Data, accelerators: dict[str, Data]) -> set[str]:
    """Draw the accelerators by nodes, a table a way, and return the subjects that need no row of their own; none for one node."""
    most = max((case["size_bytes"] for case in data["cases"]), default=0)
    alone = [
        case
        for case in data["cases"]
        if case["case"] == "alone" and case["size_bytes"] == most and case["node"] is not None
    ]
    nodes = sorted({case["node"] for case in alone})
    pairs = {(case["accelerator"], case["node"]) for case in alone}
    if len(nodes) < 2 or len(pairs) < len(nodes) * len(accelerators):
        return set()
    unsure = {id(case) for case, found in zip(data["cases"], data["measures"], strict=True) if _unsure(data, found)}
    rates = {(case["accelerator"], case["node"], case["direction"]): _rate(case, id(case) in unsure) for case in alone}
    for way in dict.fromkeys(case["direction"] for case in alone):
        screen.paragraph("", f"{way}, alone, {format_bytes(most)} a copy, GiB/s by node of the memory (n0 is node 0)")
        rows = [
            [
                one["name"],
                one["uplink"],
                None if one["node"] is None else str(one["node"]),
                *(rates.get((address, node, way)) for node in nodes),
            ]
            for address, one in accelerators.items()
        ]
        columns = (Column("ACCEL"), Column("UPLINK", keep=1), Column("NODE", right=True, keep=1))
        screen.table(Table((*columns, *(Column(f"n{node}", right=True) for node in nodes)), rows, rest="-o json"))
        screen.print()
    first = {address: one["node"] for address, one in accelerators.items()}
    return {case["subject"] for case in alone if case["node"] != first.get(case["accelerator"])}


def _cells(case: Data, found: Data, accelerators: dict[str, Data], unsure: bool) -> list[str | None]:
    about = accelerators.get(case["accelerator"], {})
    expected, spread = found["expected"], found["spread"]
    share = case["share_of_link_math"]
    noisy = spread is not None and spread > NOISY_SPREAD
    return [
        about.get("name", case["accelerator"]),
        case["accelerator"],
        about.get("uplink"),
        None if case["node"] is None else str(case["node"]),
        case["case"],
        case["direction"],
        format_bytes(case["size_bytes"]),
        None if case["bytes_per_s"] is None else number(case["bytes_per_s"] / GIB),
        None if expected is None else f"{number(expected['low'] / GIB)}..{number(expected['high'] / GIB)}",
        None if share is None else f"{100 * share:.0f} %",
        None if spread is None else f"{100 * spread:.0f}",
        " ".join(word for word, so in (("!", case["low"]), ("?" if unsure else "noisy", unsure or noisy)) if so),
    ]


def _draw_memory(screen: Screen, data: Data) -> None:
    names = {one["address"]: one["name"] for one in data["accelerators"]}
    sound = {one["registered_with"] for one in data["memory"] if not one["reasons"]}
    for text in sorted(filter(None, sound)):
        screen.paragraph("  memory  ", f"bound where a node is named, seen there, registered with {text}")
    for one in data["memory"]:
        if one["reasons"]:
            node = "" if one["node"] is None else f" node {one['node']}"
            lies = ", ".join(f"node {at} {n}" for at, n in one["pages_by_node"].items()) or "not known"
            screen.paragraph(
                f"  memory of {names.get(one['accelerator'], one['accelerator'])}{node}: ", f"{'; '.join(one['reasons'])}; sampled pages: {lies}"
            )  # fmt: skip


def _draw_nodes(screen: Screen, data: Data) -> None:
    draw_head(screen, "BENCH LINK  no accelerator: memory between nodes", data)
    screen.paragraph(
        "  ", f"No link was measured: {data['no_accelerator']}. This is memory copied by processors, GiB/s."
    )
    memory = sorted({pair["memory_node"] for pair in data["pairs"]}, key=lambda node: -1 if node is None else node)
    cpus = sorted({pair["cpu_node"] for pair in data["pairs"]}, key=lambda node: -1 if node is None else node)
    by_pair = {(pair["cpu_node"], pair["memory_node"]): pair for pair in data["pairs"]}
    rates = {
        (pair["cpu_node"], pair["memory_node"]): _rate(pair, _unsure(data, found))
        for pair, found in zip(data["pairs"], data["measures"], strict=True)
    }
    columns = [Column("CPUS OF"), Column("THREADS", right=True, keep=1), Column("SIZE", right=True)]
    columns += [Column("any memory" if node is None else f"memory {node}", right=True) for node in memory]
    rows = []
    for cpu in cpus:
        line = [by_pair.get((cpu, node)) for node in memory]
        first = next((pair for pair in line if pair is not None), None)
        about = [None, None] if first is None else [str(first["threads"]), format_bytes(first["region_bytes"])]
        rows.append(
            ["all nodes" if cpu is None else f"node {cpu}", *about, *(rates.get((cpu, node)) for node in memory)]
        )
    screen.table(Table(columns, rows, rest="-o json"))
    draw_no_answer(screen, data)
    notes: dict[str, list[str]] = {}
    for pair in data["pairs"]:
        for text in [*pair["reasons"], *([] if pair["refused"] is None else [f"not measured: {pair['refused']}"])]:
            notes.setdefault(text, []).append(f"{pair['cpu_node']}-{pair['memory_node']}")
    for text, pairs in notes.items():
        where = "" if len(pairs) == len(data["pairs"]) else f"CPUs-memory {', '.join(pairs)}: "
        screen.paragraph("  ", f"{where}{text}")


def _unsure(data: Data, found: Data) -> bool:
    """Whether a number is no answer; of its subject other ways may be one."""
    too_few = len(found["samples"]) < LEAST_SAMPLES
    too_far = found["spread"] is None or found["spread"] > NOISY_SPREAD
    return found["subject"] in data["no_answer"] and bool(found["samples"]) and (too_few or too_far)


def _rate(one: dict[str, Any], unsure: bool) -> str | None:
    if one["bytes_per_s"] is None:
        return None
    return number(one["bytes_per_s"] / GIB) + ("!" if one.get("low") else "") + ("?" if unsure else "")

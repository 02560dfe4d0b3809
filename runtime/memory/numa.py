"""NUMA calls that cannot crash the process: system calls through ctypes for ranges, libnuma only behind a guard.

py-libnuma works on the whole thread and segfaults on a node id that is not online or lies outside the cpuset (seen in a
virtual machine with 8 nodes and a cpuset of two; py-libnuma 1.2, libnuma 2.0.16), so every id is checked against
`/sys/devices/system/node/online` and `Mems_allowed_list` of `/proc/self/status` before a call. It cannot bind a buffer
or move pages: those go to the kernel directly. Where libnuma, NUMA or the right to call is missing, a result says so.

Sources: Linux `move_pages(2)`, `sched_setaffinity(2)`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hicachectl.errors import UsageError
from hicachectl.linux_calls import LinuxCalls, why

__all__ = [
    "Placement",
    "allowed_nodes",
    "bind_thread",
    "distance",
    "free_on_node",
    "narrow_thread",
    "nodes_in_both",
    "nodes_of_mapping",
    "page_nodes",
    "parse_ids",
    "sample_placement",
    "sampled_addresses",
]

_NODE_LINE = re.compile(r"^Node \d+ ([\w()]+):\s+(\d+) kB$", re.ASCII | re.MULTILINE)
_GOLDEN = 0.6180339887498949
"""1 / golden ratio: multiples of it, modulo 1, spread evenly and follow no period that memory could have."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where sampled pages of a range lie: node -> pages, pages not told (not touched, or docs/facts.md#hidden-pages), and the reason
    when it could not be asked."""

    by_node: dict[int, int]
    untouched: int
    sampled: int
    reason: str | None = None


def parse_ids(text: str) -> tuple[int, ...]:
    """Read a kernel id list. Pure. Raises UsageError.

    >>> parse_ids("0-2,5\\n")
    (0, 1, 2, 5)
    """
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UsageError(f"{text.strip()!r} is not a kernel id list", hint="such as 0-3,8")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


def allowed_nodes(root: Path = Path("/")) -> tuple[int, ...]:
    """Return the memory nodes that are online and allowed to this process; empty when the kernel does not say.

    Sysfs alone is wrong: inside a cpuset it still lists every node.
    """
    try:
        online = (root / "sys/devices/system/node/online").read_text()
        status = (root / "proc/self/status").read_text()
    except OSError:
        return ()
    return nodes_in_both(online, status)


def nodes_in_both(online: str, status: str) -> tuple[int, ...]:
    """Return the nodes that a list of online nodes and Mems_allowed_list of a status text have in common. Pure."""
    line = next((text for text in status.splitlines() if text.startswith("Mems_allowed_list:")), "")
    allowed = set(parse_ids(line.partition(":")[2]))
    return tuple(node for node in parse_ids(online) if node in allowed)


def free_on_node(meminfo: str) -> int | None:
    """Return what a node can give without swapping, in bytes, from its meminfo: free memory and file cache. Pure.

    >>> free_on_node("Node 1 MemFree:  10 kB\\nNode 1 Inactive(file):  2 kB\\n")
    12288
    """
    found = {match[1]: int(match[2]) for match in _NODE_LINE.finditer(meminfo)}
    return None if "MemFree" not in found else (found["MemFree"] + found.get("Inactive(file)", 0)) << 10


def _require(node: int, nodes: Sequence[int]) -> None:
    if node not in nodes:
        raise UsageError(
            f"node {node} is not one of the nodes this process may use: {list(nodes)}",
            why="libnuma crashes on a node that is offline or outside the cpuset",
            hint="see Mems_allowed_list in /proc/self/status",
        )


def _libnuma() -> ModuleType | None:
    """Return py-libnuma's scheduling module, None where it or libnuma.so.1 is missing or reports no NUMA."""
    try:
        from numa import info, schedule
    except (ImportError, OSError, AttributeError):
        return None
    return schedule if info.numa_available() else None


def bind_thread(node: int, *, nodes: Sequence[int] | None = None, root: Path = Path("/")) -> str | None:
    """Run the calling thread on the CPUs of `node`; returns None when the affinity proves it, else why not.

    Changes the thread's CPU affinity. `nodes` are the ids that may be named (default: `allowed_nodes(root)`).
    Raises UsageError for a node outside them, before libnuma sees it.
    """
    _require(node, allowed_nodes(root) if nodes is None else nodes)
    schedule = _libnuma()
    if schedule is None:
        return "libnuma is not available here"
    schedule.run_on_nodes(node)
    try:
        cpus = set(parse_ids((root / f"sys/devices/system/node/node{node}/cpulist").read_text()))
    except OSError as error:
        return f"the CPUs of node {node} cannot be read: {error.strerror}"
    elsewhere = sorted(os.sched_getaffinity(0) - cpus)  # libnuma reports no error: the affinity is the proof
    return f"the thread still runs on CPUs {elsewhere}, outside node {node}" if elsewhere else None


def distance(a: int, b: int, root: Path = Path("/")) -> int | None:
    """Return the kernel's distance between two nodes, None when it is not known. A row follows the order of online nodes."""
    folder = root / "sys/devices/system/node"
    try:
        online = parse_ids((folder / "online").read_text())
        row = (folder / f"node{a}/distance").read_text().split()
    except OSError:
        return None
    if b not in online or len(row) != len(online):
        return None
    return int(row[online.index(b)])


def narrow_thread(node: int, root: Path = Path("/")) -> str | None:
    """Keep the calling thread to those of its CPUs that belong to `node`; returns None when it runs there, else why not.

    Changes the affinity of the calling thread alone, and never widens it: what the operator took away stays away.
    """
    try:
        cpus = set(parse_ids((root / f"sys/devices/system/node/node{node}/cpulist").read_text()))
    except (OSError, UsageError) as error:
        return f"the CPUs of node {node} cannot be read: {error}"
    mine = os.sched_getaffinity(0) & cpus
    if not mine:
        return f"none of this process's CPUs belongs to node {node}"
    try:
        os.sched_setaffinity(0, mine)
    except OSError as error:
        return f"sched_setaffinity to node {node}: {error.strerror}"
    return None


def page_nodes(addresses: Sequence[int]) -> tuple[list[int], str | None]:
    """Ask the kernel on which node each page lies (move_pages without a target); negative = minus errno, -2 = not touched.

    Returns the nodes and None, or an empty list and the reason when the call is refused.
    """
    if not addresses:
        return [], None
    try:
        return LinuxCalls().nodes_of(addresses), None
    except OSError as error:
        return [], why(error)


def sampled_addresses(address: int, n_bytes: int, samples: int) -> list[int]:
    """Return the pages to ask about: all of a range, or up to `samples` of them spread over it, in order. Pure.

    Not at equal steps: interleaved memory repeats after so many pages, and a step that repeats with it would meet one node only.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    n_pages = max(1, n_bytes // page)
    first = address // page * page
    if n_pages <= samples:
        return [first + i * page for i in range(n_pages)]
    picked = {int(n_pages * (i * _GOLDEN % 1.0)) for i in range(samples)}
    return [first + i * page for i in sorted(picked)]


def nodes_of_mapping(numa_maps: str, address: int, n_bytes: int) -> dict[int, int]:
    """Return the bytes of a mapping by the node they lie on, from the text of /proc/self/numa_maps; empty where it is not there. Pure.

    Counts pages that are present, also those that automatic NUMA balancing samples just now; not those swapped out.

    >>> nodes_of_mapping("10000 default anon=3 dirty=3 N0=1 N2=2 kernelpagesize_kB=4\\n90000 default", 0x10000, 16384)
    {0: 4096, 2: 8192}
    """
    found: Counter[int] = Counter()
    for line in numa_maps.split("\n"):  # names of files may hold what splitlines takes for an end
        start, size = re.match(r"([0-9a-f]+) ", line, re.ASCII), re.search(r" kernelpagesize_kB=(\d+)$", line, re.ASCII)
        if start is not None and size is not None and address <= int(start[1], 16) < address + n_bytes:
            for node, pages in re.findall(r" N(\d+)=(\d+)(?= )", line, re.ASCII):
                found[int(node)] += int(pages) * (int(size[1]) << 10)
    return dict(sorted(found.items()))


def sample_placement(address: int, n_bytes: int, *, samples: int = 256, alone: bool = False) -> Placement:
    """Say on which nodes a range lies, from up to `samples` pages spread over it. Reads nothing of the memory itself.

    `alone`: the range is a whole mapping that the kernel joins with no neighbour. Where move_pages does not tell pages of such a one
    (docs/facts.md#hidden-pages), all of them are counted, by numa_maps.
    """
    nodes, reason = page_nodes(sampled_addresses(address, n_bytes, samples))
    counts = Counter(nodes)
    untouched = sum(n for node, n in counts.items() if node < 0)
    by_node = {node: n for node, n in sorted(counts.items()) if node >= 0}
    if untouched and alone:
        try:
            on_nodes = nodes_of_mapping(
                Path("/proc/self/numa_maps").read_text(encoding="ascii", errors="replace"), address, n_bytes
            )
        except OSError:
            on_nodes = {}  # a kernel without NUMA has no such file
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        by_node = {node: n // page_bytes for node, n in on_nodes.items()} or by_node
    return Placement(by_node, untouched, len(nodes), reason)

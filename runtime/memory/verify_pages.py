"""Look at what a mapping got: huge pages from smaps of that mapping alone, nodes from move_pages of a sample.

numa_maps cannot prove huge pages (it says kernelpagesize_kB=4 for a fully huge range), and a return code proves nothing:
MADV_HUGEPAGE on /dev/shm as mounted returns 0 and gives none (docs/facts.md#dev-shm).
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hicachectl.linux_calls import why
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.numa import nodes_of_mapping, sampled_addresses
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["PageSample", "ResidentPages", "look_at_pages", "read_resident", "resident_of", "sample_nodes", "uneven"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) [r-][w-][x-][ps] ", re.ASCII)
_FIELD = re.compile(r"(\w+):\s+(\d{1,18}) kB", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResidentPages:
    """Bytes of a mapping in memory, bytes of those in huge pages (None: not known), and bytes swapped out."""

    resident_bytes: int
    huge_bytes: int | None
    swapped_bytes: int = 0

    @property
    def share(self) -> float | None:
        """huge / resident; None when nothing is in memory, or how much of it is huge is not known."""
        return self.huge_bytes / self.resident_bytes if self.resident_bytes and self.huge_bytes is not None else None


@dataclass(frozen=True, slots=True)
class PageSample:
    """Sampled pages by node (`whole`: all pages), how many were not there, and why nothing could be asked."""

    by_node: dict[int, int] = field(default_factory=dict)
    absent: int = 0
    reason: str | None = None
    whole: bool = False


def look_at_pages(
    calls: MemoryCalls, kind: Kind, address: int, mapped_bytes: int
) -> tuple[ResidentPages | str, PageSample]:
    """Return what smaps and a sample say of a mapping that is populated, or why it cannot be said. Faults nothing in.

    Pages that automatic NUMA balancing samples are missing there on some kernels (docs/facts.md#hidden-pages). A fault would
    bring them back, and move them; numa_maps has them: their nodes, and by that how many there are, not whether they are huge.
    """
    found, sample = read_resident(calls, kind, address, mapped_bytes), sample_nodes(calls, address, mapped_bytes)
    short = not isinstance(found, str) and found.resident_bytes + found.swapped_bytes < mapped_bytes
    if not short and not sample.absent:
        return found, sample
    try:
        on_nodes = nodes_of_mapping(calls.read("/proc/self/numa_maps"), address, mapped_bytes)
    except OSError:
        on_nodes = {}  # a kernel without NUMA has no such file
    counted = sum(on_nodes.values())
    if short and not isinstance(found, str) and counted > found.resident_bytes:
        found = ResidentPages(min(counted, mapped_bytes), None, found.swapped_bytes)
    if sample.absent and on_nodes:
        sample = PageSample({node: n // _PAGE_BYTES for node, n in on_nodes.items()}, whole=True)
    return found, sample


def read_resident(calls: MemoryCalls, kind: Kind, address: int, mapped_bytes: int) -> ResidentPages | str:
    """Return what smaps says of a mapping, or why it cannot be said. Reads /proc/self/smaps."""
    try:
        text = calls.read("/proc/self/smaps")
    except OSError as error:
        return f"/proc/self/smaps cannot be read: {error.strerror or error}"
    found = resident_of(text, address, mapped_bytes, kind)
    return f"/proc/self/smaps has no {kind.smaps_field} of this mapping" if found is None else found


def resident_of(text: str, address: int, mapped_bytes: int, kind: Kind) -> ResidentPages | None:
    """Add up the entries of smaps inside a mapping; None where it is not there or has no field for its huge pages. Pure.

    Rss does not count hugetlb pages: there, both sums are those of the hugetlb fields.
    """
    resident = huge = swapped = 0
    seen = inside = False
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            inside = address <= int(head[1], 16) and int(head[2], 16) <= address + mapped_bytes
            continue
        found = _FIELD.match(line) if inside else None
        if found is None:
            continue
        n_bytes = int(found[2]) << 10
        if found[1] == "Rss" and kind is not Kind.HUGETLB:
            resident += n_bytes
        elif found[1] == "Swap":
            swapped += n_bytes
        elif found[1] == kind.smaps_field:
            huge += n_bytes
            seen = True
            if kind is Kind.HUGETLB:
                resident += n_bytes
    return ResidentPages(resident, huge, swapped) if seen else None


def sample_nodes(calls: MemoryCalls, address: int, mapped_bytes: int, *, samples: int = 256) -> PageSample:
    """Ask on which node each of up to `samples` pages lies, spread over the range. Reads nothing of the memory itself."""
    asked = sampled_addresses(address, mapped_bytes, samples)
    try:
        found = calls.nodes_of(asked)
    except OSError as error:
        return PageSample(reason=why(error))
    counts = Counter(found)
    absent = sum(n for node, n in counts.items() if node < 0)
    odd = sorted(node for node in counts if node < 0 and node != -errno.ENOENT)
    reason = f"move_pages of one page: {errno.errorcode.get(-odd[0], odd[0])}" if odd else None
    if absent == len(asked) and reason is None:
        reason = f"move_pages has none of {absent} sampled pages (ENOENT)"
    return PageSample({node: n for node, n in sorted(counts.items()) if node >= 0}, absent, reason)


def uneven(by_node: Mapping[int, int], wanted: Mapping[int, float] | None) -> list[str]:
    """Say of which nodes the sampled pages are another part than wanted by a tenth or more. Pure. `wanted` None: nothing to say.

    >>> uneven({0: 192, 1: 64}, {0: 0.5, 1: 0.5})
    ['node 0 has 75 % of the sampled pages, not 50 %', 'node 1 has 25 % of the sampled pages, not 50 %']
    """
    total = sum(by_node.values())
    if wanted is None or not total:
        return []
    found = {node: by_node.get(node, 0) / total for node in wanted}
    return [
        f"node {node} has {100 * found[node]:.0f} % of the sampled pages, not {100 * share:.0f} %"
        for node, share in wanted.items()
        if abs(found[node] - share) >= 0.1
    ]

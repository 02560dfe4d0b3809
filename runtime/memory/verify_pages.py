"""Look at what a mapping got: huge pages from smaps of that mapping alone, nodes from move_pages of a sample.

numa_maps cannot prove huge pages (it says kernelpagesize_kB=4 for a fully huge range), and a return code proves nothing:
MADV_HUGEPAGE on /dev/shm as mounted returns 0 and gives none (docs/facts.md#dev-shm).
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hicachectl.linux_calls import LOOKS, MADV_POPULATE_WRITE, why
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.numa import sampled_addresses
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["PageSample", "ResidentPages", "look_at_pages", "read_resident", "resident_of", "sample_nodes", "uneven"]

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) [r-][w-][x-][ps] ", re.ASCII)
_FIELD = re.compile(r"(\w+):\s+(\d{1,18}) kB", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResidentPages:
    """Bytes of a mapping in memory, bytes of those in huge pages, and bytes swapped out."""

    resident_bytes: int
    huge_bytes: int
    swapped_bytes: int = 0

    @property
    def share(self) -> float | None:
        """huge / resident; None when nothing is in memory."""
        return self.huge_bytes / self.resident_bytes if self.resident_bytes else None


@dataclass(frozen=True, slots=True)
class PageSample:
    """Sampled pages by node, how many were not there, why nothing could be asked, and how many of the absent are hidden (EFAULT)."""

    by_node: dict[int, int] = field(default_factory=dict)
    absent: int = 0
    reason: str | None = None
    hidden: int = 0


def look_at_pages(
    calls: MemoryCalls, kind: Kind, address: int, mapped_bytes: int
) -> tuple[ResidentPages | str, PageSample]:
    """Return what smaps and a sample say of a mapping that is populated, or why it cannot be said.

    Huge pages of private memory that are neither in memory nor swapped out are hidden (docs/facts.md#hidden-pages): they are
    faulted in and looked at again, which changes nothing of them. Where the kernel refuses that, the look stays as it is.
    """
    for left in reversed(range(LOOKS)):
        found = read_resident(calls, kind, address, mapped_bytes)
        sample = sample_nodes(calls, address, mapped_bytes)
        if not left or kind is not Kind.ANONYMOUS or not (_hides(found, mapped_bytes) or sample.hidden):
            break
        try:
            calls.advise(address, mapped_bytes, MADV_POPULATE_WRITE)
        except OSError:
            break
    return found, sample


def _hides(found: ResidentPages | str, mapped_bytes: int) -> bool:
    return not isinstance(found, str) and not found.swapped_bytes and found.resident_bytes < mapped_bytes


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
    by_node = {node: n for node, n in sorted(counts.items()) if node >= 0}
    return PageSample(by_node, absent, reason, hidden=counts[-errno.EFAULT])


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

"""Proof of binding: memory bound to a node comes from that node, page by page.

For each node one mapping is bound (mbind), touched, and its pages asked for (move_pages without a target). A node is only
named to the kernel when sysfs has it online and Mems_allowed_list lets this process use it: the kernel answers EINVAL for both
and does not say which. Sources: mbind(2), move_pages(2); docs/facts.md#mempolicy.
"""

from __future__ import annotations

import os
import re

from hicachectl.linux_calls import MPOL_BIND, why
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.kernel_text import field, id_list, status_fields, table_bytes
from hicachectl.tuning.host.pages import base_page_bytes
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.proofs.calls import Calls
from hicachectl.tuning.proofs.mapping import aligned, populate
from hicachectl.tuning.proofs.proof import Proof

__all__ = ["prove_binding"]

_NAME = "binding"
_NODES = "/sys/devices/system/node"
_PROOF_BYTES = 4 << 20


def prove_binding(item: Item, root: HostRoot, calls: Calls) -> Proof:
    """Say whether memory bound to the item's node lies there; without a node as subject, whether it does for every node with memory.

    Maps and populates 4 MiB a node, one after the other, and unmaps them. Changes no setting. Never raises OSError: a refused
    call is held None, and so is a node that this process may not use.
    """
    online = root.text(f"{_NODES}/online").then(id_list)
    allowed = field(root.text("/proc/self/status").then(status_fields), "Mems_allowed_list").then(id_list)
    page = base_page_bytes(root)
    for fact in (online, allowed, page):
        if fact.value is None:
            return _unseen(f"{fact.reason} ({fact.source})")
    assert page.value is not None
    nodes = _nodes(item, root, online)
    if isinstance(nodes, str):
        return _unseen(nodes)
    observed: dict[str, int] = {}
    proven: list[int] = []
    elsewhere: list[int] = []
    unseen: list[tuple[int, str]] = []
    for node in nodes:
        reason = _cannot(node, root, online.value or (), allowed.value or ())
        if reason is None:
            try:
                there, asked = _count(node, calls, page.value)
            except OSError as error:
                reason = why(error)
        if reason is not None:
            unseen.append((node, reason))
            continue
        observed[f"node{node}_pages"], observed[f"node{node}_pages_there"] = asked, there
        (proven if there == asked else elsewhere).append(node)
    text = f"{len(proven)} of {len(nodes)} nodes hold every page bound to them"
    if elsewhere:
        counts = ", ".join(
            f"node {n} {observed[f'node{n}_pages_there']} of {observed[f'node{n}_pages']} pages" for n in elsewhere
        )
        return Proof(_NAME, False, text, observed, f"not all pages lie where they were bound: {counts}")
    if unseen:
        reasons = "; ".join(f"node {node}: {reason}" for node, reason in unseen)
        return Proof(_NAME, None, text, observed, reasons)
    return Proof(_NAME, True, text, observed)


def _nodes(item: Item, root: HostRoot, online: Fact[tuple[int, ...]]) -> tuple[int, ...] | str:
    """The nodes to try, or why there is none: the item's, or all that have memory."""
    subject = re.fullmatch(r"node(\d{1,5})", item.subject or "", re.ASCII)
    if subject is not None:
        return (int(subject[1]),)
    with_memory = root.text(f"{_NODES}/has_memory").then(id_list).value
    found = tuple(node for node in online.value or () if with_memory is None or node in with_memory)
    return found or f"no node has memory ({_NODES}/has_memory)"


def _cannot(node: int, root: HostRoot, online: tuple[int, ...], allowed: tuple[int, ...]) -> str | None:
    """Say why a node must not be asked for. Memory bound to a full node gets a process killed, so a full node is left alone."""
    if node not in online:
        return f"not online ({_NODES}/online)"
    if node not in allowed:
        return "outside the cpuset of this process (Mems_allowed_list in /proc/self/status)"
    free = field(root.text(f"{_NODES}/node{node}/meminfo").then(table_bytes), "MemFree")
    if free.value is None:
        return f"how much of its memory is free is not known: {free.reason} ({free.source})"
    if free.value < 4 * _PROOF_BYTES:
        return f"{free.value >> 20} MiB are free, {4 * _PROOF_BYTES >> 20} would be needed"
    return None


def _count(node: int, calls: Calls, page_bytes: int) -> tuple[int, int]:
    """Bind, touch and ask: how many pages lie on the node, of how many."""
    with aligned(calls, _PROOF_BYTES, page_bytes) as start:
        calls.bind(start, _PROOF_BYTES, MPOL_BIND, [node])
        populate(calls, start, _PROOF_BYTES)
        where = calls.nodes_of(range(start, start + _PROOF_BYTES, page_bytes))
        lost = min(where)
        if lost < 0:
            raise OSError(-lost, os.strerror(-lost), "move_pages of one page")
        return where.count(node), len(where)


def _unseen(reason: str) -> Proof:
    return Proof(_NAME, None, "binding: not observed", {}, reason)

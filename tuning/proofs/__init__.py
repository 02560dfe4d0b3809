"""Proofs: an effect that is observed, not concluded from a value that reads back. They only map memory of this process.

They work without numpy and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicachectl.linux_calls import LinuxCalls
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.proofs.binding import prove_binding
from hicachectl.tuning.proofs.calls import Calls
from hicachectl.tuning.proofs.huge import prove_huge
from hicachectl.tuning.proofs.proof import Proof

__all__ = ["PROOFS", "READING_ORDER", "Proof", "prove_effect"]

READING_ORDER: tuple[str, ...] = ("proof", "huge", "huge_share", "binding", "mapping", "calls")

PROOFS: Mapping[str, Callable[[Item, HostRoot, Calls], Proof]] = {
    "thp-anonymous": prove_huge,
    "thp-shmem": prove_huge,
    "tmpfs-huge": prove_huge,
    "binding": prove_binding,
}
"""By the word of `Item.proof`."""


def prove_effect(item: Item, root: HostRoot, *, calls: Calls | None = None) -> Proof:
    """Observe the effect that an item's proof names, after its change was written. Maps memory and unmaps it; sets nothing.

    held is None, with the reason, where no proof is named or known here, and for a recording: what a mapping gets is asked of
    the running kernel only. `calls` are the system calls, the real ones by default. Never raises for what the host refuses.
    """
    prove = PROOFS.get(item.proof)
    if prove is None:
        reason = (
            f"no proof called {item.proof} in this build"
            if item.proof
            else "nothing shows the effect of this setting but a load"
        )
        return Proof(item.proof, None, "not observed", {}, reason)
    if not root.is_live:
        return Proof(item.proof, None, "not observed", {}, "observed on a live host only")
    return prove(item, root, calls or LinuxCalls())

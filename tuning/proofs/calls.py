"""What the proofs ask of the kernel, one method a call: the seam at which tests play kernels that refuse.

`hicachectl.linux_calls.LinuxCalls` are the real ones: they map memory of this process and give it back; nothing of the host is
set. Every refusal is an OSError whose `filename` is the name of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Calls"]


class Calls(Protocol):
    """What a proof asks of the kernel. Addresses are whole numbers, lengths bytes; every method raises OSError when refused."""

    def reserve(self, n_bytes: int) -> int:
        """Return the start of a range of addresses that nothing else gets and that holds no memory."""

    def place(self, address: int, n_bytes: int, fd: int | None) -> None:
        """Put writable memory inside a reserved range: private anonymous, or the start of the file `fd`, shared."""

    def release(self, address: int, n_bytes: int) -> None:
        """Give back a reserved range with all that lies in it."""

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        """madvise(2)."""

    def touch(self, address: int, n_bytes: int) -> None:
        """Write every page, in a way that is refused and not killed where a page cannot be had."""

    def shared_memory(self, n_bytes: int) -> int:
        """Return a descriptor of anonymous shared memory (memfd_create), as long as asked."""

    def nameless_file(self, folder: str, n_bytes: int) -> int:
        """Return a descriptor of a file in `folder` that has no name and is gone when it is closed, as long as asked."""

    def free_bytes(self, at: int | str) -> int | None:
        """Return what the file system of a descriptor or a path has left; None where it has no limit of its own."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def bind(self, address: int, n_bytes: int, policy: int, nodes: Sequence[int]) -> None:
        """Set the memory policy of a range (mbind): `policy` is an MPOL_ number."""

    def nodes_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the node each page lies on, or minus an errno (move_pages without a target)."""

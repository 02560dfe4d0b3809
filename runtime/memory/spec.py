"""What is asked of a mapping: values only."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.placement_modes import Placed
from hicachectl.runtime.memory.register import LARGEST_REGISTRATION_BYTES

__all__ = ["MappingSpec"]


@dataclass(frozen=True, slots=True)
class MappingSpec:
    """How to make a mapping.

    `path`: of kind tmpfs, the file to make (`named`, for sharing; removed on close) or the folder of one without a name.
    `placed`: the placement mode and its nodes; None sets no policy. `n_threads`: that populate; None: as many as there are
    CPUs, within reason. `slot_bytes`: distance of slot boundaries, where registrations may end. `must_register`: a refused
    registration is an error.
    """

    kind: Kind = Kind.ANONYMOUS
    huge: bool = True
    path: str | None = None
    named: bool = False
    hugetlb_bytes: int | None = None
    """Page size of kind hugetlb; None: the kernel's default one."""
    placed: Placed | None = None
    n_threads: int | None = None
    slot_bytes: int = 1
    largest_registration_bytes: int = LARGEST_REGISTRATION_BYTES
    must_register: bool = False
    label: tuple[tuple[str, str | int], ...] = ()
    """What a shared mapping says of itself to who attaches to it, by name (`shared_file.py`)."""

    @property
    def has_name(self) -> bool:
        """Whether it is a file with a name; `named` means nothing of other kinds."""
        return self.named and self.kind is Kind.TMPFS

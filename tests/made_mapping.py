"""A mapping on the kernel made of bookkeeping (`fake_memory`), as the tests of its steps want one."""

from __future__ import annotations

from fake_memory import MIB, FakeKernel

from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.mapping import Mapping, map_memory
from hicachectl.runtime.memory.placement_modes import Placed, PlacementMode
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec

__all__ = ["SPREAD", "WEIGHTED", "made"]

SPREAD = Placed(PlacementMode.INTERLEAVE, (0, 1))
WEIGHTED = "/sys/kernel/mm/mempolicy/weighted_interleave"


def made(
    kernel: FakeKernel,
    spec: MappingSpec = MappingSpec(),  # noqa: B008
    registrar: Registrar | NoRegistrar = NoRegistrar("none here"),  # noqa: B008
    live: LiveRegistrations | None = None,
    n_bytes: int = 5 * MIB,
) -> Mapping:
    live = live or LiveRegistrations(at_exit=False)
    return map_memory(n_bytes, spec, registrar=registrar, calls=kernel, clock=lambda: 0.0, live=live)

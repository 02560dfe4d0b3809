"""Accelerators that move no bytes: every copy takes as long as the test says, on a clock of its own that starts anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep

from hicachectl.runtime.memory.steps import MappingReport, Step, StepState

__all__ = ["FakeFlow", "FakeRig", "Speed"]

Speed = Callable[["FakeFlow", list["FakeFlow"]], float]
"""Bytes/s of a flow, given all that run at the same time, itself among them."""


@dataclass
class FakeFlow:
    """A flow of a `FakeRig`: the steps of one (device, node, size, way)."""

    rig: FakeRig
    device: str
    node: int | None
    size_bytes: int
    up: bool
    batch: list[FakeFlow]
    n_under_way: int = 0
    n_waits: int = 0
    now: float = 0.0

    @property
    def step_bytes(self) -> int:
        return max(self.size_bytes, 32 << 20)

    def submit(self) -> None:
        self.rig.running = True
        self.n_under_way += 1
        assert self.n_under_way <= 3

    def wait(self) -> float:
        self.n_waits += 1
        self.n_under_way -= 1
        assert self.n_under_way >= 0
        if self.rig.fails is not None:
            self.rig.fails(self)
        sleep(0)  # as a real wait does: lets the other flows run
        self.now += self.step_bytes / self.rig.speed(self, self.batch)
        return self.now

    def drain(self) -> None:
        self.n_under_way = 0


@dataclass
class FakeRig:
    """`speed` says how fast; `fails` may raise in any wait; `unbound` are nodes whose policy is refused, `unregistered` devices whose driver is."""

    speed: Speed
    fails: Callable[[FakeFlow], None] | None = None
    unbound: tuple[int, ...] = ()
    unregistered: tuple[str, ...] = ()
    refuse_memory: Callable[[str, int | None], None] = lambda device, node: None
    held: set[tuple[str, int | None]] = field(default_factory=set)
    batches: list[list[FakeFlow]] = field(default_factory=list)
    most_held: int = 0
    n_released: int = 0
    running: bool = True

    def flow(self, device: str, node: int | None, size_bytes: int, *, up: bool) -> FakeFlow:
        self.refuse_memory(device, node)
        if self.running:
            self.batches.append([])
            self.running = False
        batch = self.batches[-1]
        start = 0.3 * len(batch)  # apart at first: no common time yet
        self.held.add((device, node))
        self.most_held = max(self.most_held, len(self.held))
        batch.append(FakeFlow(self, device, node, size_bytes, up, batch, now=start))
        return batch[-1]

    def memory(self, device: str, node: int | None) -> MappingReport:
        refused = node in self.unbound
        bind = (
            Step("bind", StepState.REFUSED, "policy not applied", "policy not applied: EPERM")
            if refused
            else Step("bind", StepState.DONE, "local")
        )
        placement = None if node is None or refused else f"local on node {node}"
        pages = {0 if node is None or refused else node: 256}
        if device in self.unregistered:
            why = "cuMemHostRegister_v2: OUT_OF_MEMORY (2), out of memory; locked-memory limit 64.0 KiB"
            steps = (bind, Step("register", StepState.REFUSED, "not registered", why))
            return MappingReport("anonymous", 1, 1, 1, steps, None, None, pages, placement)
        return MappingReport("anonymous", 1, 1, 1, (bind,), None, None, pages, placement, "fake driver", ((0, 1),))

    def release(self) -> None:
        self.held.clear()
        self.n_released += 1

    def close(self) -> None:
        self.release()

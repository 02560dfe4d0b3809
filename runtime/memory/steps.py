"""What making a mapping got, step by step: values only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["MappingReport", "Step", "StepState"]


class StepState(Enum):
    """How a step ended."""

    DONE = "done"
    """What was asked for is there, and was looked at."""
    PARTLY = "partly"
    """Some of it is there; the reason says what is not."""
    REFUSED = "refused"
    """The kernel or the driver said no, or could not be asked; the reason says why."""
    SKIPPED = "skipped"
    """Not tried; the reason says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of making a mapping: what it got, how long it took (seconds), and why not more. `text` says the same in words."""

    name: str
    state: StepState
    text: str
    reason: str | None = None
    wall_s: float = 0.0
    n_bytes: int = 0
    """Bytes this step did its work for: mapped, populated, in huge pages, registered."""
    asked: str = ""
    """What was wanted of it, in words."""

    @property
    def ok(self) -> bool:
        """Whether everything asked for is there."""
        return self.state is StepState.DONE


@dataclass(frozen=True, slots=True)
class MappingReport:
    """What a mapping got. None stands for what could not be read; the step that should have read it says why."""

    kind: str
    n_bytes: int
    """Bytes of the pool."""
    mapped_bytes: int
    """Bytes mapped: those of the pool, rounded up to whole pages."""
    huge_page_bytes: int
    """Size of a huge page of this mapping."""
    steps: tuple[Step, ...]
    huge_share: float | None = None
    """Bytes in huge pages / bytes in memory, of this mapping alone."""
    resident_bytes: int | None = None
    """Bytes in memory after populating, as smaps has it, or numa_maps where that has more."""
    pages_by_node: dict[int, int] = field(default_factory=dict)
    """Sampled pages by the node they lie on; all pages where move_pages did not tell (docs/facts.md#hidden-pages)."""
    placement: str | None = None
    """The placement mode and its nodes, as the kernel reads them back; None where none was asked for."""
    registered_with: str | None = None
    registrations: tuple[tuple[int, int], ...] = ()
    """Ranges registered with the driver, [start, end) in bytes from the start of the pool: no copy may span two."""

    @property
    def registered_bytes(self) -> int:
        return sum(end - start for start, end in self.registrations)

    @property
    def total_s(self) -> float:
        """Seconds from the first step to the last."""
        return sum(step.wall_s for step in self.steps)

    @property
    def touched(self) -> bool:
        """Whether every page was touched: only then is the memory had, not just promised."""
        return any(step.name == "populate" and step.ok for step in self.steps)

    def step(self, name: str) -> Step | None:
        """Return a step by name, None when the mapping was made without it."""
        return next((step for step in self.steps if step.name == name), None)

    def reasons(self, *, without: Collection[str] = ()) -> tuple[str, ...]:
        """Say of each step that did not get all that was asked of it why not, those named in `without` left out. Pure."""
        return tuple(
            f"{step.name}: {step.reason}" for step in self.steps if step.reason is not None and step.name not in without
        )

"""What making a trial pool's memory got and took: the report of its mapping as values that go into a record and a document. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hicachectl.runtime.memory.steps import MappingReport

__all__ = ["MadeStep", "PoolMade", "pool_made"]


@dataclass(frozen=True, slots=True)
class MadeStep:
    """One step of making the memory: done | partly | refused | skipped, its seconds, and what it got in words."""

    name: str
    state: str
    wall_s: float
    text: str


@dataclass(frozen=True, slots=True)
class PoolMade:
    """Kind and placement of the memory, and what it got. Bytes and seconds; None where it was not read, the step verify says why.

    `placement`: mode and nodes as the kernel reads them back, None where no policy is set. `registered_bytes` 0 with the
    reason in the step register.
    """

    kind: str
    placement: str | None
    mapped_bytes: int
    huge_page_bytes: int
    huge_share: float | None
    resident_bytes: int | None
    pages_by_node: dict[str, int]
    registered_with: str | None
    registered_bytes: int
    n_registrations: int
    steps: tuple[MadeStep, ...] = field(default=())

    def seconds(self, name: str) -> float:
        """Return the seconds a step took, 0 where it was not made. Pure."""
        return sum(step.wall_s for step in self.steps if step.name == name)

    def words(self, name: str) -> str:
        """Return what a step says of itself. Pure."""
        return next((step.text for step in self.steps if step.name == name), f"no step {name}")


def pool_made(report: MappingReport) -> PoolMade:
    """Keep of a mapping's report what a sizing shows. Pure."""
    steps = []
    for step in report.steps:
        told = step.text if step.reason is None or step.reason in step.text else f"{step.text}; {step.reason}"
        steps.append(MadeStep(step.name, step.state.value, step.wall_s, told))
    return PoolMade(
        kind=report.kind,
        placement=report.placement,
        mapped_bytes=report.mapped_bytes,
        huge_page_bytes=report.huge_page_bytes,
        huge_share=report.huge_share,
        resident_bytes=report.resident_bytes,
        pages_by_node={str(node): n for node, n in report.pages_by_node.items()},
        registered_with=report.registered_with,
        registered_bytes=report.registered_bytes,
        n_registrations=len(report.registrations),
        steps=tuple(steps),
    )

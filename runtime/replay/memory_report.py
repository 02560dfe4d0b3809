"""What the memory of the host pool got, as a replay's report tells it: values only. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.runtime.memory.steps import MappingReport

__all__ = ["HostMemory", "HostMemoryStep", "host_memory_of"]


@dataclass(frozen=True, slots=True)
class HostMemoryStep:
    """One step of making the host pool's memory: what was asked of it, what it got, in words, and in how many seconds.

    `reason` says why it got less than was asked, or what else there is to know; None where all of it is there.
    """

    name: str
    state: str
    wall_s: float
    text: str
    asked: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What the memory of the host pool got; shares in [0, 1], None where they could not be read (the step `verify` says why).

    `placement` is the mode and its nodes as the kernel reads them back, None where none was asked for or set (the step `bind` says
    why); `registered_with` the driver's call, None where nothing is registered (the step `register` says why).
    """

    kind: str
    mapped_bytes: int
    huge_page_bytes: int
    huge_share: float | None
    resident_bytes: int | None
    registered_bytes: int
    registrations: int
    steps: tuple[HostMemoryStep, ...]
    placement: str | None = None
    registered_with: str | None = None


def host_memory_of(report: MappingReport) -> HostMemory:
    """Keep of a mapping's report what a reader of a replay needs. Pure. A step's text holds its reason where it has one."""
    return HostMemory(
        kind=report.kind,
        mapped_bytes=report.mapped_bytes,
        huge_page_bytes=report.huge_page_bytes,
        huge_share=report.huge_share,
        resident_bytes=report.resident_bytes,
        registered_bytes=report.registered_bytes,
        registrations=len(report.registrations),
        steps=tuple(
            HostMemoryStep(
                step.name,
                step.state.value,
                step.wall_s,
                step.text if step.reason is None or step.reason in step.text else f"{step.text}; {step.reason}",
                step.asked,
                step.reason,
            )
            for step in report.steps
        ),
        placement=report.placement,
        registered_with=report.registered_with,
    )

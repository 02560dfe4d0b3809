"""What the host memory of a measurement was, as a document and as words: what it costs to move hangs on it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicachectl.runtime.memory.steps import MappingReport

__all__ = ["NO_MEMORY", "memory_data", "memory_words"]

NO_MEMORY = {
    "/host_memory": "no pool was made",
    "/host_memory/placement": "no placement was asked for, or it was refused",
    "/host_memory/huge_share": "the kernel does not tell it",
    "/host_memory/registered_with": "no driver has it registered",
}
"""Why nulls of `memory_data` are null."""


def memory_data(report: MappingReport | None) -> dict[str, Any] | None:
    """Return kind, placement, share of huge pages and driver of a pool's memory, and why a step that was tried got less than was asked."""
    if report is None:
        return None
    return {
        "kind": report.kind,
        "placement": report.placement,
        "huge_share": report.huge_share,
        "registered_with": report.registered_with,
        "reasons": [
            f"{step.name}: {step.reason}"
            for step in report.steps
            if step.reason is not None and step.state.value != "skipped"
        ],
    }


def memory_words(memory: dict[str, Any]) -> str:
    """Say it in one line; a share short of all is never rounded up to it. Pure.

    >>> memory_words({"kind": "memfd", "placement": "local 0", "huge_share": 0.9999, "registered_with": None, "reasons": []})
    'memfd, local 0, 99 % in huge pages, not registered'
    """
    share, driver = memory["huge_share"], memory["registered_with"]
    words = [
        memory["kind"],
        memory["placement"] or "no placement",
        "huge pages not told" if share is None else f"{int(100 * share)} % in huge pages",
        "not registered" if driver is None else f"registered by {driver}",
    ]
    return "; ".join([", ".join(words), *memory["reasons"]])

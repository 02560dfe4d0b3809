"""Every command with its help line, group and module, so that `--help` and completion load no command.

A module of `hicachectl.commands` has a Typer `app` or a function `command`; it is imported when the command is called.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMMANDS", "GROUPS", "PLANNED", "Entry"]

GROUPS = ("Does it pay?", "Set up", "Look up")


@dataclass(frozen=True, slots=True)
class Entry:
    """One top-level command: its word, what it does in one line, its heading in the help, its module."""

    name: str
    summary: str
    group: str
    package: str = "hicachectl.commands"

    @property
    def module(self) -> str:
        """The module that holds it. Pure."""
        return f"{self.package}.{self.name.replace('-', '_')}"


COMMANDS: tuple[Entry, ...] = (
    Entry("topo", "Show the machine as the copies see it: uplinks, nodes, accelerators, findings.", GROUPS[1]),
    Entry("tune", "Plan, apply, verify and undo host settings: huge pages, NUMA, PCI Express ordering.", GROUPS[1]),
    Entry("run", "Replay a trace through the cache tiers and report what they pay.", GROUPS[0]),
    Entry("bench", "Measure memory, links, copies and storage of this machine.", GROUPS[0]),
    Entry("trace", "Describe traces, and tell the hit rate of every cache size.", GROUPS[0]),
    Entry("config", "Show the effective configuration and where each value comes from.", GROUPS[1]),
    Entry("profile", "List, show and check profiles.", GROUPS[1]),
    Entry("schema", "Print the JSON Schema of a command's document.", GROUPS[2]),
    Entry("explain", "Print the page of an HC- code.", GROUPS[2]),
    Entry("completion", "Print the completion script of a shell.", GROUPS[2]),
    Entry("version", "Print the versions of the tool and its libraries.", GROUPS[2]),
)

PLANNED = {
    "export": "it will write flags and units for engines",
    "doctor": "it will sweep limits, links, drift and storage",
    "bundle": "it will pack a support archive",
}
"""Commands of the documents that are not there yet, each with what it will do."""

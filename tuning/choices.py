"""What the operator wants, before the host is looked at: a wanted value a knob, each with its reason and origin, and the permissions given. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Choice", "Choices"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One wanted value. `value` is a word or a number as the knob spells it; `origin` says where it was set (flag, file:line, profile)."""

    value: str
    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything that decides a plan besides the host.

    `wanted` maps a knob ("thp.enabled", "pcie.ido-request") to its choice; a knob that is not in it is left alone.
    `only` keeps items whose knob, or KNOB@SUBJECT, begins with one of its words; empty keeps all. The rest are permissions:
    `bound` (pools and ranks are bound to nodes), `allow_isolation_loss` (ACS redirect may be cleared), `online` (ordering
    may change while a process holds the accelerator), `persist_files` (module-param recipes may write their file),
    `in_guest` (registers may be written in a virtual machine: its devices are passed through, or it is a laboratory).
    """

    profile: str
    revision: int
    wanted: Mapping[str, Choice]
    only: tuple[str, ...] = ()
    bound: bool = False
    allow_isolation_loss: bool = False
    online: bool = False
    persist_files: bool = False
    in_guest: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)

    def keeps(self, knob: str, subject: str | None) -> bool:
        """Say whether `only` lets an item through. Pure.

        "pcie" lets every pcie knob through, "pcie.ido-request@0000:95:00.0" one knob of one function.

        >>> Choices("p", 1, {}, only=("pcie@0000:95:00.0",)).keeps("pcie.ido-request", "0000:95:00.0")
        True
        """
        return not self.only or any(_lets(word, knob, subject) for word in self.only)


def _lets(word: str, knob: str, subject: str | None) -> bool:
    name, _, at = word.partition("@")
    return (knob == name or knob.startswith(name + ".")) and (not at or at == subject)

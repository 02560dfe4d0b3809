"""One write and what became of it: record, write, read back several times, judge. Used by apply, its undo, and rollback.

    journal the old value (durable) -> write -> read back -> record

A read-back is necessary and not sufficient: it says that the value stayed, not that anything came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hicachectl.tuning.access import read_target, write_target
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.pcie_caps import GONE
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Method, Target, Value, show_value

__all__ = ["Hands", "ReadBackResult", "Stuck", "same_bits", "whole"]

_CONFIG = frozenset((Method.PCI_CONFIG, Method.PCI_ECAP))


class Stuck(str, Enum):
    """What the reads after a write said."""

    YES = "yes"
    UNCHANGED = "unchanged"
    """Every read gave the old value: nothing was implemented there, or the write was lost."""
    NO = "no"
    """Some read gave neither, or the value did not stay."""
    GONE = "gone"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class ReadBackResult:
    """`seen` is the last value read."""

    stuck: Stuck
    seen: Value | None
    reason: str | None


@dataclass(frozen=True)
class Hands:
    """A host to write to: the root to read, the kernel to write, and how to wait between two reads."""

    root: HostRoot
    kernel: Kernel
    sleep: Callable[[float], None]

    def read(self, target: Target) -> Fact[Value]:
        """Read a target now."""
        return read_target(self.root, target)

    def write(self, target: Target, value: Value) -> None:
        """Write a whole value with one call. Changes the host. Raises OSError."""
        write_target(self.kernel, self.root, target, value)

    def read_back(self, target: Target, how: ReadBack, *, old: Value, new: Value) -> ReadBackResult:
        """Read a target several times after a write and say whether the value stayed. Every read counts, not the last."""
        found: list[Value] = []
        for number in range(max(1, how.tries)):
            if number and how.delay_s:
                self.sleep(how.delay_s)
            fact = self.read(target)
            if fact.value is None:
                stuck = Stuck.GONE if fact.reason == GONE else Stuck.UNREAD
                return ReadBackResult(stuck, found[-1] if found else None, fact.reason)
            found.append(fact.value)
        last = found[-1]
        if not all(_others_same(target, value, new) for value in found):
            reads = ", ".join(dict.fromkeys(show_value(target, value) for value in found))
            return ReadBackResult(Stuck.NO, last, f"read back {reads}: bits that are not ours changed with the write")
        if all(same_bits(target, value, new) for value in found):
            return ReadBackResult(Stuck.YES, last, None)
        if all(same_bits(target, value, old) for value in found):
            return ReadBackResult(
                Stuck.UNCHANGED, last, "every read gives the old value: not implemented, or the write is lost"
            )
        reads = ", ".join(dict.fromkeys(show_value(target, value) for value in found))
        return ReadBackResult(Stuck.NO, last, f"read back {reads} after {show_value(target, new)} was written")


def same_bits(target: Target, a: Value, b: Value) -> bool:
    """Say whether two values agree in the bits that are ours. Pure."""
    register = target.register
    if register is not None and isinstance(a, int) and isinstance(b, int):
        return a & register.mask == b & register.mask
    return a == b


def _others_same(target: Target, a: Value, b: Value) -> bool:
    register = target.register
    if target.method not in _CONFIG or register is None or not isinstance(a, int) or not isinstance(b, int):
        return True  # elsewhere neighbours may be write-1-to-clear or move by themselves (docs/facts.md#smn)
    return (a ^ b) & ~register.mask & ~register.never == 0


def whole(target: Target, present: Value, wanted: Value) -> Value:
    """Return what to write: the word, or the present register with our bits replaced. Pure."""
    register = target.register
    if register is not None and isinstance(present, int) and isinstance(wanted, int):
        return register.merged(present, wanted)
    return wanted

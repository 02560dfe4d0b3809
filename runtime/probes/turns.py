"""The order in which a probe goes through its cases: all of them a round, each round beginning with another one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["turns"]

T = TypeVar("T")


def turns(rounds: int, cases: Sequence[T], go_on: Callable[[], bool]) -> Iterator[tuple[int, T]]:
    """Yield the round's number, from 1, and a case. Asks `go_on` before each; the first no ends all rounds.

    >>> list(turns(2, "ab", lambda: True))
    [(1, 'a'), (1, 'b'), (2, 'b'), (2, 'a')]
    """
    if not cases:
        return
    for number in range(rounds):
        shift = number % len(cases)
        for case in (*cases[shift:], *cases[:shift]):
            if not go_on():
                return
            yield number + 1, case

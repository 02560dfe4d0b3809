"""`--prove`: run an item's load without and with its change in turn, and keep the change only when it gains.

The loads come by name from `PROBES`; a build without the load an item names does not apply that item. How a gain is told from
noise is in `gain.py`; how a change is written and taken back is the caller's, who records both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hicachectl.errors import HicacheError
from hicachectl.tuning.gain import MIN_ROUNDS, Judgement, Sample, judge
from hicachectl.tuning.item import Item

__all__ = ["DEFAULT_ROUNDS", "PROBES", "Probe", "Prover", "Trial", "interleave"]

DEFAULT_ROUNDS = 11
"""The first number whose 98 % interval leaves out the smallest and the largest ratio: one hiccup decides nothing."""
_DEFAULT_MAX_LOSS = 0.03
"""For an item that names none: 3 %, what the shipped ordering recipes name."""


class Probe(Protocol):
    """A load whose speed an item's change should raise."""

    def run(self, item: Item) -> Mapping[str, float]:
        """Run the load once on the devices the item concerns, all at once; return bytes per second by device (PCI address).

        Changes nothing that outlives the call. Raises HicacheError or OSError when it could not be measured.
        """


PROBES: Mapping[str, Callable[[], Probe]] = {}
"""By the word of `Item.probe`, such as d2h-concurrent; empty in a build without accelerator loads."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The runs made; `reason` says why they ended early. The change is off at the end either way."""

    samples: tuple[Sample, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Prover:
    """Proves items by their loads. `rounds` are pairs of a run with and a run without the change, at least seven."""

    probes: Mapping[str, Callable[[], Probe]] = field(default_factory=lambda: PROBES)
    rounds: int = DEFAULT_ROUNDS

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS:
            raise ValueError(f"{self.rounds} rounds cannot tell a gain from noise: at least {MIN_ROUNDS}")

    def applies_to(self, item: Item) -> bool:
        """Say whether the item is decided by a load: one without a probe is applied as without --prove. Pure."""
        return item.probe is not None

    def refusal(self, item: Item) -> str | None:
        """Say why an item must not even be written under --prove, None when it may. Pure."""
        if item.probe is None or item.probe in self.probes:
            return None
        return f"no probe called {item.probe} in this build: whether it gains cannot be measured, so it is not applied"

    def prove(
        self,
        item: Item,
        *,
        set_on: Callable[[], None],
        set_off: Callable[[], None],
        stop: Callable[[], bool] = lambda: False,
        on_run: Callable[[Sample], None] = lambda sample: None,
    ) -> Judgement:
        """Measure and judge; afterwards the change is on when the judgement keeps it, else off.

        `set_on` and `set_off` write and record the change and may be called in either state; what they raise goes through, and
        then the caller's record says what the host holds. A load that fails, or `stop`, is a judgement against the change.
        Raises ValueError for an item without a probe known here: ask `refusal` first.
        """
        if item.probe is None or self.refusal(item) is not None:
            raise ValueError(f"{item.id}: no probe to prove it with")
        probe = self.probes[item.probe]()
        trial = interleave(set_on, set_off, lambda: probe.run(item), rounds=self.rounds, stop=stop, on_run=on_run)
        if trial.reason is not None:
            return Judgement(False, "not measured to the end", trial.reason, n_rounds=len(trial.samples) // 2)
        max_loss = _DEFAULT_MAX_LOSS if item.max_loss is None else item.max_loss
        found = judge(trial.samples, min_gain=1.0 if item.min_gain is None else item.min_gain, max_loss=max_loss)
        if found.keep:
            set_on()
        return found


def interleave(
    set_on: Callable[[], None],
    set_off: Callable[[], None],
    run: Callable[[], Mapping[str, float]],
    *,
    rounds: int,
    stop: Callable[[], bool] = lambda: False,
    on_run: Callable[[Sample], None] = lambda sample: None,
) -> Trial:
    """Run off, on, off, ..., on, off: 2 `rounds` + 1 runs behind one that is not counted (first use warms up). Ends off.

    Changes the host only through `set_on` and `set_off`.
    """
    samples: list[Sample] = []
    is_on = False
    set_off()
    for number in range(2 * rounds + 2):
        wanted = number % 2 == 0 and number > 0
        if wanted != is_on:
            (set_on if wanted else set_off)()
            is_on = wanted
        why = f"stopped after {len(samples)} of {2 * rounds + 1} runs" if stop() else None
        try:
            figures = {} if why else dict(run())
        except (HicacheError, OSError) as error:
            why = f"the load failed in run {number + 1}: {error}"
        if why is not None:
            if is_on:
                set_off()
            return Trial(tuple(samples), why)
        if number > 0:
            samples.append(Sample(is_on, figures))
            on_run(samples[-1])
    return Trial(tuple(samples))

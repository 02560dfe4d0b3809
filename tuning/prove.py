"""`--prove`: run the load of a group of changes without and with them in turn, and keep them only when they gain.

The loads come by name from whoever makes the `Prover`: they move bytes, which this part of the program does not. Where the load an
item names is not there the item is not applied. How a gain is told from
noise is in `gain.py`; how changes are written and taken back is the caller's, who records both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from hicachectl.errors import HicacheError
from hicachectl.tuning.gain import MIN_ROUNDS, Judgement, Sample, judge
from hicachectl.tuning.item import Item

__all__ = ["DEFAULT_ROUNDS", "Probe", "Prover", "Trial", "interleave"]

DEFAULT_ROUNDS = 11
"""The first number whose 98 % interval leaves out the smallest and the largest ratio: one hiccup decides nothing."""
_DEFAULT_MAX_LOSS = 0.03
"""For an item that names none: 3 %, what the shipped ordering recipes name."""


class Probe(Protocol):
    """A load whose speed a group of changes should raise."""

    def run(self, items: Sequence[Item]) -> Mapping[str, float]:
        """Run the load once on the devices the items concern, all at once; return bytes per second by device (PCI address).

        Changes nothing of the host. Raises HicacheError or OSError when it could not be measured.
        """

    def close(self) -> None:
        """Give back what `run` took. Called once, when no run follows."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The runs made; `reason` says why they ended early. The change is off at the end either way."""

    samples: tuple[Sample, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Prover:
    """Proves changes by their loads. `rounds` are pairs of a run with and a run without the changes, at least seven.

    `probes` makes a load by the word of `Item.probe`, such as d2h-concurrent. `on_run` is told each run that counts.
    """

    probes: Mapping[str, Callable[[], Probe]] = field(default_factory=dict)
    rounds: int = DEFAULT_ROUNDS
    on_run: Callable[[Sample], None] = lambda sample: None

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS:
            raise ValueError(f"{self.rounds} rounds cannot tell a gain from noise: at least {MIN_ROUNDS}")

    def refusal(self, item: Item) -> str | None:
        """Say why an item must not even be written under --prove, None when it may. Pure.

        An item that names no probe may: it is applied as without --prove.
        """
        if item.probe is None or item.probe in self.probes:
            return None
        return f"no probe called {item.probe} in this build: whether it gains cannot be measured, so it is not applied"

    def measure(
        self,
        items: Sequence[Item],
        set_on: Callable[[], None],
        set_off: Callable[[], None],
        stop: Callable[[], object] = lambda: None,
    ) -> Judgement:
        """Measure the changes of a group together and judge them. Ends with the changes off: who keeps them sets them on.

        `set_on` and `set_off` write and record the changes and may be called in either state; what they raise goes through, and
        then the caller's record says what the host holds. A load that is not there or fails, or a `stop` that answers before
        a run, is a judgement against the changes. Of the items' own figures the strictest decide. Raises ValueError for a group of several probes or none.
        """
        names = {item.probe for item in items}
        if len(names) != 1 or None in names:
            raise ValueError(f"one probe measures a group, not {sorted(map(str, names))}")
        refused = self.refusal(items[0])
        if refused is not None:
            set_off()
            return Judgement(False, "not measured", refused)
        with closing(self.probes[str(items[0].probe)]()) as probe:
            trial = interleave(
                set_on, set_off, lambda: probe.run(items), rounds=self.rounds, stop=stop, on_run=self.on_run
            )
        if trial.reason is not None:
            return Judgement(False, "not measured to the end", trial.reason, n_rounds=len(trial.samples) // 2)
        min_gain = max(1.0 if item.min_gain is None else item.min_gain for item in items)
        max_loss = min(_DEFAULT_MAX_LOSS if item.max_loss is None else item.max_loss for item in items)
        return judge(trial.samples, min_gain=min_gain, max_loss=max_loss)


def interleave(
    set_on: Callable[[], None],
    set_off: Callable[[], None],
    run: Callable[[], Mapping[str, float]],
    *,
    rounds: int,
    stop: Callable[[], object] = lambda: None,
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

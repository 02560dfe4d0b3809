"""What each part of a host tier is worth, one added after the other, all on the same window (docs/facts.md#attribution). Pure.

    L1 only                         the step without a host pool
    + host pool, a copy a chunk     `stages`: the smallest step's pages, small and unregistered
    + copy backend                  `stages`: the same memory
    + memory                        the smallest step: its kind, huge pages, placement and registration
    + capacity                      the larger steps, to the plateau and past it

What was not measured is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicachectl.tuning.sizing.stages import AGAIN, CHUNKS
from hicachectl.tuning.sizing.steps import Climbed
from hicachectl.tuning.sizing.trial import Trial

__all__ = ["LeftOut", "Waterfall", "WaterfallRow", "waterfall"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that was not measured, and why."""

    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """What was added to the row above, and what it gives. `relative`: the time to the first token against the first row's, less 1.

    `ttft_modelled_mean_s` is modelled prefill and measured waits; `restore_bytes_per_s` None: nothing was restored.
    """

    stage: str
    host_pages: int
    backend: str
    ttft_modelled_mean_s: float
    hit_rate: float
    relative: float
    restore_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The rows from L1 alone on, and those that are not among them."""

    rows: tuple[WaterfallRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def waterfall(climbed: Climbed, stages: Mapping[str, Trial | str]) -> Waterfall:
    """Put L1 alone, the replays beside the steps, and the steps in a row. Pure."""
    made = [step.trial for step in climbed.steps if step.trial is not None]
    chain = [("L1 only", trial) for trial in made if not trial.host_pages]
    pools = [trial for trial in made if trial.host_pages]
    beside = {name: found for name, found in stages.items() if isinstance(found, Trial) and name != AGAIN}
    for name, trial in beside.items():
        backend = f"copy backend {trial.backend}"
        if name != CHUNKS and CHUNKS in beside:
            chain.append((f"+ {backend}", trial))
        else:
            chain.append((f"+ host pool, {name if name == CHUNKS else backend}, small pages", trial))
    for trial in pools[:1]:
        chain.append((f"+ {'' if beside else 'host pool, '}{_memory_words(trial)}", trial))
    chain += [("+ capacity", trial) for trial in pools[1:]]
    rows: list[WaterfallRow] = []
    for stage, trial in chain:
        if trial.ttft_mean_s is None:
            continue
        first = rows[0].ttft_modelled_mean_s if rows else trial.ttft_mean_s
        relative = trial.ttft_mean_s / first - 1 if first else 0.0
        rows.append(
            WaterfallRow(
                stage, trial.host_pages, trial.backend, trial.ttft_mean_s, trial.rate, relative, trial.restore_bytes_per_s
            )
        )  # fmt: skip
    left_out = tuple(LeftOut(name, found) for name, found in stages.items() if isinstance(found, str) and name != AGAIN)
    return Waterfall(tuple(rows), left_out)


def _memory_words(trial: Trial) -> str:
    """Say what the memory of a step is."""
    made = trial.made
    if made is None:
        return "memory not known"
    share = "huge pages not known" if made.huge_share is None else f"{int(100 * made.huge_share)} % huge pages"
    kind = [] if made.kind == "anonymous" else [made.kind]
    placed = [made.placement] if made.placement else []
    return ", ".join([*kind, share, *placed, *(["registered"] if made.registered_bytes else [])])

"""Seeded workloads of four classes, shaped after public traces; a seed gives the same requests with one NumPy release.

    multi-turn     chats that share their first block; shaped after Mooncake's FAST'25 conversation trace
    agent          coding agents: shared tools and system prompt, a context that grows by small steps and is sometimes
                   rewritten; shaped after 100 sessions of callanjfox/kv-cache-tester started a minute apart
    shared-system  a few system prompts of unequal popularity, each followed by a question of its own
    one-shot       long documents read once, behind one short system prompt: nothing a larger pool could keep

A workload is a plan of steps: how many blocks a request keeps of the one before it in its session, and how long it is.
Lengths are in tokens, so any block size gives the same traffic. Session lengths and first inputs are stratified (every
seed has the same quantiles in another order): a small workload keeps the shape.

The numbers are fitted to the traces' own percentiles; `tests/runtime/replay/test_synthetic.py` holds fit and tolerance
for seed 0. Between seeds, rates of multi-turn spread by about half a point (standard deviation), those of agent by up to
five points at 8,000 blocks, because a hundred sessions are few. Bursts of arrivals beyond that are not modelled.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.request import Blocks, TraceInfo, TraceRequest, summarize

__all__ = ["CLASSES", "SyntheticTrace", "synthetic"]

Floats = npt.NDArray[np.float64]

MAX_REQUESTS = 1_000_000  # a plan is kept in memory, about 100 bytes a request


@dataclass(frozen=True, slots=True)
class _Step:
    """A planned request: it keeps `n_kept` tokens of its session's last request (whole blocks count), the rest is new."""

    time_s: float
    session: int
    turn: int
    n_kept: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """Steps in order of time; `prefix[session]` is (which shared prompt, its tokens) that a session begins with."""

    steps: list[_Step]
    prefix: list[tuple[int, int]]


def synthetic(
    name: str, *, seed: int = 0, n_requests: int | None = None, block_tokens: int | None = None
) -> SyntheticTrace:
    """Return the workload of a class. Pure.

    `n_requests` and `block_tokens` default to the class's own. Raises UsageError for an unknown class (with the nearest
    name) and for numbers out of range.

    >>> first = next(iter(synthetic("multi-turn", n_requests=100)))
    >>> first.index, first.scope, int(first.blocks[0])
    (0, 0, 0)
    """
    class_ = CLASSES.get(name)
    if class_ is None:
        near = difflib.get_close_matches(name, CLASSES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"classes: {', '.join(CLASSES)}"
        raise UsageError(f"unknown synthetic workload {name!r}", hint=hint)
    n_requests = class_.n_requests if n_requests is None else n_requests
    block_tokens = class_.block_tokens if block_tokens is None else block_tokens
    if not 1 <= n_requests <= MAX_REQUESTS:
        raise UsageError(f"{n_requests} requests, not 1..{MAX_REQUESTS}")
    if block_tokens < 1:
        raise UsageError(f"blocks of {block_tokens} tokens, not at least 1")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative")
    return SyntheticTrace(name, seed, n_requests, block_tokens, class_.plan)


class SyntheticTrace:
    """A workload made from a seed; iterates like a trace file. Ids are global, in order of first appearance."""

    def __init__(self, name: str, seed: int, n_requests: int, block_tokens: int, plan: Planner) -> None:
        self.name = name
        self.seed = seed
        self.n_requests = n_requests
        self._block_tokens = block_tokens
        self._plan = plan
        self._info: TraceInfo | None = None

    @property
    def format(self) -> str:
        """Name of the workload, `synthetic/CLASS`."""
        return f"synthetic/{self.name}"

    @property
    def block_tokens(self) -> int:
        """Tokens a block id stands for."""
        return self._block_tokens

    def info(self) -> TraceInfo:
        """Summarize the workload; later calls remember."""
        if self._info is None:
            self._info = summarize(self, format_name=self.format, path=None, block_tokens=self._block_tokens)
        return self._info

    def __iter__(self) -> Iterator[TraceRequest]:
        """Make the requests in order of time; each iteration gives the same."""
        plan = self._plan(np.random.default_rng([_CLASS_SEED[self.name], self.seed]), self.n_requests)
        block_tokens = self._block_tokens
        shared: dict[int, int] = {}  # shared prompt -> its tokens, the longest a session begins with
        for prompt, tokens in plan.prefix:
            shared[prompt] = max(shared.get(prompt, 0), tokens)
        next_id = 0
        prompts: dict[int, Blocks] = {}
        for prompt in sorted(shared):
            n = shared[prompt] // block_tokens
            prompts[prompt] = np.arange(next_id, next_id + n, dtype=np.int64)
            next_id += n
        last: dict[int, Blocks] = {}
        for index, step in enumerate(plan.steps):
            before = last.get(step.session)
            if before is None:
                prompt, tokens = plan.prefix[step.session]
                before = prompts[prompt][: tokens // block_tokens]
            n_blocks = -(-step.input_tokens // block_tokens)
            kept = before[: min(step.n_kept // block_tokens, step.input_tokens // block_tokens)]
            n_new = n_blocks - len(kept)
            blocks = np.concatenate((kept, np.arange(next_id, next_id + n_new, dtype=np.int64)))
            next_id += n_new
            last[step.session] = blocks
            yield TraceRequest(
                index=index,
                time_s=step.time_s,
                input_tokens=step.input_tokens,
                output_tokens=step.output_tokens,
                blocks=blocks,
                session=str(step.session),
                turn=step.turn,
            )


def _multi_turn(rng: np.random.Generator, n_requests: int) -> _Plan:
    """Plan chats that arrive at random over an hour, whatever their number; the first n_requests in time are kept."""
    span_s, sessions_a_request = 3537.0, 0.62
    system, longest = 512, 126_195  # one shared block and the longest input of the recorded trace
    n_sessions = math.ceil(1.3 * sessions_a_request * n_requests) + 8
    starts = np.cumsum(rng.exponential(span_s / (sessions_a_request * n_requests), n_sessions))
    first = np.maximum(_stratified(rng, n_sessions, 5750, 1.19, sigma_below=1.55), system + 1)
    steps = []
    for session in range(n_sessions):
        time_s, kept, n_input, turn = float(starts[session]), system, int(min(first[session], longest)), 1
        while True:
            n_output = _chat_output(rng)
            steps.append(_Step(time_s, session, turn, kept, n_input, n_output))
            if rng.random() >= _GO_ON[min(turn, len(_GO_ON)) - 1] or n_input >= longest:
                break
            time_s += float(rng.lognormal(math.log(155), 1.14))
            kept = n_input
            if rng.random() < 0.12:  # the client sends less of the conversation than before
                kept = max(system, int(n_input * rng.random()))
            text = rng.lognormal(math.log(25), 1.0) if rng.random() < 0.75 else rng.lognormal(math.log(3000), 1.1)
            n_input = int(min(kept + n_output + text, longest))
            turn += 1
    steps.sort(key=lambda step: (step.time_s, step.session, step.turn))
    return _renumbered(steps[:n_requests], [(0, system)] * n_sessions)


def _chat_output(rng: np.random.Generator) -> int:
    """Draw the length of an answer: one in six is a few words, one in fifty a long text."""
    kind = rng.random()
    if kind < 0.16:
        return _clipped(rng.lognormal(math.log(22), 0.6), 1, 200)
    return _clipped(rng.uniform(700, 1_600) if kind > 0.98 else rng.normal(390, 150), 1, 2_000)


# Share of chats that go on after turn 1, 2, ...: Mooncake conversation, chats told apart by their second block.
_GO_ON = (0.365, 0.47, 0.55, 0.60, 0.64, 0.66, 0.68, 0.70)


def _agent(rng: np.random.Generator, n_requests: int) -> _Plan:
    """Plan agent sessions that start a minute apart."""
    n_sessions = max(1, round(n_requests / 55.7))
    wanted = _stratified(rng, n_sessions, 26.5, 1.2, top=409)
    prefixes = rng.integers(12_000, 16_001, n_sessions)
    first = _stratified(rng, n_sessions, 44_000, 1.0)
    large = rng.permutation(n_sessions) < round(0.11 * n_sessions)  # these run with a window of a million tokens
    first[large] = _stratified(rng, int(large.sum()), 400_000, 0.45)
    wanted[large] /= 2
    sizes = _scaled_to(wanted, n_requests)
    breaks = rng.permutation(n_sessions) < round(0.2 * n_sessions)  # the others are done in one sitting
    # Long sessions tend to start first: a real day has others beside them all the time, a small sample has not.
    starts = np.empty(n_sessions)
    starts[np.argsort(-sizes * rng.lognormal(0, 1.0, n_sessions))] = 60.0 * np.arange(n_sessions)
    steps = []
    for session in range(n_sessions):
        size, prefix, window = int(sizes[session]), int(prefixes[session]), 890_000 if large[session] else 215_000
        pace = float(rng.lognormal(0, 0.05))
        n_breaks = 3.5 if breaks[session] else 0.0
        time_s, kept, n_input = float(starts[session]), prefix, int(min(prefix + first[session], window))
        for turn in range(1, size + 1):
            n_output = _agent_output(rng)
            steps.append(_Step(time_s, session, turn, kept, n_input, n_output))
            time_s += pace * (n_input / 100_000) ** 0.3 * _agent_gap(rng, n_breaks / size)
            grown = n_input + int(rng.lognormal(math.log(64 * 13), 1.35))
            kept = n_input
            if grown > window or rng.random() < 0.03:  # the context is rewritten behind the shared prompt
                kept = prefix
                grown = prefix + int((min(grown, window) - prefix) * rng.uniform(0.3, 1.0))
            n_input = grown
    steps.sort(key=lambda step: (step.time_s, step.session, step.turn))
    return _renumbered(steps, [(0, int(prefix)) for prefix in prefixes])


def _agent_output(rng: np.random.Generator) -> int:
    """Draw the length of an answer: a tool call, one in five times a text or a file."""
    size = rng.lognormal(math.log(215), 0.5) if rng.random() < 0.8 else rng.lognormal(math.log(620), 1.05)
    return _clipped(size, 1, 16_000)


def _agent_gap(rng: np.random.Generator, break_share: float) -> float:
    """Draw the seconds to the next request: a tool call, a person who reads, or a break."""
    if rng.random() < min(0.2, break_share):
        return float(rng.lognormal(math.log(5_000), 1.2))
    return float(rng.lognormal(math.log(21), 0.45) if rng.random() < 0.81 else rng.lognormal(math.log(130), 1.15))


def _shared_system(rng: np.random.Generator, n_requests: int) -> _Plan:
    """Plan single questions behind one of eight system prompts, the k-th most popular asked 1/k as often."""
    n_prompts = 8
    weights = 1 / np.arange(1, n_prompts + 1)
    prompts = rng.choice(n_prompts, n_requests, p=weights / weights.sum()).tolist()
    tokens = rng.permutation(np.linspace(1_024, 3_072, n_prompts).astype(np.int64)).tolist()
    times = np.cumsum(rng.exponential(0.25, n_requests)).tolist()
    questions = np.maximum(8, _stratified(rng, n_requests, 1_200, 0.9, top=16_000)).astype(np.int64).tolist()
    steps = []
    for at, prompt in enumerate(prompts):
        n_output = _clipped(rng.lognormal(math.log(150), 0.8), 1, 2_000)
        steps.append(_Step(times[at] - times[0], at, 1, tokens[prompt], tokens[prompt] + questions[at], n_output))
    return _Plan(steps, [(prompt, tokens[prompt]) for prompt in prompts])


def _one_shot(rng: np.random.Generator, n_requests: int) -> _Plan:
    """Plan documents, each read once."""
    system = 512
    times = np.cumsum(rng.exponential(0.5, n_requests)).tolist()
    inputs = np.maximum(system + 256, _stratified(rng, n_requests, 11_000, 0.9, top=120_000)).astype(np.int64).tolist()
    steps = []
    for at, n_input in enumerate(inputs):
        n_output = _clipped(rng.lognormal(math.log(400), 0.6), 1, 4_000)
        steps.append(_Step(times[at] - times[0], at, 1, system, n_input, n_output))
    return _Plan(steps, [(0, system)] * n_requests)


def _stratified(
    rng: np.random.Generator,
    n: int,
    median: float,
    sigma: float,
    *,
    sigma_below: float | None = None,
    top: float = math.inf,
) -> Floats:
    """Return n log-normal values, one from each of n equally likely intervals, in random order.

    `sigma_below` is the width below the median where it differs.
    """
    points = np.clip((rng.permutation(n) + rng.random(n)) / n, 1e-9, 1 - 1e-9)
    deviations = np.array([_NORMAL.inv_cdf(point) for point in points])
    widths = np.where(deviations < 0, sigma if sigma_below is None else sigma_below, sigma)
    values: Floats = np.minimum(median * np.exp(deviations * widths), top)
    return values


_NORMAL = NormalDist()


def _scaled_to(sizes: Floats, total: int) -> npt.NDArray[np.int64]:
    """Return whole sizes, none below 1, in proportion to `sizes` as far as possible, that sum to total >= len(sizes)."""
    edges = np.rint(np.cumsum(sizes) / sizes.sum() * (total - len(sizes))).astype(np.int64)
    return 1 + np.diff(edges, prepend=0)


def _clipped(value: float, least: int, most: int) -> int:
    return int(min(max(value, least), most))


def _renumbered(steps: list[_Step], prefix: list[tuple[int, int]]) -> _Plan:
    """Number sessions from 0 in order of first appearance and start the clock at the first step."""
    start_s = steps[0].time_s
    numbers: dict[int, int] = {}
    renumbered = []
    for step in steps:
        session = numbers.setdefault(step.session, len(numbers))
        renumbered.append(
            _Step(step.time_s - start_s, session, step.turn, step.n_kept, step.input_tokens, step.output_tokens)
        )
    return _Plan(renumbered, [prefix[session] for session in numbers])


Planner = Callable[[np.random.Generator, int], _Plan]


@dataclass(frozen=True, slots=True)
class _Class:
    """A class: its planner and what it takes for granted where the caller says nothing."""

    plan: Planner
    n_requests: int
    block_tokens: int


CLASSES = {
    "multi-turn": _Class(_multi_turn, 800, 512),
    "agent": _Class(_agent, 557, 64),
    "shared-system": _Class(_shared_system, 2_000, 64),
    "one-shot": _Class(_one_shot, 400, 512),
}
_CLASS_SEED = {name: number for number, name in enumerate(CLASSES, 1)}

"""The loop of --prove: what is switched when, where it ends, and what a load that fails or a stop does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fakes.items import item
from tuned_host import CARDS, choose, ido_knob, make_host
from tuned_host import IDO as IDO_BITS

from hicachectl.errors import Unsupported
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.gain import Judgement, Sample
from hicachectl.tuning.item import Item
from hicachectl.tuning.prove import DEFAULT_ROUNDS, Prover, interleave

LOAD = "d2h-concurrent"
IDO = item("pcie.ido-request", probe=LOAD, min_gain=1.10, max_loss=0.03, ordering=True, subject="0000:b7:00.0")


@dataclass
class FakeHost:
    """A switch, and a load on two devices that is faster by `effect` while it is on, with noise of a fixed seed."""

    effect: float = 1.0
    noise: float = 0.01
    fails_in_run: int | None = None
    error: Exception = field(default_factory=lambda: OSError(5, "Input/output error"))
    on: bool = True
    """Apply wrote the change and read it back before it is proven."""
    history: list[str] = field(default_factory=list)
    asked_for: list[tuple[Item, ...]] = field(default_factory=list)
    closed_in: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(11)

    def set_on(self) -> None:
        self.on = True
        self.history.append("on")

    def set_off(self) -> None:
        self.on = False
        self.history.append("off")

    def run(self, items: Sequence[Item]) -> Mapping[str, float]:
        self.asked_for.append(tuple(items))
        self.history.append("run")
        if len(self.asked_for) == self.fails_in_run:
            raise self.error
        speed = 25e9 * (self.effect if self.on else 1.0)
        return {name: speed * self._chance.gauss(1.0, self.noise) for name in ("0000:b7:00.0", "0000:b8:00.0")}

    def prove(self, *wanted: Item, **how: Any) -> Judgement:
        stop = how.pop("stop", lambda: None)
        return Prover({LOAD: lambda: self}, **how).measure(wanted or (IDO,), self.set_on, self.set_off, stop)

    def close(self) -> None:
        self.closed_in.append("on" if self.on else "off")


def test_a_change_that_gains_is_kept() -> None:
    host = FakeHost(effect=1.3)
    found = host.prove()
    assert found.keep and not host.on  # who keeps it sets it on, once
    assert found.n_rounds == DEFAULT_ROUNDS
    assert found.total is not None and found.total.low > 1.2
    assert found.text.startswith("sum x1.3") and "11 rounds" in found.text


def test_a_change_that_gains_nothing_is_off_at_the_end_and_the_figures_are_told() -> None:
    host = FakeHost()
    found = host.prove()
    assert not found.keep and not host.on
    assert found.reason == "no gain beyond the noise"
    assert found.text.startswith("no gain beyond the noise: sum x")


def test_the_items_own_figures_decide() -> None:
    assert not FakeHost(effect=1.08, noise=0.001).prove().keep
    assert FakeHost(effect=1.08, noise=0.001).prove(item(probe=LOAD, min_gain=1.05)).keep
    assert (
        FakeHost(effect=1.02, noise=0.001).prove(item(probe=LOAD)).keep
    )  # beyond the noise is enough where none is named
    assert not FakeHost(effect=0.96, noise=0.001).prove(item(probe=LOAD)).keep


def test_in_a_group_the_strictest_figures_decide() -> None:
    mild, strict = item(probe=LOAD, min_gain=1.01), item(probe=LOAD, min_gain=1.2)
    assert FakeHost(effect=1.1, noise=0.001).prove(mild, mild).keep
    assert not FakeHost(effect=1.1, noise=0.001).prove(mild, strict).keep


def test_runs_alternate_behind_one_that_does_not_count_and_begin_and_end_without_the_change() -> None:
    host = FakeHost()
    seen: list[Sample] = []
    trial = interleave(host.set_on, host.set_off, lambda: host.run([IDO]), rounds=2, on_run=seen.append)
    assert host.history == ["off", "run", "run", "on", "run", "off", "run", "on", "run", "off", "run"]
    assert [sample.on for sample in trial.samples] == [False, True, False, True, False]
    assert tuple(seen) == trial.samples
    assert trial.reason is None


def test_the_load_gets_the_whole_group() -> None:
    host, other = FakeHost(), item("pcie.ido-request", probe=LOAD, subject="0000:b8:00.0")
    host.prove(IDO, other)
    assert set(host.asked_for) == {(IDO, other)}
    assert len(host.asked_for) == 2 * DEFAULT_ROUNDS + 2


@pytest.mark.parametrize("number", range(1, 2 * DEFAULT_ROUNDS + 3))
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), Unsupported("no copy engine")])
def test_a_load_that_fails_in_any_run_ends_with_the_change_off_and_says_why(number: int, error: Exception) -> None:
    host = FakeHost(effect=2.0, fails_in_run=number, error=error)
    found = host.prove()
    assert not found.keep and not host.on
    assert f"failed in run {number}: {error}" in (found.reason or "")
    assert host.closed_in == ["off"]  # what the load took is given back when the change is off again


@pytest.mark.parametrize("after", range(2 * DEFAULT_ROUNDS + 2))
def test_a_stop_before_any_run_ends_with_the_change_off(after: int) -> None:
    host = FakeHost(effect=2.0)
    found = host.prove(stop=lambda: "SIGINT" if len(host.asked_for) >= after else None)
    assert not found.keep and not host.on
    assert found.reason == f"stopped after {max(0, after - 1)} of {2 * DEFAULT_ROUNDS + 1} runs"
    assert len(host.asked_for) == after


def test_what_the_switch_raises_goes_through() -> None:
    def refuse() -> None:
        raise Unsupported("reads back 0x0009")

    host = FakeHost(effect=2.0)
    with pytest.raises(Unsupported):
        Prover({LOAD: lambda: host}).measure([IDO], refuse, host.set_off)


def test_a_mistake_in_a_load_is_not_taken_for_a_failed_run() -> None:
    with pytest.raises(ZeroDivisionError):
        FakeHost(fails_in_run=3, error=ZeroDivisionError()).prove()


def test_without_its_load_an_item_is_not_applied_and_the_reason_says_so() -> None:
    prover = Prover()
    assert "no probe called d2h-concurrent in this build" in (prover.refusal(IDO) or "")
    assert Prover({LOAD: FakeHost}).refusal(IDO) is None
    host = FakeHost(effect=2.0)
    found = prover.measure([IDO], host.set_on, host.set_off)
    assert not found.keep and not host.on
    assert "no probe called d2h-concurrent" in found.text


def test_an_item_that_names_no_load_is_applied_as_without_prove() -> None:
    memory = item("thp.enabled")
    assert Prover().refusal(memory) is None
    for group in ([memory], [IDO, memory], []):
        with pytest.raises(ValueError, match="one probe"):
            Prover({LOAD: FakeHost}).measure(group, lambda: None, lambda: None)


def test_too_few_rounds_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at least 7"):
        Prover(rounds=6)


@pytest.mark.parametrize(("effect", "result"), [(1.3, "ok"), (1.0, "no-gain")])
def test_apply_keeps_what_a_prover_finds_to_gain_and_takes_back_what_it_does_not(
    effect: float, result: str, tmp_path: Path
) -> None:
    chance = random.Random(12)

    class Load:
        """Faster by the effect while the bits of all cards are set."""

        def run(self, items: Sequence[Item]) -> Mapping[str, float]:
            on = all(host.word(card) & IDO_BITS for card in CARDS)
            return {card: 25e9 * (effect if on else 1.0) * chance.gauss(1.0, 0.01) for card in CARDS}

        def close(self) -> None: ...

    measure = Prover({LOAD: Load}).measure
    host = make_host(tmp_path, knobs=(ido_knob(probe=LOAD),), measure=measure)
    report = host.session.apply(host.session.plan(choose()), ApplyOptions(prove=True))
    assert {outcome.result.value for outcome in report.items} == {result}
    assert [host.word(card) & IDO_BITS for card in CARDS] == [IDO_BITS if result == "ok" else 0] * 3
    for outcome in report.items:
        assert "sum x" in (outcome.proof or "")
        assert ("no gain beyond the noise" in (outcome.reason or "")) == (result == "no-gain")

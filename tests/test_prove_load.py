"""`tune apply --prove` with its load on accelerators that move no bytes, on a made-up host: kept on a gain, else taken back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fakes.items import item
from fakes.link_rig import FakeFlow, FakeRig
from hosts.shapes import describe
from tuned_host import IDO, TunedHost, accelerators, choose, ido_knob, make_host

from hicachectl.errors import CapacityError, Unsupported, Vanished
from hicachectl.prove_load import D2H_CONCURRENT, ConcurrentWrites, Loads, see_accelerators
from hicachectl.runtime.memory.budget import HostMemory
from hicachectl.tune_session import make_session
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.outcome import ApplyReport, RunOutcome
from hicachectl.tuning.prove import Prover
from hicachectl.tuning.rehearsal import rehearse_apply

ROUNDS = 7
U2 = ("0000:63:00.0", "0000:64:00.0")


@dataclass(frozen=True)
class Seen:
    """What torch says of a device."""

    name: str
    address: str | None
    reason: str | None = None


class Bench:
    """A host with cards in pairs: the bits of U2 are off on both, of U3 on one; links are as fast as the bits allow."""

    def __init__(self, folder: Path, gain: float, *, noise: float = 0.005) -> None:
        self.host: TunedHost = make_host(folder, describe("8n8x-4up16"))
        self.cards = accelerators(read_machine(self.host.root))
        self.gain, self.noise, self.chance = gain, noise, random.Random(5)
        self.refused: dict[str, Any] = {}
        """What a rig does not get: `unbound` nodes, `unregistered` devices."""
        self.memory = HostMemory(total_bytes=1 << 40, available_bytes=1 << 39)
        self.fails: Callable[[FakeFlow], None] | None = None
        self.seen: list[Any] = [Seen(f"cuda:{at}", address) for at, address in enumerate(self.cards)]
        self.rigs: list[FakeRig] = []
        self.sights = 0
        self.loads = Loads(self.host.root, see=self.see, rig=self.rig, host=lambda: self.memory)
        self.before = [self.ido(card) for card in self.cards]

    def see(self) -> Sequence[Any]:
        self.sights += 1
        return self.seen

    def rig(self, most_bytes: int) -> FakeRig:
        self.rigs.append(FakeRig(self.speed, fails=self.fails, **self.refused))
        return self.rigs[-1]

    def speed(self, flow: FakeFlow, batch: list[FakeFlow]) -> float:
        assert not flow.up
        on = all(self.ido(self.cards[int(one.device[-1])]) for one in batch)
        return 3e9 * (self.gain if on else 1.0) * self.chance.gauss(1.0, self.noise)

    def ido(self, address: str) -> bool:
        return bool(self.host.word(address) & IDO)

    def apply(self, stop: Callable[[], str | None] = lambda: None) -> ApplyReport:
        machine = read_machine(self.host.root)
        uplinks = {address: uplink.id for uplink in machine.uplinks for address in uplink.accelerators}
        knob = _PerUplink(ido_knob(probe=D2H_CONCURRENT), uplinks)
        session = replace(
            self.host.session, knobs=(knob,), measure=Prover(self.loads.probes, rounds=ROUNDS).measure,
            cannot_measure=self.loads.refusal,
        )  # fmt: skip
        self.session, self.plan = session, session.plan(choose())
        return session.apply(self.plan, ApplyOptions(prove=True), stop=stop)


@dataclass(frozen=True)
class _PerUplink:
    """The knob of the ordering bits with each card's own uplink, as the recipe has it."""

    knob: Any
    uplinks: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.knob.name)

    def targets(self, *given: Any) -> Any:
        return self.knob.targets(*given)

    def items(self, *given: Any) -> tuple[Item, ...]:
        return tuple(replace(one, uplink=self.uplinks[str(one.subject)]) for one in self.knob.items(*given))


def results(report: ApplyReport) -> list[str]:
    return [outcome.result.value for outcome in report.items]


def test_a_change_that_lets_writers_pass_each_other_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    report = bench.apply()
    assert (report.outcome, set(results(report))) == (RunOutcome.APPLIED, {"ok"})
    assert all(map(bench.ido, bench.cards))
    assert all("sum x1.9" in (outcome.proof or "") for outcome in report.items)
    assert [rig.held for rig in bench.rigs] == [set()] * len(bench.rigs)  # nothing stays taken


def test_all_accelerators_of_one_uplink_write_at_once_to_nodes_of_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    bench.apply()
    assert len(bench.rigs) == 2  # a load an uplink
    batches = [[(flow.device, flow.node) for flow in rig.batches[0]] for rig in bench.rigs]
    assert batches == [[("cuda:4", 4), ("cuda:5", 5)], [("cuda:6", 6), ("cuda:7", 7)]]
    assert all(len(rig.batches) == 1 for rig in bench.rigs)  # memory and flows are made once


def test_a_change_without_effect_is_taken_back_and_the_figures_are_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.0)
    report = bench.apply()
    assert set(results(report)) == {"no-gain"}
    assert list(map(bench.ido, bench.cards)) == bench.before
    assert all("no gain beyond the noise" in (outcome.reason or "") for outcome in report.items)


@pytest.mark.parametrize("error", [Vanished("fell off the bus"), CapacityError("no room on the device")])
@pytest.mark.parametrize("in_run", [1, 5])
def test_a_device_that_fails_in_the_middle_has_its_change_taken_back(tmp_path: Path, error: Any, in_run: int) -> None:
    bench = Bench(tmp_path, gain=1.95)
    waits: list[str] = []

    def fail(flow: FakeFlow) -> None:
        if flow.device == "cuda:5":
            waits.append(flow.device)
            if len(waits) > in_run * 100:
                raise error

    bench.fails = fail
    report = bench.apply()
    first = [outcome for outcome in report.items if outcome.item.subject in U2]
    assert [outcome.result.value for outcome in first] == ["no-gain"] * 2
    assert all(str(error) in (outcome.reason or "") for outcome in first)
    assert not any(map(bench.ido, U2))
    assert all(map(bench.ido, bench.cards[6:]))  # the other uplink's proof went on
    assert not bench.rigs[0].held


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ({"unbound": (5,)}, "host memory of X5 is not on node 5"),
        ({"unregistered": ("cuda:5",)}, "host memory of X5 is not registered"),
    ],
)
def test_a_gain_on_memory_that_is_not_bound_or_not_registered_is_no_proof(
    tmp_path: Path, refused: dict[str, Any], words: str
) -> None:
    bench = Bench(tmp_path, gain=1.95)
    bench.refused = refused
    report = bench.apply()
    first = [outcome for outcome in report.items if outcome.item.subject in U2]
    assert [outcome.result.value for outcome in first] == ["no-gain"] * 2
    assert all(words in (outcome.reason or "") for outcome in first)
    assert all("bind: " in (one.reason or "") or "register: " in (one.reason or "") for one in first)
    assert not any(map(bench.ido, U2))
    assert all(map(bench.ido, bench.cards[6:]))  # the other uplink's proof went on
    assert not bench.rigs[0].held


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (HostMemory(total_bytes=4 << 30, available_bytes=1 << 30), "usable memory is 512.0 MiB"),
        (
            HostMemory(total_bytes=1 << 40, available_bytes=1 << 39, node_free_bytes={4: 100 << 20, 5: 1 << 40}),
            "on nodes 4, which have room for 100.0 MiB",
        ),
    ],
)
def test_without_memory_for_the_load_nothing_is_written(tmp_path: Path, memory: HostMemory, words: str) -> None:
    bench = Bench(tmp_path, gain=1.95)
    bench.memory = memory
    report = bench.apply()
    first = [outcome for outcome in report.items if outcome.item.subject in U2]
    assert [outcome.result.value for outcome in first] == ["not-tried"] * 2
    assert all(words in (outcome.reason or "") for outcome in first)
    written = [path for path, _ in bench.host.kernel.log if path.endswith("config")]
    assert not [path for path in written if any(card in path for card in U2)]


def test_a_signal_in_the_middle_of_a_proof_puts_everything_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    report = bench.apply(stop=lambda: "SIGINT" if bench.rigs and bench.rigs[0].batches else None)
    assert report.outcome is RunOutcome.UNDONE
    assert report.stopped_by == "SIGINT"
    assert list(map(bench.ido, bench.cards)) == bench.before


def test_a_card_that_torch_does_not_see_keeps_its_whole_uplink_from_being_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    del bench.seen[5]
    report = bench.apply()
    assert results(report) == ["not-tried", "not-tried", "ok"]
    assert [bench.ido(card) for card in bench.cards[4:]] == [False, False, True, True]
    assert bench.cards[5] in (report.items[0].reason or "")
    assert "CUDA_VISIBLE_DEVICES" in (report.items[0].reason or "")
    written = [path for path, _ in bench.host.kernel.log if path.endswith("config")]
    assert not [path for path in written if any(card in path for card in U2)]


def test_without_an_accelerator_nothing_is_written_and_the_reason_says_what_to_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)

    def blind() -> Sequence[Any]:
        raise Unsupported(
            "torch sees no accelerator in this process", why="no driver", hint="install the vendor's torch"
        )

    bench.loads = Loads(bench.host.root, see=blind, rig=bench.rig)
    report = bench.apply()
    assert (report.outcome, set(results(report))) == (RunOutcome.NOTHING, {"not-tried"})
    assert not bench.host.kernel.log
    for words in ("d2h-concurrent", "torch sees no accelerator", "no driver", "install the vendor's torch"):
        assert words in (report.items[0].reason or "")
    foreseen = rehearse_apply(bench.session, bench.plan, ApplyOptions(prove=True))
    assert all("dry run" in (one.reason or "") and "install" in (one.reason or "") for one in foreseen.items)


def test_the_accelerators_are_not_opened_before_an_item_asks_and_then_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    assert bench.sights == 0
    assert bench.loads.refusal(item("thp.enabled")) is None
    assert bench.sights == 0  # who holds a device is asked before this process opens one
    bench.apply()
    assert bench.sights == 1


def test_a_load_that_this_build_lacks_and_an_unknown_subject_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gain=1.95)
    assert "does not have" in (bench.loads.refusal(item(probe="p2p")) or "")
    nowhere = item("pcie.ido", probe=D2H_CONCURRENT, subject="0000:ff:00.0")
    assert "no accelerator is known behind 0000:ff:00.0" in (bench.loads.refusal(nowhere) or "")
    probe = ConcurrentWrites(read_machine(bench.host.root), (), bench.rig(1))
    with pytest.raises(Unsupported):
        probe.run([nowhere])


def test_this_machine_without_torch_or_accelerator_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is an accelerator here")
    with pytest.raises(Unsupported, match="torch sees no accelerator") as caught:
        see_accelerators()
    assert caught.value.hint is not None


def test_the_session_of_a_host_has_the_load(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    session = make_session(host.root, host.kernel, host.state)
    assert session.measure is not None
    assert "d2h-concurrent" in (session.cannot_measure(item(probe=D2H_CONCURRENT, subject="0000:21:00.0")) or "")

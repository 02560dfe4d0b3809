"""A made-up host, two plain knobs and a session to write to it: for tests of apply, rollback and verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.kernel import FakeKernel, FakeRoot
from hosts.builder import build_root
from hosts.config_space import Pcie
from hosts.spec import GIB, Bus, Function, HostSpec, NodeSpec, link

from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.model import Machine, SlotKind
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.session import Session
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.state import StateDir
from hicachectl.tuning.target import Method, Register, Rule, Target, agrees

THP = "/sys/kernel/mm/transparent_hugepage"
CONTROL_2, IDO = 0x88, 0x0300
"""Device Control 2 of the made-up functions (their capability is at 0x60), both IDO bits."""


@dataclass(frozen=True)
class PlainKnob:
    """Words of files, or one register of every accelerator; what it cannot read it skips."""

    name: str
    places: Callable[[Machine], Sequence[tuple[str | None, Target]]]
    on_not_implemented: str = "fail"
    probe: str | None = None
    proof: str = ""
    ordering: bool = False

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        return tuple(target for _, target in self.places(machine)) if self.name in choices.wanted else ()

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        choice = choices.wanted.get(self.name)
        return () if choice is None else tuple(self._item(sight, s, t, choice) for s, t in self.places(sight.machine))

    def _item(self, sight: Sight, subject: str | None, target: Target, choice: Choice) -> Item:
        fact = sight.value(target)
        wanted = (int(choice.value, 0) if target.register else choice.value,)
        kind = ItemKind.SKIP
        if fact.value is not None:
            kind = ItemKind.SAME if agrees(target, Rule.EQUAL, wanted, fact.value) else ItemKind.CHANGE
        return Item(
            id=f"{self.name}@{subject}" if subject else self.name,
            knob=self.name,
            subject=subject,
            title=self.name,
            kind=kind,
            target=target,
            old=fact.value,
            old_reason=fact.reason,
            wanted=wanted,
            rule=Rule.EQUAL,
            why=choice.reason,
            origin=choice.origin,
            source=fact.source,
            reason=fact.reason,
            remedy="read it as root" if fact.value is None else None,
            on_not_implemented=self.on_not_implemented,
            probe=self.probe,
            proof=self.proof,
            ordering=self.ordering,
            uplink="U0" if self.probe else None,
        )


def file_knob(name: str, path: str, method: Method = Method.SYSFS, **more: Any) -> Knob:
    """A knob of one file, sysctl or mount."""
    return PlainKnob(name, lambda machine: [(None, Target(method, path))], **more)


def ido_knob(**more: Any) -> Knob:
    """A knob of both IDO bits of every accelerator, as the public recipe has them."""

    def places(machine: Machine) -> Sequence[tuple[str | None, Target]]:
        return [
            (
                d.address,
                Target(Method.PCI_CONFIG, f"/sys/bus/pci/devices/{d.address}/config", Register(CONTROL_2, 16, IDO)),
            )
            for d in machine.devices
            if d.kind == SlotKind.ACCELERATOR
        ]

    return PlainKnob("pcie.ido", places, **{"on_not_implemented": "skip", "ordering": True, **more})


KNOBS: tuple[Knob, ...] = (
    file_knob("thp.enabled", f"{THP}/enabled"),
    file_knob("thp.defrag", f"{THP}/defrag"),
    file_knob("tmpfs.huge", "/dev/shm", Method.MOUNT),
    file_knob("numa.balancing", "/proc/sys/kernel/numa_balancing", Method.SYSCTL),
    ido_knob(),
)
CARDS = ("0000:21:00.0", "0000:41:00.0", "0000:61:00.0")
"""The accelerators of `small_spec`; IDO is off on all."""


def small_spec(**more: Any) -> HostSpec:
    """One node, three accelerators on a root port each: few files, so that a test is quick."""
    buses = tuple(
        Bus(
            f"0000:{address[5]}0",
            (
                Function(
                    f"0000:{address[5]}0:01.0",
                    node=0,
                    driver="pcieport",
                    link=link(16.0, 16),
                    pcie=Pcie(port_type="root-port"),
                    children=(
                        Function(
                            address,
                            "120000",
                            vendor="1d22",
                            device="3684",
                            revision="01",
                            driver="kunlun",
                            node=0,
                            link=link(16.0, 16),
                            pcie=Pcie(),
                            bar_bytes=32 * GIB,
                        ),
                    ),
                ),
            ),
        )
        for address in CARDS
    )
    node = NodeSpec(0, cpus="0-3", memory_bytes=64 * GIB, free_bytes=48 * GIB, distances=(10,))
    return HostSpec(nodes=(node,), buses=buses, hostname="small", **more)


WANTED = {
    "thp.enabled": "always",
    "thp.defrag": "defer",
    "tmpfs.huge": "within_size",
    "numa.balancing": "1",
    "pcie.ido": "0x0300",
}
"""Each differs from what `small_spec` has: seven changes."""


def choose(wanted: dict[str, str] | None = None, **more: Any) -> Choices:
    """Choices with a reason each."""
    values = WANTED if wanted is None else wanted
    return Choices("test", 1, {name: Choice(value, "a test", "test") for name, value in values.items()}, **more)


@dataclass
class Clock:
    """Counts seconds of one day; sleeping moves it."""

    seconds: int = 0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> str:
        self.seconds += 1
        return f"2026-11-29T{self.seconds // 3600:02d}:{self.seconds // 60 % 60:02d}:{self.seconds % 60:02d}Z"

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class TunedHost:
    """A fake root with its kernel and a session on it."""

    root: FakeRoot
    kernel: FakeKernel
    session: Session

    @property
    def state(self) -> StateDir:
        return self.session.state

    def text(self, path: str) -> str:
        """A file of the host as it is now."""
        return self.root.at(path).read_text()

    def word(self, address: str) -> int:
        """Device Control 2 of a function."""
        raw = self.root.at(f"/sys/bus/pci/devices/{address}/config").read_bytes()
        return int.from_bytes(raw[CONTROL_2 : CONTROL_2 + 2], "little")

    def everything(self) -> dict[str, bytes]:
        """Every file of the host but the lock, to compare before and after."""
        return {
            str(path.relative_to(self.root.path)): path.read_bytes()
            for path in sorted(self.root.path.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.name != "hicachectl.lock"
        }


def accelerators(machine: Machine) -> list[str]:
    """Addresses of the accelerators, in order."""
    return [device.address for device in machine.devices if device.kind == SlotKind.ACCELERATOR]


def open_host(folder: Path, *, state: Path | None = None, **more: Any) -> TunedHost:
    """A session on a host whose files are there already."""
    root = FakeRoot(folder)
    kernel = FakeKernel(root)
    clock = Clock()
    given: dict[str, Any] = {
        "root": root,
        "kernel": kernel,
        "state": StateDir(state or folder.parent / "state"),
        "knobs": KNOBS,
        "clock": clock,
        "sleep": clock.sleep,
        "who": "tester",
        "pid": 7,
        "tool_version": "0",
    }
    return TunedHost(root, kernel, Session(**{**given, **more}))


def make_host(tmp_path: Path, spec: HostSpec | None = None, **more: Any) -> TunedHost:
    """Write `small_spec`, or another, below `tmp_path` and open it."""
    folder = tmp_path / "host"
    build_root(folder, spec or small_spec())
    return open_host(folder, **more)

"""A recipe: what a vendor setting or register is, where it applies, how it is reached and what may be written. Values only. Pure.

One YAML file is one recipe (docs/facts.md#recipes); `recipe_load.py` reads them, `recipe_match.py` finds the places on a host,
`knobs/recipe.py` turns both into items of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hicachectl.tuning.item import ReadBack
from hicachectl.tuning.target import METHODS_THAT_REPORT, Method, Value

__all__ = [
    "REGISTER_METHODS", "CpuMatch", "Effect", "KernelMatch", "Match", "PciMatch", "Precheck", "Reach", "Recipe", "Report", "Risk",
    "Scope", "Source", "Status", "knob_of",
]  # fmt: skip

REGISTER_METHODS = frozenset((Method.PCI_CONFIG, Method.PCI_ECAP, Method.MSR, Method.SMN_DEBUGFS, Method.HSMP))
"""Methods whose target is bits of a register: width and mask are mandatory."""


class Status(str, Enum):
    """How far a recipe can be trusted."""

    PUBLIC = "public"
    """Address and bits stand in a public source, which it names."""
    CONFIDENTIAL = "vendor-confidential"
    EXPERIMENTAL = "experimental"
    """Reported, not read in a source of record, or not known to hold on every model."""


class Scope(str, Enum):
    """How many places one recipe has on a host."""

    PER_FUNCTION = "per-function"
    PER_ROOT_PORT = "per-root-port"
    PER_SOCKET = "per-socket"
    PER_NBIO = "per-nbio"
    PER_CPU = "per-cpu"
    HOST = "host"


class Precheck(str, Enum):
    """What must hold besides the match before a change is planned."""

    CONFIG_READABLE = "config_readable"
    """So many bytes of config space can be read (the number beside it)."""
    TRANSACTIONS_PENDING = "transactions_pending"
    """0: the function's Transactions Pending bit was clear."""
    NOT_VFIO_BOUND = "not_vfio_bound"
    NOT_VIRTUAL = "not_virtual"
    """Not a virtual function: the bits are reserved there."""
    RELAXED_ORDERING_ALLOWED = "relaxed_ordering_allowed"
    """The root port is not on the kernel's list (docs/facts.md#relaxed-ordering)."""
    ISOLATION_LOSS_ALLOWED = "isolation_loss_allowed"
    """The operator said so, and no device of the group belongs to a guest."""


@dataclass(frozen=True, slots=True)
class CpuMatch:
    """`vendors` as /proc/cpuinfo spells them; families and models as pairs (lowest, highest). Empty means any."""

    vendors: tuple[str, ...] = ()
    families: tuple[tuple[int, int], ...] = ()
    models: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PciMatch:
    """Patterns over hex digits with ? for any digit, each tuple a choice; empty means any. `kinds` are words of `SlotKind`."""

    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    port_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelMatch:
    """The oldest kernel, as numbers, and the lockdown modes under which it may be written (empty: any)."""

    oldest: tuple[int, ...] = ()
    lockdown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """Where a recipe applies: all parts must hold. `pci` None: the recipe is about no PCI function."""

    cpu: CpuMatch
    pci: PciMatch | None
    kernel: KernelMatch
    shared_upstream: int | None = None
    """So many functions, at least, must share the uplink."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How the setting is reached.

    `offset` counts from the anchor: the PCI Express capability (`capability` 0x10, at least of `min_version`), the extended
    capability `extended`, else the start; or is the number of an MSR, SMN address or HSMP message, to which each of
    `instances` belongs. `width` is in bits. `path` may hold {address} or {cpu}. `setting` names a firmware option.
    """

    method: Method
    scope: Scope
    offset: int | None = None
    width: int | None = None
    capability: int | None = None
    min_version: int = 1
    extended: int | None = None
    instances: tuple[int, ...] = (0,)
    path: str | None = None
    module: str | None = None
    parameter: str | None = None
    setting: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """The load whose gain decides under --prove: at least `min_gain` times, at most `max_loss` (share) on any device."""

    probe: str
    min_gain: float
    max_loss: float


@dataclass(frozen=True, slots=True)
class Risk:
    """`level` low, medium or high; `hazards` are words for people, of which data-ordering makes a change one of packet order."""

    level: str
    reboot_needed: bool
    hazards: tuple[str, ...]
    quiesce: str

    @property
    def ordering(self) -> bool:
        """Whether it changes what may overtake what. Pure."""
        return "data-ordering" in self.hazards

    @property
    def must_rest(self) -> bool:
        """Whether a process that holds an accelerator keeps it from being written: packet order, or quiesce: required. Pure."""
        return self.ordering or self.quiesce == "required"


@dataclass(frozen=True, slots=True)
class Report:
    """Why a recipe only reports, what would make more possible, and the knob (`beside`) it is always shown with."""

    reason: str
    remedy: str
    beside: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where something of a recipe was read: a public document, code or thread, and when (a date)."""

    kind: str
    ref: str
    checked: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe, checked. `value` None means that it is only read; `words` name values of `mask`'s bits, as choices spell them.

    `forbidden` are bits that every write forces to 0. `sha256` is of the bytes that were parsed; `where` names their file.
    """

    id: str
    knob: str
    title: str
    status: Status
    match: Match
    reach: Reach
    mask: int | None
    value: Value | None
    words: tuple[tuple[str, Value], ...]
    forbidden: int
    on_not_implemented: str
    prechecks: tuple[tuple[Precheck, int], ...]
    read_back: ReadBack
    effect: Effect | None
    survives_reboot: bool
    survives_flr: bool
    reapply: str
    risk: Risk
    report: Report | None
    sources: tuple[Source, ...]
    shipped: bool
    where: str
    sha256: str

    @property
    def reports_only(self) -> bool:
        """Whether nothing is ever written by it. Pure."""
        return self.value is None or self.reach.method in METHODS_THAT_REPORT

    def wants(self, check: Precheck) -> int | None:
        """Return the number beside a precheck (1 for a plain one), None when the recipe does not ask for it. Pure."""
        return dict(self.prechecks).get(check)

    def value_of(self, word: str) -> Value | None:
        """Return the value that a choice's word stands for. Pure."""
        return dict(self.words).get(word)

    def word_of(self, value: Value) -> str | None:
        """Return the word for a value that was read; only our bits count. Pure."""
        bits = value & self.mask if isinstance(value, int) and self.mask is not None else value
        return next((word for word, known in self.words if known == bits), None)


def knob_of(recipe_id: str) -> str:
    """Return the knob a recipe has unless it names one: the first dash becomes a dot. Pure.

    >>> knob_of("pcie-ido-request")
    'pcie.ido-request'
    """
    return recipe_id.replace("-", ".", 1)

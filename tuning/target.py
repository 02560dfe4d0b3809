"""What a change is made to: a file's word, a mount's option, or bits of a register; and the word for each way to reach it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "ABSENT", "HUGE_WORDS", "METHODS_THAT_REPORT", "PARAMETER_VALUE", "Method", "Register", "Rule", "Target", "Value", "agrees",
    "all_ones", "overlap", "show_value", "unit_offset", "units_of",
]  # fmt: skip

Value = str | int
"""What a target holds: the selected word of a file or option, or a whole register."""

ABSENT = "(absent)"
"""What a file that we write whole reads as when it is not there: a value of its own, which a rollback puts back by removing it."""

HUGE_WORDS = ("never", "always", "within_size", "advise")
"""All that huge= of a tmpfs takes (Linux Documentation/admin-guide/mm/transhuge.rst, "Hugepages in tmpfs/shmem")."""
PARAMETER_VALUE = r"[A-Za-z0-9_.,:;=+*/@%-]+"
"""A module parameter's value as a pattern: one word, nothing that continues, quotes or comments a line (modprobe.d(5))."""


class Method(str, Enum):
    """How a target is reached; the words of a recipe's `access.method` and `sysctl`."""

    SYSFS = "sysfs"
    SYSCTL = "sysctl"
    MOUNT = "mount"
    PCI_CONFIG = "pci-config"
    PCI_ECAP = "pci-ecap"
    MSR = "msr"
    SMN_DEBUGFS = "smn-debugfs"
    HSMP = "hsmp"
    MODULE_PARAM = "module-param"
    NV_FIRMWARE = "nv-firmware"
    BIOS = "bios"


_BYTES = frozenset((Method.PCI_CONFIG, Method.PCI_ECAP))
METHODS_THAT_REPORT = frozenset((Method.BIOS, Method.NV_FIRMWARE))
"""Never written by us: a person sets them, in the firmware's menu or with the vendor's tool."""


@dataclass(frozen=True, slots=True)
class Register:
    """Bits of one register. `offset` is in bytes from the start of config space, or the number of an MSR, SMN address or message.

    `width` is in bits and is exactly what is read and written; `mask` are the bits that are ours. Bits of `never` are
    forced to 0 in every write: they start something when written as 1 (Initiate Function Level Reset).
    """

    offset: int
    width: int
    mask: int
    never: int = 0

    def merged(self, present: int, bits: int) -> int:
        """Return the word to write: `present` with our bits replaced and the forbidden ones 0. Pure.

        >>> hex(Register(0x88, 16, 0x0300).merged(0x0009, 0x0300))
        '0x309'
        """
        return (present & ~self.mask | bits & self.mask) & ~self.never


@dataclass(frozen=True, slots=True)
class Target:
    """One place on a host. `path` is absolute: a file, a mount point, a config file, a device file."""

    method: Method
    path: str
    register: Register | None = None

    @property
    def mask(self) -> int | None:
        """The bits that count when values are compared; None for words. Pure."""
        return None if self.register is None else self.register.mask


def unit_offset(unit: int, number: int) -> int:
    """Return the offset of a register that belongs to a unit (a socket, a node): the unit above bit 32, the number below. Pure.

    >>> hex(unit_offset(1, 0x13B10118))
    '0x113b10118'
    """
    return unit << 32 | number


def units_of(offset: int) -> tuple[int, int]:
    """Return (unit, number) of such an offset. Pure.

    >>> units_of(0x113B10118)[0]
    1
    """
    return offset >> 32, offset & 0xFFFFFFFF


def overlap(a: Target, b: Target) -> bool:
    """Say whether two targets share bits: the same file or option, or registers whose masks meet. Pure.

    >>> overlap(Target(Method.PCI_CONFIG, "/c", Register(8, 16, 0x100)), Target(Method.PCI_CONFIG, "/c", Register(8, 16, 0x300)))
    True
    """
    if a.path != b.path:
        return False
    if a.register is None or b.register is None:
        return True
    if a.method not in _BYTES or b.method not in _BYTES:
        return a.register.offset == b.register.offset and a.register.mask & b.register.mask != 0
    return _bits(a.register) & _bits(b.register) != 0


def _bits(register: Register) -> int:
    """The bits as they lie in config space, byte 0 lowest."""
    return register.mask << 8 * register.offset


class Rule(str, Enum):
    """How a seen value is held against the wanted one."""

    EQUAL = "equal"
    AT_LEAST = "at-least"
    ONE_OF = "one-of"


def agrees(target: Target, rule: Rule, wanted: tuple[Value, ...], seen: Value) -> bool:
    """Say whether a seen value satisfies the rule; of a register only our bits count. Pure.

    `wanted` has one value, or for one-of all that will do, the preferred first. Numbers in words are compared as numbers
    for at-least. Raises ValueError when at-least meets a word that is no number.

    >>> agrees(Target(Method.PCI_CONFIG, "/x", Register(0x88, 16, 0x0100)), Rule.EQUAL, (0x0100,), 0x0309)
    True
    """
    if isinstance(seen, int) and target.register is not None:
        mask = target.register.mask
        bits = [value & mask for value in wanted if isinstance(value, int)]
        if rule is Rule.AT_LEAST:
            return seen & mask >= bits[0]
        return seen & mask in bits
    if rule is Rule.AT_LEAST:
        return int(seen) >= int(wanted[0])
    return str(seen) in [str(value) for value in wanted]


def all_ones(target: Target, value: Value) -> bool:
    """Say whether a register read as all ones: the device is gone, the value is none. Pure."""
    return target.register is not None and value == (1 << target.register.width) - 1


def show_value(target: Target, value: Value | None) -> str:
    """Return a value for people: a register as hex of its width, a word as it is, an unknown as "?". Pure.

    >>> show_value(Target(Method.PCI_CONFIG, "/x", Register(0x88, 16, 0x0300)), 9)
    '0x0009'
    """
    if value is None:
        return "?"
    if target.register is not None and isinstance(value, int):
        return f"{value:#0{target.register.width // 4 + 2}x}"
    return str(value)

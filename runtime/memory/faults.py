"""Faults to inject into the making of a mapping, so that what happens then can be seen without provoking it.

The two seams of a mapping are wrapped: the kernel's calls and the driver's registrar. Everything but the fault is real.
"""

from __future__ import annotations

import difflib
import errno
import os
from dataclasses import dataclass
from enum import Enum

from hicachectl.errors import UsageError
from hicachectl.linux_calls import MADV_POPULATE_WRITE
from hicachectl.runtime.memory.register import NoRegistrar, Refusal, Registrar
from hicachectl.runtime.memory.syscalls import MemoryCalls

__all__ = ["Fault", "FaultyRegistrar", "with_fault"]


class Fault(Enum):
    """What goes wrong."""

    REGISTER_MEMLOCK = "register-memlock"
    """The driver may not lock so much memory."""
    REGISTER_TOO_LARGE = "register-too-large"
    """The driver refuses a registration because of its size, as it does from 512 GiB on."""
    REGISTER_DRIVER_ERROR = "register-driver-error"
    """The driver answers that it cannot; the device goes on."""
    DEVICE_LOST = "device-lost"
    POPULATE_NO_MEMORY = "populate-no-memory"
    """The kernel has no page, after some were had where the range is larger than a slice."""
    SMAPS_UNREADABLE = "smaps-unreadable"
    POLICY_DENIED = "policy-denied"
    """mbind answers EPERM, as in a container without CAP_SYS_NICE."""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a fault's name. Pure. Raises UsageError with the nearest name.

        >>> Fault.parse("device-lost")
        <Fault.DEVICE_LOST: 'device-lost'>
        """
        names = [fault.value for fault in cls]
        if text not in names:
            near = difflib.get_close_matches(text, names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"fault {text!r} is not known", hint=f"{hint}one of {', '.join(names)}")
        return cls(text)


def with_fault(
    fault: Fault, calls: MemoryCalls, registrar: Registrar | NoRegistrar
) -> tuple[MemoryCalls, Registrar | NoRegistrar]:
    """Return the two seams with the fault in one of them."""
    if fault in _REFUSALS:
        return calls, FaultyRegistrar(registrar, fault)
    return _FaultyCalls(calls, fault), registrar  # type: ignore[return-value]


_REFUSALS = {
    Fault.REGISTER_MEMLOCK: Refusal("register", 2, "MEMORY_ALLOCATION", "injected: out of lockable memory"),
    Fault.REGISTER_TOO_LARGE: Refusal("register", 1, "INVALID_VALUE", "injected: as for 512 GiB or more"),
    Fault.REGISTER_DRIVER_ERROR: Refusal("register", 801, "NOT_SUPPORTED", "injected"),
    Fault.DEVICE_LOST: Refusal("register", 46, "DEVICE_UNAVAILABLE", "injected: the device is gone", device_lost=True),
}


@dataclass(slots=True)
class FaultyRegistrar:
    """Refuses as the fault says, from call `at_call` on. Without a real registrar behind it, it plays one that registers nothing."""

    behind: Registrar | NoRegistrar
    fault: Fault
    at_call: int = 1
    n_calls: int = 0

    @property
    def name(self) -> str:
        return (
            f"{'none' if isinstance(self.behind, NoRegistrar) else self.behind.name}, with {self.fault.value} injected"
        )

    def prepare(self) -> Refusal | None:
        return None if isinstance(self.behind, NoRegistrar) else self.behind.prepare()

    def register(self, address: int, n_bytes: int) -> Refusal | None:
        self.n_calls += 1
        if self.n_calls >= self.at_call:
            return _REFUSALS[self.fault]
        return None if isinstance(self.behind, NoRegistrar) else self.behind.register(address, n_bytes)

    def unregister(self, address: int) -> Refusal | None:
        return None if isinstance(self.behind, NoRegistrar) else self.behind.unregister(address)


class _FaultyCalls:
    """The calls behind it, but for one."""

    def __init__(self, behind: MemoryCalls, fault: Fault) -> None:
        self._behind = behind
        self._fault = fault
        self._n_populated = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._behind, name)

    def advise(self, address: int, n_bytes: int, advice: int) -> None:
        if advice == MADV_POPULATE_WRITE and self._fault is Fault.POPULATE_NO_MEMORY:
            self._n_populated += 1
            if self._n_populated > 1:
                raise OSError(errno.ENOMEM, f"injected: {os.strerror(errno.ENOMEM)}", f"madvise {advice}")
        self._behind.advise(address, n_bytes, advice)

    def bind(self, address: int, n_bytes: int, policy: int, nodes: tuple[int, ...]) -> None:
        if self._fault is Fault.POLICY_DENIED:
            raise OSError(errno.EPERM, f"injected: {os.strerror(errno.EPERM)}", "mbind")
        self._behind.bind(address, n_bytes, policy, nodes)

    def read(self, path: str) -> str:
        if self._fault is Fault.SMAPS_UNREADABLE and path.endswith("/smaps"):
            raise OSError(errno.EACCES, f"injected: {os.strerror(errno.EACCES)}", path)
        return self._behind.read(path)

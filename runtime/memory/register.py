"""Register a range with the device's driver, in chunks, and take it back: all of it or none.

One registration of 512 GiB or more fails and a giant one holds driver-wide locks for minutes, so a range is registered in chunks
of at most 64 GiB. A copy that spans two registrations fails too (sgl-project/sglang#36798), so a chunk ends where a slot ends;
and no page may be in two registrations, so it ends where a page ends.

    0            chunk               2 chunks            mapped
    | slots .... | slots ........... | slots | padding |
    Chunks [0, k) are registered, in order; the object that holds them takes them back in reverse order, once.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

__all__ = [
    "LARGEST_REGISTRATION_BYTES",
    "NOT_REGISTERED_CODES",
    "NoRegistrar",
    "Refusal",
    "Registrar",
    "Registration",
    "chunk_edges",
    "register",
]

LARGEST_REGISTRATION_BYTES = 64 << 30
"""docs/facts.md#register-limit: well under the ceiling between 511.96 and 512.15 GiB (vllm-project/vllm#51080)."""
NOT_REGISTERED_CODES = (713,)
"""cudaErrorHostMemoryNotRegistered and CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, the same number: already taken back."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a driver answered instead of success: its code, the name and the words it has for it, and the call."""

    call: str
    code: int
    name: str
    words: str
    device_lost: bool = False
    """Whether the device is gone, so that no later call can succeed."""

    def __str__(self) -> str:
        return f"{self.call}: {self.name} ({self.code}), {self.words}"


class Registrar(Protocol):
    """A driver that makes memory known to its device. Never raises for a refusal: it returns it."""

    @property
    def name(self) -> str:
        """The driver and the call it uses, such as `cuMemHostRegister_v2 of libcuda.so.1`."""

    def prepare(self) -> Refusal | None:
        """Bring up what the driver brings up on first use, so that it counts in no measured time."""

    def register(self, address: int, n_bytes: int) -> Refusal | None:
        """Pin a range and map it for the device."""

    def unregister(self, address: int) -> Refusal | None:
        """Take back the registration that starts at `address`."""


@dataclass(frozen=True, slots=True)
class NoRegistrar:
    """No driver registers here, and why: the reason of a skipped step."""

    reason: str


def chunk_edges(mapped_bytes: int, slot_bytes: int, page_bytes: int, largest_bytes: int) -> tuple[int, ...] | None:
    """Return where registrations begin and end, 0 and `mapped_bytes` included; None when no chunk can end on a slot. Pure.

    Every inner edge is a multiple of `slot_bytes` and of `page_bytes` (the pages the range is made of), and no two edges are
    more than `largest_bytes` apart. The last chunk holds the padding behind the last slot.

    >>> chunk_edges(100, slot_bytes=6, page_bytes=4, largest_bytes=40)
    (0, 36, 72, 100)
    """
    if mapped_bytes <= largest_bytes:
        return (0, mapped_bytes)
    step = math.lcm(slot_bytes, page_bytes)
    chunk = largest_bytes // step * step
    if not chunk:
        return None
    return (*range(0, mapped_bytes, chunk), mapped_bytes)


_log = logging.getLogger("hicachectl.runtime")


class Registration:
    """Ranges registered with a driver. `close` takes them back, last first; it may be called again, from any thread or a signal.

    What the driver refused to take back stays in `refused`, and is logged: the driver holds those pages still.
    """

    def __init__(self, registrar: Registrar, address: int) -> None:
        self.registrar = registrar
        self._address = address
        self._ranges: list[tuple[int, int]] = []
        self.refused: tuple[Refusal, ...] = ()
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal may come while this thread holds it

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """What is registered now: [start, end) in bytes from the start of the range."""
        return tuple(self._ranges)

    def add(self, start: int, end: int) -> Refusal | None:
        """Register one range more."""
        refused = self.registrar.register(self._address + start, end - start)
        if refused is None:
            self._ranges.append((start, end))
        return refused

    def close(self) -> tuple[Refusal, ...]:
        """Take everything back, in reverse order, and return what the driver refused. A refused range is not tried again.

        Does nothing in a forked child: the registrations are the parent's.
        """
        if os.getpid() != self._process:
            return ()
        refused: list[Refusal] = []
        with self._lock:
            while self._ranges:
                last = self._ranges[-1]
                answer = self.registrar.unregister(self._address + last[0])
                if answer is not None and answer.code not in NOT_REGISTERED_CODES:
                    refused.append(answer)
                    _log.warning("host memory of %d bytes stays mapped: %s", last[1] - last[0], answer)
                if self._ranges and self._ranges[-1] == last:  # a signal may have taken it back meanwhile
                    self._ranges.pop()
            self.refused += tuple(refused)
        return tuple(refused)


def register(
    registration: Registration,
    mapped_bytes: int,
    *,
    slot_bytes: int,
    page_bytes: tuple[int, ...],
    largest_bytes: int = LARGEST_REGISTRATION_BYTES,
    after_each: Callable[[int], None] = lambda end: None,
) -> Refusal | str | None:
    """Register a range chunk by chunk; on a refusal, take back what was registered. Returns None when all of it is.

    `page_bytes` are page sizes to end chunks on, the best first: a huge page where a chunk can, else a base page.
    Returns the driver's refusal, or the words why no chunk can be cut.
    """
    found = (chunk_edges(mapped_bytes, slot_bytes, page, largest_bytes) for page in page_bytes)
    edges = next((edges for edges in found if edges is not None), None)
    if edges is None:
        return f"no chunk of at most {largest_bytes} bytes ends on both a slot of {slot_bytes} and a page of {page_bytes[-1]} bytes"
    try:
        for start, end in pairwise(edges):
            refused = registration.add(start, end)
            if refused is not None:
                registration.close()
                return refused
            after_each(end)
    except BaseException:
        registration.close()
        raise
    return None

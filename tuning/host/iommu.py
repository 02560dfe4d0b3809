"""What the domain type `DMA` of an IOMMU group says of flushing: since Linux 5.15 strict, before that nothing. Pure.

`DMA-FQ` (flushed lazily, by queue) came with "iommu: Expose DMA domain strictness via sysfs" (Documentation/ABI/testing/
sysfs-kernel-iommu_groups, August 2021, Linux 5.15). A kernel before it prints `DMA` for lazily flushed domains too, unless its vendor
carries that change, which a DMA-FQ anywhere shows. There the command line can settle it (docs/facts.md#iommu-types).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hicachectl.tuning.host.model import Host

__all__ = ["DMA", "DMA_FQ", "Flushing", "dma_flushing"]

DMA, DMA_FQ = "DMA", "DMA-FQ"
_TOLD_APART = (5, 15)
_STRICT_ON_X86 = (5, 13)
"""Before it `iommu.strict` was of ARM64 alone (commit a250c23f15c2)."""
_LAZY_ON_ARM64 = (5, 14)
"""From it on a kernel may be built with lazy flushing as the default there (CONFIG_IOMMU_DEFAULT_LAZY)."""
_AMD = ("AuthenticAMD", "HygonGenuine")
_YES, _NO = ("1", "y", "Y", "on"), ("0", "n", "N", "off")


@dataclass(frozen=True, slots=True)
class Flushing:
    """What `DMA` means: `mode` strict, lazy, or translated (the flushing is not known), and `why`; None where the type itself says it."""

    mode: str
    why: str | None = None


def dma_flushing(types: Iterable[str | None], host: Host) -> Flushing:
    """Say how a domain of type `DMA` is flushed on this host. Pure. `types` are all domain types seen, None one that was not read."""
    version = _version(host.kernel.value)
    if DMA_FQ in types or (version is not None and version >= _TOLD_APART):
        return Flushing("strict")
    said = _command_line(host, version)
    if said is not None:
        return said
    if host.architecture.value == "aarch64" and version is not None and version < _LAZY_ON_ARM64:
        return Flushing("strict", f"the default of ARM64 before Linux {'.'.join(map(str, _LAZY_ON_ARM64))}")
    kernel = "a kernel of unknown version" if host.kernel.value is None else f"Linux {host.kernel.value}"
    return Flushing(
        "translated", f"{kernel} may print DMA for strict and lazy flushing alike, Linux 5.15 tells them apart"
    )


def _version(kernel: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d{1,3})\.(\d{1,3})", kernel or "", re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]))


def _command_line(host: Host, version: tuple[int, int] | None) -> Flushing | None:
    """Read what the parameters say (Documentation/admin-guide/kernel-parameters.txt). Strict by either of them goes first."""
    driver, strict = ("amd_iommu", "fullflush") if host.cpu_vendor.value in _AMD else ("intel_iommu", "strict")
    if host.cpu_vendor.value is not None and strict in _words(host, driver):
        return Flushing("strict", f"{driver}={strict} on the kernel command line")
    is_x86 = host.architecture.value in (None, "x86_64", "i686")
    if is_x86 and (version is None or version < _STRICT_ON_X86):
        return None
    said = _words(host, "iommu.strict")[-1:]
    for mode, answers in (("strict", _YES), ("lazy", _NO)):
        if said and said[0] in answers:
            return Flushing(mode, f"iommu.strict={said[0]} on the kernel command line")
    return None


def _words(host: Host, name: str) -> list[str]:
    fact = host.pinned.get(name)
    return [] if fact is None or fact.value is None else fact.value.split(",")

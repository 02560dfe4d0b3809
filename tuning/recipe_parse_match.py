"""The `match` of a recipe: CPU, PCI function, kernel and shared uplink, from marked YAML. Pure."""

from __future__ import annotations

import re

from hicachectl.tuning.host.model import SlotKind
from hicachectl.tuning.recipe import CpuMatch, KernelMatch, Match, PciMatch
from hicachectl.tuning.recipe_fields import Fields, as_number

__all__ = ["parse_match"]

_HEX_PATTERN = re.compile(r"(0x)?[0-9a-fA-F?]+")
_PORT_TYPES = (
    "endpoint", "legacy", "root-port", "upstream", "downstream", "bridge", "pci-to-pcie-bridge", "rc-endpoint", "event-collector",
)  # fmt: skip
_KINDS = (SlotKind.ACCELERATOR, SlotKind.NIC, SlotKind.RDMA_NIC, SlotKind.NVME, SlotKind.BRIDGE, SlotKind.OTHER)
_CPU_VENDORS = {"hygon": "HygonGenuine", "amd": "AuthenticAMD", "intel": "GenuineIntel"}
"""Short words for what /proc/cpuinfo calls the vendor."""
_LOCKDOWN = ("none", "integrity", "confidentiality")


def parse_match(all_: Fields) -> Match | None:
    """Return where a recipe applies; None where that is missing or wrong, which is told. Pure."""
    match = all_.section("match", ("cpu", "pci", "kernel", "topology"))
    if match is None:
        return None
    cpu, pci = match.section("cpu", ("vendor", "family", "model")), None
    kernel = match.section("kernel", ("min", "lockdown"))
    functions = match.section("pci", ("vendor", "device", "class", "kind", "port_type"))
    if functions is not None:
        pci = PciMatch(
            _patterns(functions, "vendor", 4), _patterns(functions, "device", 4), _patterns(functions, "class", 6),
            _one_or_more(functions, "kind", _KINDS), _one_or_more(functions, "port_type", _PORT_TYPES),
        )  # fmt: skip
    topology = match.section("topology", ("shared_upstream",), ("shared_upstream",))
    shared = _at_least(topology) if topology is not None else None
    return Match(
        cpu=CpuMatch(_vendors(cpu), _ranges(cpu, "family"), _ranges(cpu, "model")) if cpu is not None else CpuMatch(),
        pci=pci,
        kernel=KernelMatch(_oldest(kernel), _one_or_more(kernel, "lockdown", _LOCKDOWN)) if kernel else KernelMatch(),
        shared_upstream=shared,
    )


def _vendors(cpu: Fields) -> tuple[str, ...]:
    text = cpu.text("vendor")
    if text in (None, "any"):
        return ()
    return tuple(_CPU_VENDORS.get(word.strip().lower(), word.strip()) for word in str(text).split("|"))


def _ranges(cpu: Fields, key: str) -> tuple[tuple[int, int], ...]:
    """Read any, 25, "23|25" or "63-86"."""
    value = cpu.values.get(key)
    if value in (None, "any"):
        return ()
    whole = as_number(value)
    if whole is not None and 0 <= whole < 1 << 16:
        return ((whole, whole),)
    found = []
    for part in str(value).split("|") if isinstance(value, str) else ():
        numbers = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part, re.ASCII)
        if numbers is None or int(numbers[2] or numbers[1]) < int(numbers[1]):
            break
        found.append((int(numbers[1]), int(numbers[2] or numbers[1])))
    else:
        if found:
            return tuple(found)
    cpu.wrong(key, f'{key} is {value!r}, not any, a number, or numbers and ranges such as "63|79-86"')
    return ()


def _patterns(functions: Fields, key: str, n_digits: int) -> tuple[str, ...]:
    text = functions.text(key)
    if text in (None, "any"):
        return ()
    words = [word.strip().lower() for word in str(text).split("|")]
    bare = [word.removeprefix("0x") for word in words]
    if any(
        not _HEX_PATTERN.fullmatch(word) or len(digits) != n_digits for word, digits in zip(words, bare, strict=True)
    ):
        functions.wrong(
            key, f"{key} is {text!r}, not any or patterns of {n_digits} hex digits, ? for any digit, | between them"
        )
        return ()
    return tuple(bare)


def _one_or_more(section: Fields, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Read any, a word, or a list of words."""
    value = section.values.get(key)
    if value in (None, "any"):
        return ()
    if isinstance(value, list):
        return section.texts(key, known) or ()
    word = section.text(key, known)
    return (word,) if word is not None else ()


def _oldest(kernel: Fields) -> tuple[int, ...]:
    text = kernel.text("min")
    if text in (None, "any"):
        return ()
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", str(text), re.ASCII):
        kernel.wrong("min", f'min is {text!r}, not a version such as "6.10"')
        return ()
    return tuple(int(part) for part in str(text).split("."))


def _at_least(topology: Fields) -> int | None:
    text = topology.text("shared_upstream")
    found = re.fullmatch(r">=\s*(\d{1,3})", text or "", re.ASCII)
    if text is not None and found is None:
        topology.wrong("shared_upstream", f'shared_upstream is {text!r}, not such as ">=2"')
    return int(found[1]) if found else None

"""The machine a report was made on, in a few words, so that its times can be read later."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hicachectl.units import format_bytes

__all__ = ["machine_words"]


def machine_words(root: Path = Path("/")) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of processor, cores, memory, kernel, Python, torch and numpy; "unknown" for what cannot be read.

    Reads /proc/cpuinfo and /proc/meminfo under `root`; versions and usable cores are those of this process. Imports nothing heavy.
    """
    cores = len(os.sched_getaffinity(0))
    memory = _field(root / "proc/meminfo", "MemTotal")
    return (
        ("processor", _field(root / "proc/cpuinfo", "model name") or "unknown"),
        ("cores", f"{cores} usable of {os.cpu_count() or cores}"),
        ("memory", format_bytes(int(memory.split()[0]) << 10) if memory else "unknown"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
        ("torch", _version("torch")),
        ("numpy", _version("numpy")),
    )


def _field(path: Path, name: str) -> str | None:
    """Return the first `name : value` of a file of such lines; None when it is not there."""
    try:
        lines = path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError:
        return None
    return next(
        (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), None
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"

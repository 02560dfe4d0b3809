"""Where the CUDA runtime library is: the copy this process has loaded (torch loads one), else the names a loader may know.

The loaded copy goes first, by its path, so that the same library with the same state is used. Where torch is linked with a copy
of its own, a second library of the same major shares the device's primary context.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["DEVICE_LOST_CODES", "LIBCUDART", "MAPS", "libcudart_candidates", "loaded_libcudart"]

LIBCUDART = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
DEVICE_LOST_CODES = frozenset({4, 46, 100, 214, 219, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""Answers after which no call on the device can succeed, of runtime and driver alike (driver_types.h, cuda.h): unloading, unavailable, no
device, uncorrectable ECC, NVLink, faults and time-outs of kernels, context destroyed, and the unknown error that follows them."""
MAPS = Path("/proc/self/maps")


def libcudart_candidates(maps: Path = MAPS, names: Iterable[str] = LIBCUDART) -> tuple[str, ...]:
    """Return what to load, in order: the paths loaded already, then `names`. Reads `maps`; loads nothing."""
    return (*loaded_libcudart(maps), *names)


def loaded_libcudart(maps: Path = MAPS) -> tuple[str, ...]:
    """Return the paths of libcudart that this process has loaded; none where `maps` cannot be read."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return tuple(sorted(path for path in paths if path.startswith("/") and Path(path).name.startswith("libcudart")))

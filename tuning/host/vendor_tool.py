"""What only a vendor's tool tells: the persistence mode of NVIDIA devices. Asked for `topo -o wide` alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.model import PciDevice, SlotKind
from hicachectl.tuning.host.root import HostRoot

__all__ = ["LIMIT_S", "parse_persistence", "read_persistence"]

LIMIT_S = 0.2
_QUERY = ("--query-gpu=pci.bus_id,persistence_mode", "--format=csv,noheader")


def read_persistence(
    root: HostRoot, devices: Iterable[PciDevice], *, tool: str | None = None
) -> Fact[dict[str, str]] | None:
    """Ask nvidia-smi for the persistence mode by address; None where there is nothing to ask about.

    Starts it only on the live host, when the driver is loaded and holds every device awake: it must neither load a module
    nor wake anything. Stops it after 0.2 s. Changes nothing.
    """
    ours = [d for d in devices if d.kind == SlotKind.ACCELERATOR and d.vendor.value == "10de"]
    if not ours:
        return None
    if not root.is_live:
        return unknown("nvidia-smi", "asked of a live host only")
    if not root.exists("/sys/module/nvidia") or any(d.driver.value != "nvidia" for d in ours):
        return unknown("nvidia-smi", "the nvidia driver does not hold every device")
    if any(d.runtime_status.value not in (None, "active") for d in ours):
        return unknown("nvidia-smi", "a device is asleep, and asking would wake it")
    path = tool or shutil.which("nvidia-smi")
    if path is None:
        return unknown("nvidia-smi", "not installed")
    try:
        ran = subprocess.run([path, *_QUERY], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return unknown("nvidia-smi", f"no answer within {LIMIT_S:g} s")
    except OSError as error:
        return unknown("nvidia-smi", f"could not be started: {error.strerror}")
    if ran.returncode != 0:
        return unknown("nvidia-smi", f"it ended with {ran.returncode}")
    return known(parse_persistence(ran.stdout), "nvidia-smi")


def parse_persistence(text: str) -> dict[str, str]:
    """Read "00000000:17:00.0, Enabled" lines into address -> on or off; other words are left out. Pure.

    >>> parse_persistence("00000000:17:00.0, Enabled\\n0000ABCD:01:00.0, Disabled\\n")
    {'0000:17:00.0': 'on', 'abcd:01:00.0': 'off'}
    """
    found = {}
    for line in text.splitlines():
        address, comma, mode = line.partition(",")
        mode = {"Enabled": "on", "Disabled": "off"}.get(mode.strip(), "")
        domain, colon, rest = address.strip().lower().partition(":")
        if comma and colon and mode:
            found[f"{domain.removeprefix('0000') if len(domain) == 8 else domain}:{rest}"] = mode
    return found

"""The setting of a benchmark's document: the machine in words, the device, the method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicachectl.bench_data import Setting
from hicachectl.this_machine import machine_words

if TYPE_CHECKING:
    from hicachectl.runtime.probes.device import ProbeDevice

__all__ = ["setting_of"]


def setting_of(device: ProbeDevice, method: str, rounds: int) -> Setting:
    """Say where and how a benchmark runs. Reads two small files of /proc."""
    machine = dict(machine_words())
    return Setting(
        method=method,
        rounds=rounds,
        device=device.name,
        device_reason=device.reason,
        accelerator=device.words,
        driver=device.driver,
        cuda=device.cuda,
        torch=device.torch,
        kernel=device.kernel,
        processor=machine["processor"],
        cores=machine["cores"],
        memory=machine["memory"],
        reasons=device.reasons,
    )

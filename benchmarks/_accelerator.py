"""What benchmarks record of the accelerator they ran on."""

from __future__ import annotations

import subprocess
from typing import Any

import torch

_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current",
    "--format=csv,noheader",
)


def accelerator(device: torch.device) -> dict[str, Any]:
    """Record the device, its driver and CUDA."""
    if device.type != "cuda":
        return {"accelerator": f"device {device}"}
    try:
        found = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except OSError:
        found = ""
    name = torch.cuda.get_device_name(device)
    return {"accelerator": f"{name}, driver and link {found or 'unknown'}, CUDA {torch.version.cuda}"}

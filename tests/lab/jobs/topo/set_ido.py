"""Set IDO bits with the lab's own code, a different pair on each of the first three accelerators; note them in out/ido.json."""

from __future__ import annotations

import json
from pathlib import Path

import guest_lib as guest

REQUEST, COMPLETION = 1 << 8, 1 << 9


def main() -> None:
    """Write the bits, and what was written where."""
    noted = {}
    for address, bits in zip(guest.accelerators(), (REQUEST | COMPLETION, REQUEST, COMPLETION), strict=False):
        capability = guest.pcie_capability(address)
        assert capability is not None
        register = capability.offset + guest.DEVICE_CONTROL_2
        guest.write_word(address, register, guest.read_word(address, register) | bits)
        noted[address] = {"request": bool(bits & REQUEST), "completion": bool(bits & COMPLETION)}
    Path("out/ido.json").write_text(json.dumps(noted, indent=1))


if __name__ == "__main__":
    main()

"""Findings of the host: what needs root is told of, and counted."""

from __future__ import annotations

from finding_cases import (
    CARD,
    card,
    of,
    with_nic,
)
from hosts.machines import (
    accelerator,
    change,
    config,
    device,
    machine,
    unread,
    with_device,
)

from hicachectl.tuning.host.facts import unknown


def test_functions_with_a_short_config_space_are_counted_as_they_are_listed() -> None:
    low = change(unread(config(), "needs root"), readable_bytes=64)
    others = [device(f"0000:2{i}:00.0", config=low) for i in range(2)]
    (found,) = of("HC-NEED-ROOT", machine(*others, accelerator(CARD, config=low)))
    assert found.message.startswith("config space of 3 functions ends after 64 bytes")
    assert f"not known of {CARD}, 0000:20:00.0 and 0000:21:00.0" in found.message
    (found,) = of("HC-NEED-ROOT", machine(accelerator(CARD, config=low)))
    assert found.message.startswith("config space of 1 function ends")


def test_interfaces_that_may_not_be_listed_are_told_of() -> None:
    denied = {"interfaces": unknown("/sys/bus/pci/devices/0000:51:00.0/infiniband", "permission denied")}
    (found,) = of("HC-NEED-ROOT", with_nic(0, listed=denied))
    assert found.subject == "/sys/bus/pci/devices/0000:51:00.0/infiniband"


def test_files_that_are_denied_are_counted_in_words_that_fit() -> None:
    one = card(vendor=unknown("/a/vendor", "permission denied"))
    two = with_device(one, CARD, device=unknown("/a/device", "permission denied"))
    (found,) = of("HC-NEED-ROOT", one)
    assert "permission denied for 1 file, so what they say is not known: /a/vendor" in found.message
    (found,) = of("HC-NEED-ROOT", two)
    assert "permission denied for 2 files, so what they say is not known: /a/device and /a/vendor" in found.message

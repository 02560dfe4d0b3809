"""Findings of ordering bits and redirects: whose they are, and what could not be read of them."""

from __future__ import annotations

from dataclasses import replace

from finding_cases import (
    CARD,
    ROOT,
    card,
    flagged,
    of,
    weights,
)
from hosts.machines import (
    accelerator,
    change,
    config,
    device,
    machine,
    paired,
    port,
    with_device,
)

from hicachectl.tuning.host.facts import unknown
from hicachectl.tuning.host.model import Machine, SlotKind


def test_ordering_bits_are_warned_of_behind_a_shared_uplink_and_noted_elsewhere() -> None:
    alone = machine(
        port(ROOT), accelerator(CARD, ROOT, config=config(ido_request=False)),
        port("0000:20:01.0"), accelerator("0000:21:00.0", "0000:20:01.0"),
    )  # fmt: skip
    assert weights("HC-IDO-UNEQUAL", alone) == ["note"]
    assert weights("HC-IDO-OFF", card(config=config(ido_request=False))) == []
    off = machine(port(ROOT), accelerator(CARD, ROOT, config=config(ido_request=False)))
    assert weights("HC-IDO-OFF", off) == ["note"]


def test_an_uplink_that_is_off_says_when_another_is_on() -> None:
    first, second = paired(*[{"ido_request": False}] * 2), machine()
    both = replace(first, devices=(*first.devices, *second.devices[:2]))
    (found,) = of("HC-IDO-OFF", both)
    assert found.message.endswith("on behind another uplink")
    assert found.subject == "0000:21:00.0"


def test_cards_whose_bit_was_not_read_are_named_where_the_others_are_judged() -> None:
    unread_bit, off = {"ido_request": unknown("config", "needs root")}, {"ido_request": False}
    (shared,) = of("HC-IDO-OFF", paired(off, unread_bit))
    assert shared.message.endswith("; not known in 0000:24:00.0 (needs root)")
    cards = [
        one
        for i, bits in enumerate((off, {}, unread_bit, unread_bit))
        for one in (port(f"0000:{i + 1}0:01.0"), accelerator(f"0000:{i + 1}1:00.0", f"0000:{i + 1}0:01.0", config=config(**bits)))
    ]  # fmt: skip
    (unequal,) = of("HC-IDO-UNEQUAL", machine(*cards))
    assert unequal.message.endswith("; not known in 0000:31:00.0 and 0000:41:00.0 (needs root)")
    (alone,) = of("HC-IDO-OFF", machine(*cards[:2], *cards[4:]))
    assert alone.message.endswith("; not known in 0000:31:00.0 and 0000:41:00.0 (needs root)")


def test_cards_of_a_narrower_uplink_below_are_not_counted_as_unread() -> None:
    pair = paired(*[{"ido_request": False}] * 2)
    (one,) = pair.uplinks
    inner = replace(pair, uplinks=(replace(one, accelerators=one.accelerators[:1]),))
    (found,) = of("HC-IDO-OFF", inner)
    assert "not known" not in found.message and "could not be read" not in found.message


def test_an_uplink_that_is_off_says_what_else_behind_it_was_not_identified() -> None:
    pair = paired(*[{"ido_request": False}] * 2)
    (one,) = pair.uplinks
    stranger = change(
        device("0000:25:00.0", "0000:20:01.0"), kind=SlotKind.OTHER, class_code=unknown("class", "permission denied")
    )
    more = replace(
        pair, devices=(*pair.devices, stranger), uplinks=(replace(one, shared_by=(*one.shared_by, stranger.address)),)
    )
    (found,) = of("HC-IDO-OFF", more)
    assert found.message.endswith("; what 0000:25:00.0 is was not read (permission denied)")
    assert "was not read" not in of("HC-IDO-OFF", pair)[0].message


def test_the_bits_of_a_virtual_function_are_not_judged() -> None:
    assert of("HC-IDO-OFF", card(is_vf=True, config=config(ido_request=False))) == []


def redirecting(*controls: int | None) -> Machine:
    """Two cards behind one switch whose downstream ports have these ACS controls; None was not read."""
    pair, names = paired(), ("0000:22:00.0", "0000:22:01.0")
    for name, control in zip(names, controls, strict=True):
        told = (control, bool(control & 0xC)) if control is not None else (unknown("config", "needs root"),) * 2
        bits = config(port_type="downstream", acs_control=told[0], acs_redirect=told[1])
        pair = with_device(pair, name, config=bits)
    return pair


def test_redirect_names_the_ports_that_have_the_bit_and_whose_traffic_it_is() -> None:
    (found,) = of("HC-ACS-REDIRECT", redirecting(0x1D, 0))
    assert found.subject == "0000:22:00.0"
    assert "requests and completions of 0000:23:00.0 to its neighbours" in found.message
    assert "ACS control 0000:22:00.0 0x001d" in found.message
    assert "0000:24:00.0" not in found.message and "0000:22:01.0" not in found.message
    (both,) = of("HC-ACS-REDIRECT", redirecting(0x1D, 0x04))
    assert "requests and completions of 0000:23:00.0" in both.message and "requests of 0000:24:00.0" in both.message
    (last,) = of("HC-ACS-REDIRECT", redirecting(0, 0x08))
    assert "completions of 0000:24:00.0" in last.message and "requests" not in last.message
    assert of("HC-ACS-REDIRECT", redirecting(0, 0x10)) == []


def test_ports_whose_redirect_bits_were_not_read_are_counted() -> None:
    (found,) = of("HC-ACS-REDIRECT", redirecting(0x1D, None))
    assert found.message.endswith("; not known of 0000:22:01.0 (needs root)")


def test_relaxed_ordering_that_is_off_under_a_flagged_port_is_as_it_should_be() -> None:
    assert weights("HC-RO-FORBIDDEN", flagged(False)) == ["note"]
    assert of("HC-RO-OFF", flagged(False)) == []
    assert of("HC-RO-FORBIDDEN", flagged(True, vendor="1d94")) == []

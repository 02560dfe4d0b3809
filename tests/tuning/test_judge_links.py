"""Findings of links: width, speed, sharing and errors weigh what the link is for."""

from __future__ import annotations

from dataclasses import replace

from finding_cases import (
    CARD,
    ROOT,
    card,
    of,
    weights,
)
from hosts.machines import (
    accelerator,
    device,
    link,
    lost,
    machine,
    paired,
    port,
    unread,
    uplink,
    with_device,
)

from hicachectl.tuning.finding import Sight
from hicachectl.tuning.hints import for_recording
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import SlotKind


def test_a_narrow_link_is_an_error_for_an_accelerator_a_warning_for_a_disk_a_note_where_the_slot_ends() -> None:
    for kind, severity in ((SlotKind.ACCELERATOR, "error"), (SlotKind.NVME, "warn")):
        narrow = machine(port(ROOT, link=link(now=2)), device(CARD, ROOT, kind=kind, link=link(now=2)))
        assert weights("HC-LINK-WIDTH", narrow) == [severity]
    slot = machine(port(ROOT, link=link(now=8, most=8)), accelerator(CARD, ROOT, link=link(now=8)))
    assert weights("HC-LINK-WIDTH", slot) == ["note"]
    half_known = machine(port(ROOT, link=unread(link())), accelerator(CARD, ROOT, link=link(now=8)))
    assert weights("HC-LINK-WIDTH", half_known) == ["note"]


def test_a_slow_link_of_which_one_end_was_not_read_is_not_measured_by_the_other_alone() -> None:
    idle = link(gt_s=8.0, most_gt_s=32.0)
    half_known = machine(port(ROOT, link=lost(idle, "speed_max_gt_s")), accelerator(CARD, ROOT, link=idle))
    (found,) = of("HC-LINK-SPEED", half_known)
    assert found.severity == "note"
    assert "is at 8 of at most 32 GT/s" in found.message
    assert f"the top speed of {ROOT} is not known: no such file" in found.message
    (both,) = of("HC-LINK-SPEED", machine(port(ROOT, link=idle), accelerator(CARD, ROOT, link=idle)))
    assert "at most" not in both.message
    (alone,) = of("HC-LINK-SPEED", machine(accelerator(CARD, link=idle)))
    assert "at most 32 GT/s" in alone.message and "no port above it is listed" in alone.message


def test_a_shared_link_says_which_of_its_numbers_is_not_known() -> None:
    pair = paired()
    (one,) = pair.uplinks
    half = replace(pair, uplinks=(lost(one, "busy_bytes_per_s", "oversubscription", reason="a link is not known"),))
    (found,) = of("HC-UPLINK-SHARED", half)
    assert (
        "29.3 GiB/s by link math; what each gets when all are busy is not known (a link is not known)" in found.message
    )


def test_a_small_card_in_a_wide_slot_is_no_finding() -> None:
    fits = machine(port(ROOT, link=link(now=4)), device(CARD, ROOT, kind=SlotKind.NVME, link=link(now=4, most=4)))
    assert of("HC-LINK-WIDTH", fits) == []


def test_errors_that_were_corrected_are_a_note() -> None:
    assert weights("HC-AER-RISING", card(aer={"correctable": Fact(7, "aer_dev_correctable")})) == ["note"]


def test_a_link_shared_by_many_is_judged_once_and_named_by_its_uplink() -> None:
    pair = paired()
    narrow = with_device(pair, "0000:21:00.0", link=link(now=8))
    (found,) = of("HC-LINK-WIDTH", narrow)
    assert (found.subject, found.severity) == ("0000:21:00.0", "error")
    assert "0000:23:00.0 and 0000:24:00.0" in found.message
    assert found.hint == f"reseat the card, then: hicachectl bench link {pair.uplinks[0].id}"


def test_the_next_step_at_an_accelerators_link_is_to_load_it_and_at_a_disks_to_look() -> None:
    idle = link(gt_s=8.0, most_gt_s=32.0)
    (slow,) = of("HC-LINK-SPEED", machine(port(ROOT, link=idle), accelerator(CARD, ROOT, link=idle)))
    assert slow.hint == f"hicachectl bench link {CARD}"
    assert for_recording(slow.hint) == f"on that host: {slow.hint}"
    narrow = machine(port(ROOT, link=link(now=2)), device(CARD, ROOT, kind=SlotKind.NVME, link=link(now=2)))
    assert [one.hint for one in of("HC-LINK-WIDTH", narrow)] == [f"sudo lspci -vvs {CARD}"]


def test_the_inside_of_a_switch_is_no_link_whether_its_types_were_read_or_not() -> None:
    for value in (
        paired(),
        replace(paired(), devices=tuple(replace(d, config=unread(d.config)) for d in paired().devices)),
    ):
        ends = [(one.upper.address if one.upper else None, one.lower.address) for one in Sight(value).links]
        assert ends == [
            ("0000:20:01.0", "0000:21:00.0"),
            ("0000:22:00.0", "0000:23:00.0"),
            ("0000:22:01.0", "0000:24:00.0"),
        ]


def test_an_uplink_whose_capacity_holds_all_members_is_not_called_shared() -> None:
    pair = paired()
    cards = tuple(d for d in pair.devices if d.kind == SlotKind.ACCELERATOR)
    wide = uplink(cards, "0000:21:00.0", "0000:20:01.0", oversubscription=1.0)
    assert of("HC-UPLINK-SHARED", replace(pair, uplinks=(wide,))) == []

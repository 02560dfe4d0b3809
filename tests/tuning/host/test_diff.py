"""What differs between two hosts: by address and id, reasons for what is known on one side, moving values aside."""

from __future__ import annotations

from dataclasses import replace

from hosts.machines import change, lost, machine, paired, unread

from hicachectl.tuning.host.diff import compare
from hicachectl.tuning.host.facts import known, unknown
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.model import Machine


def places(a: Machine, b: Machine, *, moving: bool = False) -> dict[str, tuple[str, object, object]]:
    found = compare(flatten(a), flatten(b), moving=moving)
    return {c.place: (c.what, c.a, c.b) for c in found.changes}


def test_a_machine_does_not_differ_from_itself() -> None:
    assert places(machine(), machine(), moving=True) == {}


def test_a_device_is_found_by_its_address_wherever_it_stands() -> None:
    one = machine()
    assert places(one, replace(one, devices=tuple(reversed(one.devices)))) == {}


def test_a_changed_value_shows_both_sides() -> None:
    one = machine()
    device = one.devices[0]
    other = replace(one, devices=(change(device, driver="vfio-pci"), *one.devices[1:]))
    assert places(one, other) == {f"/devices/{device.address}/driver": ("changed", device.driver.value, "vfio-pci")}


def test_a_device_that_went_is_one_line() -> None:
    one = machine()
    gone = one.devices[-1].address
    other = replace(one, devices=one.devices[:-1], uplinks=())
    found = places(replace(one, uplinks=()), other)
    assert found == {f"/devices/{gone}": ("removed", f"/devices/{gone}", None)}
    assert places(other, replace(one, uplinks=())) == {f"/devices/{gone}": ("added", None, f"/devices/{gone}")}


def test_known_on_one_side_only_is_unread_with_the_reason() -> None:
    one = machine()
    device = one.devices[0]
    other = replace(one, devices=(lost(device, "driver", reason="permission denied"), *one.devices[1:]))
    (found,) = compare(flatten(one), flatten(other)).changes
    assert (found.what, found.b, found.b_reason, found.a_reason) == ("unread", None, "permission denied", None)


def test_free_memory_and_counters_are_left_aside_and_counted_unless_asked_for() -> None:
    one = machine()
    other = change(one, memory=change(one.memory, free_bytes=(one.memory.free_bytes.value or 0) + 1))
    found = compare(flatten(one), flatten(other))
    assert (found.changes, found.n_moving_left_aside) == ((), 1)
    assert list(places(one, other, moving=True)) == ["/memory/free_bytes"]


def test_the_same_null_for_another_reason_is_no_change() -> None:
    one = machine()
    device = one.devices[0]
    a = replace(one, devices=(lost(device, "driver", reason="permission denied"), *one.devices[1:]))
    b = replace(one, devices=(lost(device, "driver", reason="no such file"), *one.devices[1:]))
    assert places(a, b) == {}


def test_an_object_that_is_null_on_one_side_is_one_change() -> None:
    one = machine()
    device = one.devices[0]
    a, b = one, replace(one, devices=(replace(device, config=unread(device.config, "needs root")), *one.devices[1:]))
    found = [c for c in compare(flatten(a), flatten(b)).changes if "/config" in c.place]
    assert [(c.place, c.what, c.b, c.b_reason) for c in found] == [
        (f"/devices/{device.address}/config", "unread", None, "needs root")
    ]
    assert found[0].a.endswith(" values")
    assert [c.a for c in compare(flatten(b), flatten(a)).changes if "/config" in c.place] == [None]


def test_a_list_that_could_not_be_read_is_one_place_and_nothing_in_it_was_removed() -> None:
    one = paired()
    hidden = replace(one, devices=(), uplinks=(), listed={"devices": unknown("/sys/bus/pci/devices", "no such file")})
    found = compare(flatten(one), flatten(hidden)).changes
    assert [(c.place, c.what, c.a, c.b, c.b_reason) for c in found] == [
        ("/devices", "unread", "6 devices", None, "no such file"),
        ("/uplinks", "unread", "1 uplinks", None, "no such file"),
    ]
    without = replace(one, devices=(), uplinks=(), listed={"devices": known(0, "/sys/bus/pci/devices")})
    assert {what for what, _, _ in places(one, without).values()} == {"removed"}
    assert {(what, a) for what, a, _ in places(without, one).values()} == {("added", None)}


def test_no_limit_is_known_and_differs_from_a_limit_and_from_one_that_was_not_read() -> None:
    one = machine()
    low = change(one, memory=change(one.memory, memlock_bytes=65536))
    (found,) = compare(flatten(one), flatten(low)).changes
    assert (found.what, found.a, found.a_reason, found.b) == ("changed", None, "unlimited", 65536)
    lost_limit = change(one, memory=lost(one.memory, "memlock_bytes", reason="permission denied"))
    (found,) = compare(flatten(one), flatten(lost_limit)).changes
    assert (found.what, found.a_reason, found.b_reason) == ("unread", "unlimited", "permission denied")
    assert places(one, one) == {}


def test_the_distance_to_a_node_that_one_side_has_not_is_told_by_the_node() -> None:
    one = machine()
    fewer = tuple(
        change(node, distances={to: far for to, far in (node.distances.value or {}).items() if to != 3})
        for node in one.numa.nodes[:3]
    )
    assert places(one, change(one, numa=change(one.numa, nodes=fewer))) == {"/nodes/3": ("removed", "/nodes/3", None)}


def test_an_entry_that_one_side_has_not_is_added_or_removed_and_an_empty_list_knows_nothing_of_it() -> None:
    one = machine()
    pinned = change(one, host=replace(one.host, pinned={"iommu": known("pt", "/proc/cmdline")}))
    assert places(one, pinned) == {"/host/pinned/iommu": ("added", None, "pt")}
    assert places(pinned, one) == {"/host/pinned/iommu": ("removed", "pt", None)}


def test_places_that_were_read_on_neither_side_are_counted() -> None:
    one = machine()
    both = change(one, host=lost(one.host, "lockdown"))
    found = compare(flatten(both), flatten(both))
    assert found.changes == ()
    assert found.n_unread_on_both == compare(flatten(one), flatten(one)).n_unread_on_both + 1


def test_a_link_that_idled_and_a_device_that_fell_asleep_are_left_aside() -> None:
    one = paired()
    idle = change(one, uplinks=(change(one.uplinks[0], present_bytes_per_s=1.0),))
    busy = change(one, uplinks=(change(one.uplinks[0], present_bytes_per_s=2.0),))
    assert compare(flatten(idle), flatten(busy)).changes == ()
    card = one.devices[-1]
    asleep = replace(card, link=unread(card.link, "asleep"), config=unread(card.config, "asleep"))
    slept = replace(one, devices=(*one.devices[:-1], change(asleep, runtime_status="suspended")))
    found = compare(flatten(one), flatten(slept))
    assert found.changes == ()
    assert found.n_moving_left_aside > 4
    assert places(one, slept, moving=True) != {}

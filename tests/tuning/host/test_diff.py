"""What differs between two hosts: by address and id, reasons for what is known on one side, moving values aside."""

from __future__ import annotations

from dataclasses import replace

from hosts.machines import change, lost, machine

from hicachectl.tuning.host.diff import compare
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
    from hosts.machines import unread

    one = machine()
    device = one.devices[0]
    a, b = one, replace(one, devices=(replace(device, config=unread(device.config, "needs root")), *one.devices[1:]))
    found = [c for c in compare(flatten(a), flatten(b)).changes if "/config" in c.place]
    assert [(c.place, c.what, c.b, c.b_reason) for c in found] == [
        (f"/devices/{device.address}/config", "unread", None, "needs root")
    ]
    assert found[0].a.endswith(" values")
    assert [c.a for c in compare(flatten(b), flatten(a)).changes if "/config" in c.place] == [None]

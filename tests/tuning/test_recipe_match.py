"""Where a recipe applies: CPU, kernel, function, port, who shares the uplink; and the reason where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hosts.machines import accelerator, change, device, lost, machine, nic, paired, port, uplink
from recipe_looks import SHIPPED

from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.recipe import CpuMatch, KernelMatch, PciMatch, Reach, Recipe, Scope
from hicachectl.tuning.recipe_match import Places, find_places, kernel_numbers, uplink_of
from hicachectl.tuning.recipe_place import locate
from hicachectl.tuning.target import Method, units_of

IDO = SHIPPED["pcie-ido-request"]


def recipe(**match: Any) -> Recipe:
    """The IDO recipe for every accelerator, with these parts of its match."""
    base = replace(IDO.match, pci=PciMatch(), shared_upstream=None, kernel=KernelMatch(), cpu=CpuMatch())
    return replace(IDO, match=replace(base, **match))


def where(found: Places) -> list[str | None]:
    return [place.subject for place in found.places]


CARDS = ["0000:23:00.0", "0000:24:00.0"]


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        (CpuMatch(("HygonGenuine",)), None),
        (CpuMatch(("AuthenticAMD", "HygonGenuine")), None),
        (CpuMatch(("AuthenticAMD",)), "the CPU is HygonGenuine, the recipe is for AuthenticAMD"),
        (CpuMatch(families=((23, 24),), models=((4, 4),)), None),
        (CpuMatch(families=((25, 26), (6, 6))), "the CPU's family is 24, the recipe is for 25-26, 6"),
        (CpuMatch(models=((0, 3),)), "the CPU's model is 4, the recipe is for 0-3"),
    ],
)
def test_vendor_family_and_model_must_all_hold(cpu: CpuMatch, why: str | None) -> None:
    found = find_places(recipe(cpu=cpu, pci=PciMatch(kinds=("accelerator",))), paired())
    assert found.why_not == why
    assert where(found) == (CARDS if why is None else [])


@pytest.mark.parametrize("name", ["cpu_vendor", "cpu_family", "cpu_model"])
def test_a_cpu_that_is_not_known_is_not_the_recipes(name: str) -> None:
    one = paired()
    one = replace(one, host=lost(one.host, name))
    cpu = CpuMatch(("HygonGenuine",), ((24, 24),), ((4, 4),))
    assert "not known (no such file)" in (find_places(recipe(cpu=cpu), one).why_not or "")


@pytest.mark.parametrize(
    ("release", "oldest", "old_enough"),
    [
        ("6.8.0-45-generic", (6, 8), True), ("6.8.0-45-generic", (6, 8, 0), True), ("6.8.0-45-generic", (6, 10), False),
        ("5.10.134-16.al8.x86_64", (5, 9), True), ("6.10.0-rc1+", (6, 9), True), ("3.10.0-1160.el7", (4, 0), False),
    ],
)  # fmt: skip
def test_kernel_versions_are_compared_by_number(release: str, oldest: tuple[int, ...], old_enough: bool) -> None:
    found = find_places(recipe(kernel=KernelMatch(oldest)), paired(host={"kernel": release}))
    assert (found.why_not is None) == old_enough
    if not old_enough:
        assert release in (found.why_not or "")


def test_a_kernel_that_is_not_known_is_not_new_enough() -> None:
    one = paired()
    found = find_places(recipe(kernel=KernelMatch((3, 0))), replace(one, host=lost(one.host, "kernel")))
    assert "not known" in (found.why_not or "")
    assert kernel_numbers("unknown") is None


@pytest.mark.parametrize(
    ("pci", "expected"),
    [
        (PciMatch(vendors=("1d22",)), CARDS),
        (PciMatch(vendors=("1d??",), devices=("3684",)), CARDS),
        (PciMatch(vendors=("10de",)), []),
        (PciMatch(classes=("12????", "0302??")), CARDS),
        (PciMatch(classes=("0302??",)), []),
        (PciMatch(kinds=("rdma-nic",)), []),
        (PciMatch(kinds=("bridge",), port_types=("downstream",)), ["0000:22:00.0", "0000:22:01.0"]),
        (PciMatch(kinds=("bridge",), port_types=("root-port",)), ["0000:20:01.0"]),
        (PciMatch(kinds=("accelerator",), port_types=("rc-endpoint",)), []),
    ],
)
def test_functions_are_matched_by_id_class_kind_and_port(pci: PciMatch, expected: list[str]) -> None:
    found = find_places(recipe(pci=pci), paired())
    assert where(found) == expected
    assert (found.why_not is None) == bool(expected)


def test_what_is_not_known_of_a_function_is_not_matched() -> None:
    one = paired()
    blind = replace(one, devices=tuple(lost(d, "vendor") for d in one.devices))
    found = find_places(recipe(pci=PciMatch(vendors=("1d22",))), blind)
    assert (where(found), found.why_not) == ([], "no PCI function here is vendor 1d22")


def test_only_ports_that_an_accelerators_data_crosses_are_places() -> None:
    root, up = "0000:20:01.0", "0000:40:01.0"
    one = machine(port(root), accelerator("0000:21:00.0", root), port(up), nic("0000:41:00.0", up))
    found = find_places(recipe(pci=PciMatch(kinds=("bridge",), port_types=("root-port",))), one)
    assert where(found) == [root]


def shared_by(n: int) -> Machine:
    root = "0000:20:01.0"
    members = (accelerator("0000:21:00.0", root), *(nic(f"0000:21:00.{i}", root) for i in range(1, n)))
    return machine(port(root), *members, uplinks=(uplink(members, root, root),))


@pytest.mark.parametrize(("n", "holds"), [(1, False), (2, True), (5, True)])
def test_the_uplink_must_be_shared_by_as_many_as_the_recipe_says(n: int, holds: bool) -> None:
    one = recipe(pci=PciMatch(kinds=("accelerator",)), shared_upstream=2)
    (place,) = find_places(one, shared_by(n)).places
    assert (place.why_not is None) == holds
    assert place.uplink == "U0"
    if not holds:
        assert place.why_not == "only 1 shares its uplink, the recipe is for 2 or more"


def test_a_function_whose_uplink_is_not_known_is_a_place_with_that_reason() -> None:
    one = replace(paired(), uplinks=())
    places = find_places(recipe(pci=PciMatch(kinds=("accelerator",)), shared_upstream=2), one).places
    assert [place.why_not for place in places] == ["its uplink is not known, so neither is who shares it"] * 2


def test_a_port_has_the_uplink_of_what_lies_below_it() -> None:
    one = paired()
    by_address = {d.address: d for d in one.devices}
    for address in ("0000:20:01.0", "0000:21:00.0", "0000:22:00.0", "0000:23:00.0"):
        found = uplink_of(one, by_address[address])
        assert found is not None
        assert found.id == "U0"
    assert uplink_of(replace(one, uplinks=()), by_address["0000:22:00.0"]) is None


@pytest.mark.parametrize(
    ("allowed", "lockdown", "why"),
    [
        (("none",), "none", None),
        (("none", "integrity"), "integrity", None),
        (("none",), "integrity", "kernel lockdown is integrity, which refuses such writes"),
        ((), "confidentiality", "kernel lockdown is confidentiality, which refuses such writes"),
    ],
)
def test_lockdown_forbids_writing_and_not_reading(allowed: tuple[str, ...], lockdown: str, why: str | None) -> None:
    found = find_places(recipe(kernel=KernelMatch((), allowed)), paired(host={"lockdown": lockdown}))
    assert found.no_write == why
    assert found.places
    reading = replace(recipe(kernel=KernelMatch((), ())), value=None)
    assert find_places(reading, paired(host={"lockdown": lockdown})).no_write is None


def test_scopes_without_functions_have_a_place_each() -> None:
    one = machine()
    one = replace(one, numa=change(one.numa, socket_cpus=((0, 1, 2, 3), (4, 5, 6, 7))))

    def subjects(scope: Scope, instances: tuple[int, ...] = (0,)) -> list[str | None]:
        reach = replace(IDO.reach, scope=scope, instances=instances)
        return where(find_places(replace(recipe(pci=None), reach=reach), one))

    assert subjects(Scope.HOST) == [None]
    assert subjects(Scope.PER_SOCKET) == ["socket0", "socket1"]
    assert subjects(Scope.PER_NBIO, (0, 0x100000)) == [
        "socket0.nbio0",
        "socket0.nbio1",
        "socket1.nbio0",
        "socket1.nbio1",
    ]
    assert subjects(Scope.PER_CPU) == [f"cpu{i}" for i in range(8)]


def test_an_smn_register_has_a_place_in_every_node_of_the_processor_and_its_address_there() -> None:
    nodes = [device(f"0000:00:{0x18 + n:02x}.0", vendor="1d94", device="1460") for n in range(4)]
    other = device("0000:00:1c.0", vendor="8086")
    reach = Reach(Method.SMN_DEBUGFS, Scope.PER_NBIO, 0x13B10118, 32, instances=(0, 0x100000))
    smn = replace(recipe(pci=None), reach=reach, mask=0x0100, value=0x0100, forbidden=0)
    found = find_places(smn, machine(*nodes, other))
    assert where(found) == [f"node{n}.nbio{i}" for n in range(4) for i in range(2)]
    last = locate(smn, found.places[-1]).target
    assert last is not None
    assert last.path == "/sys/kernel/debug/x86/amd_smn/value"
    assert last.register is not None
    assert units_of(last.register.offset) == (3, 0x13C10118)
    none = find_places(smn, machine(other))
    assert (none.places, none.why_not) == ((), "no node of AMD or Hygon is on the PCI bus (0000:00:18.0)")


def test_without_the_cpus_of_a_socket_there_is_no_place_and_a_reason() -> None:
    reach = replace(IDO.reach, scope=Scope.PER_SOCKET)
    found = find_places(replace(recipe(pci=None), reach=reach), machine())
    assert found.places == ()
    assert "not known" in (found.why_not or "")


def test_an_unread_port_is_taken_by_its_position() -> None:
    one = paired()
    unread = replace(
        one, devices=tuple(replace(d, config=lost(d.config, "port_type", reason="needs root")) for d in one.devices)
    )
    for kind, expected in (("downstream", ["0000:22:00.0", "0000:22:01.0"]), ("upstream", ["0000:21:00.0"])):
        places = find_places(recipe(pci=PciMatch(kinds=("bridge",), port_types=(kind,))), unread).places
        assert [place.subject for place in places] == expected
        assert all("could not be read" in (place.why_not or "") for place in places)
    roots = find_places(recipe(pci=PciMatch(kinds=("bridge",), port_types=("root-port",))), unread).places
    assert [(place.subject, place.why_not) for place in roots] == [("0000:20:01.0", None)]

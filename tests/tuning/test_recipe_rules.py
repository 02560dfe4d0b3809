"""What no recipe may write, by register: control registers whole, status registers never, nothing that resets or cuts a link."""

from __future__ import annotations

import pytest

from hicachectl.tuning.recipe import CpuMatch, KernelMatch, Match, PciMatch, Precheck, Reach, Scope
from hicachectl.tuning.recipe_rules import broken_rules, never_written, too_wide, unfit
from hicachectl.tuning.target import Method

ALLOWED = ((Precheck.RELAXED_ORDERING_ALLOWED, 1), (Precheck.ISOLATION_LOSS_ALLOWED, 1))


def express(offset: int, width: int = 16) -> Reach:
    return Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, offset, width, capability=0x10)


def broken(reach: Reach, mask: int, value: int | None = None, forbidden: int = 0) -> list[str]:
    return [what for _, what in broken_rules(reach, mask, mask if value is None else value, forbidden, ALLOWED)]


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("offset", range(0x04, 0x3C))
def test_only_whole_control_registers_are_written_and_no_status_byte_is_reached(offset: int, width: int) -> None:
    status = {0x0A, 0x0B, 0x12, 0x13, 0x1A, 0x1B, *range(0x20, 0x24), 0x2A, 0x2B, 0x32, 0x33, 0x3A, 0x3B}
    touched = set(range(offset, offset + width // 8))
    found = broken(express(offset, width), 1 << 2)
    reaches_control = bool(touched & {0x08, 0x09})
    if touched & status:
        assert found
    if reaches_control:
        assert bool(found) == ((offset, width) != (0x08, 16))


@pytest.mark.parametrize("bit", range(16))
def test_of_device_control_only_relaxed_ordering_no_snoop_error_reporting_and_read_size_are_written(bit: int) -> None:
    refused = {5, 6, 7, 8, 15}  # payload, extended tag, function level reset
    assert bool(broken(express(0x08), 1 << bit)) == (bit in refused)


@pytest.mark.parametrize(("offset", "mask"), [(0x10, 0x0010), (0x10, 0x0020), (0x18, 0x0400), (0x28, 0x1000)])
def test_what_takes_a_link_down_or_must_agree_along_the_path_is_not_written(offset: int, mask: int) -> None:
    assert broken(express(offset), mask)
    assert broken(express(offset), 0x0100) == []


def test_a_byte_write_does_not_reach_a_forbidden_bit_by_the_back_door() -> None:
    assert broken(express(0x29, 8), 0x10)  # bit 12 of Device Control 2
    assert broken(express(0x29, 8), 0x01) == []  # bit 8


def test_relaxed_ordering_and_access_control_ask_for_their_prechecks() -> None:
    acs = Reach(Method.PCI_ECAP, Scope.PER_FUNCTION, 0x06, 16, extended=0x0D)
    for reach, mask in ((express(0x08), 0x0010), (acs, 0x001C)):
        assert broken(reach, mask) == []
        assert [what for _, what in broken_rules(reach, mask, 0, 0, ())]


def test_without_an_anchor_the_header_is_not_written() -> None:
    bare = Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, 0x04, 16)
    assert broken(bare, 0x0004)
    assert broken(Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, 0x180, 16), 0x0004) == []


def test_a_recipe_that_only_reads_breaks_no_rule_of_writing() -> None:
    assert list(broken_rules(express(0x08, 16), 0x00E0, None, 0, ())) == []


def test_the_reset_bit_is_forced_to_0_at_device_control_alone() -> None:
    assert never_written(express(0x08), 0) == 0x8000
    assert never_written(express(0x28), 0x0004) == 0x0004
    assert never_written(Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, 0x08, 16), 0) == 0


@pytest.mark.parametrize(
    ("reach", "key"),
    [
        (Reach(Method.MSR, Scope.PER_FUNCTION, 0xC8B, 64), "scope"),
        (Reach(Method.MSR, Scope.PER_CPU, 0xC8B, 32), "width"),
        (Reach(Method.SMN_DEBUGFS, Scope.PER_NBIO, 0x13B10118, 64), "width"),
        (Reach(Method.HSMP, Scope.PER_NBIO, 0x05, 16), "offset"),
        (Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, 0x1000, 16), "offset"),
        (Reach(Method.PCI_ECAP, Scope.PER_FUNCTION, 0x06, 16), "anchor"),
        (Reach(Method.SYSCTL, Scope.PER_CPU, path="/proc/sys/vm/x"), "scope"),
    ],
)
def test_what_does_not_fit_together_is_named_by_its_key(reach: Reach, key: str) -> None:
    assert [found for found, _ in unfit(reach)] == [key]


ONE_CPU = CpuMatch(("HygonGenuine",), ((24, 24),), ((4, 7),))
BARE = Reach(Method.PCI_CONFIG, Scope.PER_FUNCTION, 0x180, 16)
SMN = Reach(Method.SMN_DEBUGFS, Scope.PER_NBIO, 0x13B10118, 32)


@pytest.mark.parametrize(
    ("reach", "cpu", "pci", "part"),
    [
        (express(0x28), CpuMatch(), PciMatch(), "pci"),
        (express(0x28), CpuMatch(), PciMatch(port_types=("endpoint",)), "pci"),
        (express(0x28), CpuMatch(), None, "pci"),
        (express(0x28), CpuMatch(), PciMatch(kinds=("accelerator",)), None),
        (BARE, ONE_CPU, PciMatch(kinds=("accelerator",)), "pci"),
        (BARE, CpuMatch(), PciMatch(vendors=("1d94",)), "pci"),
        (BARE, CpuMatch(), PciMatch(vendors=("1d94",), devices=("14??",)), None),
        (SMN, CpuMatch(("HygonGenuine",), ((24, 24),)), None, "cpu"),
        (SMN, CpuMatch(models=((4, 7),)), None, "cpu"),
        (SMN, ONE_CPU, None, None),
        (Reach(Method.MSR, Scope.PER_CPU, 0xC8B, 64), CpuMatch(), None, "cpu"),
        (Reach(Method.SYSFS, Scope.HOST, path="/sys/x"), CpuMatch(), None, None),
    ],
)
def test_a_write_says_which_hardware_its_number_was_documented_for(
    reach: Reach, cpu: CpuMatch, pci: PciMatch | None, part: str | None
) -> None:
    assert [found for found, _ in too_wide(Match(cpu, pci, KernelMatch()), reach)] == ([part] if part else [])

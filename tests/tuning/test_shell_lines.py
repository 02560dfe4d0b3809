"""A plan as commands: the same bits, and an undo for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tune_values import ITEMS, PLAN

from hicachectl.tuning.access import shell_line
from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.shell_lines import shell_steps
from hicachectl.tuning.target import Method, Register, Target


def test_each_change_has_a_command_and_an_undo_in_the_order_of_the_plan() -> None:
    steps = shell_steps(PLAN)
    assert [step.id for step in steps] == [item.id for item in PLAN.changes]
    assert steps[0].command == "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    assert steps[0].undo == "echo always > /sys/kernel/mm/transparent_hugepage/enabled"
    assert steps[2].command == "mount -o remount,huge=advise /dev/shm"


def test_a_register_command_names_only_the_bits_of_the_change() -> None:
    step = next(step for step in shell_steps(PLAN) if step.id.endswith("0000:26:00.0"))
    assert (step.command, step.undo) == (
        "setpci -v -s 0000:26:00.0 68.w=0100:0100",
        "setpci -v -s 0000:26:00.0 68.w=0000:0100",
    )
    assert step.changes == "0x2010 -> 0x2110"


def test_what_no_command_does_says_so() -> None:
    firmware = replace(ITEMS[0], target=Target(Method.BIOS, "Setup > AMD CBS"), kind=ItemKind.CHANGE)
    (step,) = shell_steps(replace(PLAN, items=(firmware,)))
    assert (step.command, step.undo) == (None, None)
    assert "bios" in str(step.reason)


def register_change(method: Method, path: str, register: Register, old: int, bits: int) -> Item:
    target = Target(method, path, register)
    return replace(ITEMS[0], kind=ItemKind.CHANGE, target=target, old=old, wanted=(bits,))


@pytest.mark.parametrize(
    ("target", "command", "undo"),
    [
        (Target(Method.MSR, "/dev/cpu/10/msr", Register(0xC8B, 64, 0x0F00)), "wrmsr -p 10 0xc8b 0x55500", "wrmsr -p 10 0xc8b 0x55600"),
        (Target(Method.SMN_DEBUGFS, "/d/value", Register(0x13B10118, 32, 0x0F00)), "echo 0x55500 > value", "echo 0x55600 > value"),
        (Target(Method.HSMP, "/dev/hsmp", Register(0x12, 16, 0x0F00)), "0 0 0 85", "0 0 0 86"),
    ],
)  # fmt: skip
def test_where_a_command_writes_the_whole_register_it_holds_the_bits_of_others_too(
    target: Target, command: str, undo: str
) -> None:
    assert target.register is not None
    change = register_change(target.method, target.path, target.register, 0x55600, 0x0500)
    (step,) = shell_steps(replace(PLAN, items=(change,)))
    assert (str(step.command).endswith(command), str(step.undo).endswith(undo)) == (True, True), step


def test_a_command_never_sets_a_bit_that_starts_something() -> None:
    msr = register_change(Method.MSR, "/dev/cpu/0/msr", Register(0x10, 64, 0x1, 0x8000), 0x8002, 0x1)
    (step,) = shell_steps(replace(PLAN, items=(msr,)))
    assert (step.command, step.undo) == ("wrmsr -p 0 0x10 0x3", "wrmsr -p 0 0x10 0x2")


def test_a_sysctl_whose_name_has_dots_is_written_with_slashes() -> None:
    path = "/proc/sys/net/ipv4/conf/eth0.100/rp_filter"
    assert shell_line(Target(Method.SYSCTL, path), "1") == "sysctl -w net/ipv4/conf/eth0.100/rp_filter=1"
    assert shell_line(Target(Method.SYSCTL, "/proc/sys/vm/x"), "1") == "sysctl -w vm.x=1"

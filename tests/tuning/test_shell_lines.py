"""A plan as commands: the same bits, and an undo for each."""

from __future__ import annotations

from dataclasses import replace

from tune_values import ITEMS, PLAN

from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.shell_lines import shell_steps
from hicachectl.tuning.target import Method, Target


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

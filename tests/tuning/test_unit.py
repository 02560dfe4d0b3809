"""The files that keep a plan over boots."""

from __future__ import annotations

import configparser
from dataclasses import replace

from tune_values import ITEMS, PLAN, THP

from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.target import Method, Rule
from hicachectl.tuning.unit import BootFile, boot_files


def files(*engines: str) -> dict[str, BootFile]:
    found = boot_files(PLAN, plan_file="/etc/hica chectl/plan.json", program="/opt/bin/hicachectl", engines=engines)
    return {file.path.rpartition("/")[2]: file for file in found}


def unit(name: str, *engines: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(files(*engines)[name].text)
    return parser


def test_the_unit_applies_after_sysctl_and_before_the_engines_and_holds_them_back_when_it_fails() -> None:
    found = unit("hicachectl-tune.service", "a.service", "b.service")
    assert "systemd-sysctl.service" in found["Unit"]["After"].split()
    assert "tuned.service" in found["Unit"]["After"].split()
    assert found["Unit"]["Before"] == found["Install"]["RequiredBy"] == "a.service b.service"
    assert found["Service"]["Type"] == "oneshot"
    assert (
        found["Service"]["ExecStart"]
        == "/opt/bin/hicachectl tune apply '/etc/hica chectl/plan.json' --yes --after-boot"
    )


def test_without_an_engine_nothing_is_held_back() -> None:
    found = unit("hicachectl-tune.service")
    assert found["Install"]["WantedBy"] == found["Unit"]["Before"] == "multi-user.target"
    assert "RequiredBy" not in found["Install"]


def test_a_timer_starts_the_verification_of_the_same_plan() -> None:
    assert unit("hicachectl-tune-verify.timer")["Install"]["WantedBy"] == "timers.target"
    started = unit("hicachectl-tune-verify.service")["Service"]["ExecStart"]
    assert started == "/opt/bin/hicachectl tune verify '/etc/hica chectl/plan.json'"


def test_words_of_huge_pages_have_a_line_each_and_registers_none() -> None:
    lines = files()["hicachectl.conf"].text.splitlines()
    wanted = {
        f"w {i.target.path} - - - - {i.wanted[0]}"
        for i in ITEMS
        if i.target is not None and i.target.path.startswith(THP) and i.kind in (ItemKind.CHANGE, ItemKind.SAME)
    }
    assert set(lines[1:]) == wanted
    assert len(wanted) == 3
    assert all(file.instead == (name in ("hicachectl.conf", "fstab")) for name, file in files().items())


def test_a_word_that_would_do_as_well_and_is_there_is_kept_as_it_is() -> None:
    same = next(i for i in ITEMS if i.kind is ItemKind.SAME and i.target and i.target.method is Method.SYSFS)
    other = replace(same, rule=Rule.ONE_OF, old="within_size", wanted=("advise", "within_size"))
    (conf,) = (
        f for f in boot_files(replace(PLAN, items=(other,)), plan_file="/p", program="/h") if f.path.endswith(".conf")
    )
    assert conf.text.endswith("within_size\n")


def test_a_tmpfs_has_its_line_and_a_skipped_one_none() -> None:
    assert files()["fstab"].text == "tmpfs /dev/shm tmpfs rw,nosuid,nodev,huge=advise 0 0\n"
    skipped = tuple(replace(i, kind=ItemKind.SKIP) for i in ITEMS)
    found = boot_files(replace(PLAN, items=skipped), plan_file="/p", program="/h")
    assert [f.path for f in found if f.instead] == []

"""The files that keep a plan over boots."""

from __future__ import annotations

import configparser
from dataclasses import replace

import pytest
from tune_values import ITEMS, PLAN, THP

from hicachectl.errors import UsageError
from hicachectl.tuning.host.mounts import Mount
from hicachectl.tuning.item import Item, ItemKind, Owner
from hicachectl.tuning.target import Method, Rule
from hicachectl.tuning.unit import BootFile, boot_files, unit_word

PLAN_FILE, PROGRAM = "/etc/hica chectl/plan.json", ("/opt/bin/hicachectl",)


def files(*engines: str) -> dict[str, BootFile]:
    found = boot_files(PLAN, plan_file=PLAN_FILE, program=PROGRAM, engines=engines)
    return {file.path.rpartition("/")[2]: file for file in found}


def unit(name: str, *engines: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(files(*engines)[name].text)
    return parser


def test_the_unit_applies_after_sysctl_and_before_the_engines_and_holds_none_back_unless_asked() -> None:
    found = unit("hicachectl-tune.service", "a.service", "b.service")
    assert "systemd-sysctl.service" in found["Unit"]["After"].split()
    assert "tuned.service" in found["Unit"]["After"].split()
    assert found["Unit"]["Before"] == found["Install"]["WantedBy"] == "a.service b.service"
    assert found["Service"]["Type"] == "oneshot"
    apply = '/opt/bin/hicachectl tune apply "/etc/hica chectl/plan.json" --yes --after-boot'
    assert found["Service"]["ExecStart"] == apply
    (strict,) = (
        file
        for file in boot_files(PLAN, plan_file=PLAN_FILE, program=PROGRAM, engines=["a.service"], require=True)
        if file.path.endswith("tune.service")
    )
    assert "RequiredBy=a.service\n" in strict.text


def test_a_plan_that_is_missing_fails_the_unit_and_is_not_skipped_in_silence() -> None:
    found = unit("hicachectl-tune.service")["Unit"]
    assert found["AssertPathExists"] == PLAN_FILE
    assert "ConditionPathExists" not in found


@pytest.mark.parametrize("name", ["x", "a b.service", "a.service\nExecStart=/bin/evil", "a.service b.service", ".service", "", "a.conf", "a" * 255 + ".service"])  # fmt: skip
def test_what_is_no_unit_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name of a unit"):
        files(name)


def test_a_missing_kind_is_offered() -> None:
    with pytest.raises(UsageError) as caught:
        files("sglang")
    assert caught.value.hint == "--engine sglang.service"
    assert files("a@b.service", "x-y.target")


@pytest.mark.parametrize(
    ("text", "word"),
    [("/a/b.json", "/a/b.json"), ("/a/50%.json", '"/a/50%%.json"'), ("/a $HOME", '"/a $$HOME"'), ('/a"b', '"/a\\"b"'), ("/a\\b", '"/a\\\\b"')],
)  # fmt: skip
def test_a_word_of_a_command_is_what_systemd_reads_out_of_it(text: str, word: str) -> None:
    assert unit_word(text) == word


def test_a_percent_sign_of_a_path_is_no_specifier() -> None:
    found = boot_files(PLAN, plan_file="/etc/50%n.json", program=("/opt/%h/hicachectl",))
    assert all("%" not in file.text.replace("%%", "") for file in found[:2])
    assert "AssertPathExists=/etc/50%%n.json\n" in found[0].text
    assert 'ExecStart="/opt/%%h/hicachectl" tune apply "/etc/50%%n.json" --yes' in found[0].text


@pytest.mark.parametrize("path", ["/a\n[Service]\nExecStart=/bin/evil", "/a\\", "/a "])
def test_a_path_that_would_end_its_line_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a unit file"):
        boot_files(PLAN, plan_file=path, program=PROGRAM)


def test_a_profile_with_a_line_break_adds_no_line() -> None:
    plan = replace(PLAN, choices=replace(PLAN.choices, profile="x\nExecStartPre=/bin/evil"))
    assert "\nExecStartPre" not in boot_files(plan, plan_file="/p", program=PROGRAM)[0].text


def test_without_an_engine_nothing_is_held_back() -> None:
    found = unit("hicachectl-tune.service")
    assert found["Install"]["WantedBy"] == found["Unit"]["Before"] == "multi-user.target"
    assert "RequiredBy" not in found["Install"]


def test_a_timer_starts_the_verification_of_the_same_plan() -> None:
    assert unit("hicachectl-tune-verify.timer")["Install"]["WantedBy"] == "timers.target"
    started = unit("hicachectl-tune-verify.service")["Service"]["ExecStart"]
    assert started == '/opt/bin/hicachectl tune verify "/etc/hica chectl/plan.json"'


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
        f
        for f in boot_files(replace(PLAN, items=(other,)), plan_file="/p", program=PROGRAM)
        if f.path.endswith(".conf")
    )
    assert conf.text.endswith("within_size\n")


def test_a_tmpfs_has_its_line_and_a_skipped_one_none() -> None:
    assert files()["fstab"].text == "tmpfs /dev/shm tmpfs defaults,huge=advise 0 0\n"
    skipped = tuple(replace(i, kind=ItemKind.SKIP) for i in ITEMS)
    found = boot_files(replace(PLAN, items=skipped), plan_file="/p", program=PROGRAM)
    assert [f.path for f in found if f.instead] == []


SHM = next(i for i in ITEMS if i.target is not None and i.target.method is Method.MOUNT)


def fstab(item: Item, **mounts: Mount) -> BootFile:
    by_path = {mount.path: mount for mount in mounts.values()}
    found = boot_files(replace(PLAN, items=(item,)), plan_file="/p", program=PROGRAM, mounts=by_path)
    (line,) = [file for file in found if file.path == "/etc/fstab"]
    return line


def test_a_line_of_fstab_keeps_the_mounts_other_options_and_escapes_its_blanks() -> None:
    mount = Mount(
        "/dev/shm", "tmpfs", ("rw", "seclabel", "size=8g", "mode=1777", "huge=never"), "/", ("rw", "nosuid", "noexec")
    )
    assert fstab(SHM, a=mount).text == "tmpfs /dev/shm tmpfs rw,nosuid,noexec,size=8g,mode=1777,huge=advise 0 0\n"
    assert SHM.target is not None
    odd = replace(SHM, target=replace(SHM.target, path="/mnt/a pool"))
    line = fstab(odd, a=replace(mount, path="/mnt/a pool")).text
    assert line.startswith("tmpfs /mnt/a\\040pool tmpfs rw,")


def test_where_fstab_has_a_line_no_second_one_is_printed() -> None:
    line = fstab(
        replace(SHM, owners=(Owner("fstab", "/etc/fstab:7 (no huge=: the kernel's default at every boot)", None),))
    )
    assert line.text.startswith("# ")
    assert "/etc/fstab:7 is the line of /dev/shm: add huge=advise" in line.why

"""Owners: who sets the same, read from their own files and by their own rules of precedence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Owner
from hicachectl.tuning.owners import read_owners

THP = "/sys/kernel/mm/transparent_hugepage"
BALANCING = "/proc/sys/kernel/numa_balancing"


def owners(folder: Path, path: str, files: dict[str, str], links: dict[str, str] | None = None) -> tuple[Owner, ...]:
    for name, text in {"/proc/cmdline": "ro quiet\n", **files}.items():
        at = folder / name.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, encoding="utf-8")
    for name, target in (links or {}).items():
        at = folder / name.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(target)
    return read_owners(HostRoot(folder, name="made-up"), [path]).get(path, ())


def told(found: tuple[Owner, ...]) -> list[tuple[str, str, str | None]]:
    return [(owner.name, owner.where, owner.value) for owner in found]


def test_a_host_without_owners_has_none(tmp_path: Path) -> None:
    assert owners(tmp_path, BALANCING, {}) == ()


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("ro transparent_hugepage=never", f"{THP}/enabled", "never"),
        ("transparent_hugepage_shmem=advise", f"{THP}/shmem_enabled", "advise"),
        ("thp_anon=2M:never", f"{THP}/hugepages-2048kB/enabled", "2M:never"),
        ("thp_shmem=2M:advise", f"{THP}/hugepages-2048kB/shmem_enabled", "2M:advise"),
        ("numa_balancing=disable", BALANCING, "disable"),
        ("sysctl.kernel.numa_balancing=0", BALANCING, "0"),
    ],
)
def test_the_command_line_owns_what_it_sets(line: str, path: str, value: str, tmp_path: Path) -> None:
    found = owners(tmp_path, path, {"/proc/cmdline": line})
    assert [(owner.name, owner.value) for owner in found] == [("kernel command line", value)]


def test_what_follows_two_dashes_is_not_the_kernels(tmp_path: Path) -> None:
    assert owners(tmp_path, BALANCING, {"/proc/cmdline": "ro -- numa_balancing=disable"}) == ()


def test_the_last_file_name_stands_whatever_its_folder(tmp_path: Path) -> None:
    files = {
        "/etc/sysctl.d/10-a.conf": "kernel.numa_balancing = 1\n",
        "/usr/lib/sysctl.d/90-b.conf": "# no\n; no\n-kernel/numa_balancing=0\n",
    }
    assert told(owners(tmp_path, BALANCING, files)) == [("sysctl.d", "/usr/lib/sysctl.d/90-b.conf:3", "0")]


def test_a_folder_of_higher_rank_does_not_make_its_file_the_last(tmp_path: Path) -> None:
    files = {
        "/etc/sysctl.d/90-a.conf": "kernel.numa_balancing=1\n",
        "/usr/lib/sysctl.d/10-b.conf": "kernel.numa_balancing=0\n",
    }
    assert [owner.value for owner in owners(tmp_path, BALANCING, files)] == ["1"]


def test_a_file_in_etc_hides_its_namesake_and_a_link_to_nothing_masks_it(tmp_path: Path) -> None:
    files = {"/usr/lib/sysctl.d/50-x.conf": "kernel.numa_balancing=1\n", "/etc/sysctl.d/50-x.conf": "vm.swappiness=1\n"}
    assert owners(tmp_path / "a", BALANCING, files) == ()
    masked = {"/usr/lib/sysctl.d/50-x.conf": "kernel.numa_balancing=1\n"}
    assert owners(tmp_path / "b", BALANCING, masked, {"/etc/sysctl.d/50-x.conf": "/dev/null"}) == ()


def test_a_pattern_counts_only_without_an_explicit_line_and_not_where_it_is_left_out(tmp_path: Path) -> None:
    glob = "kernel.numa_*=0\n"
    assert [o.value for o in owners(tmp_path / "a", BALANCING, {"/etc/sysctl.d/1.conf": glob})] == ["0"]
    both = {"/etc/sysctl.d/1.conf": "kernel.numa_balancing=2\n", "/etc/sysctl.d/2.conf": glob}
    assert [o.value for o in owners(tmp_path / "b", BALANCING, both)] == ["2"]
    out = {"/etc/sysctl.d/1.conf": glob + "-kernel.numa_balancing\n"}
    assert owners(tmp_path / "c", BALANCING, out) == ()


def test_sysctl_conf_is_told_once_even_where_a_link_names_it(tmp_path: Path) -> None:
    conf = {"/etc/sysctl.conf": "kernel.numa_balancing=0\n"}
    assert told(owners(tmp_path / "a", BALANCING, conf)) == [("sysctl.conf", "/etc/sysctl.conf:1", "0")]
    linked = owners(tmp_path / "b", BALANCING, conf, {"/etc/sysctl.d/99-sysctl.conf": "../sysctl.conf"})
    assert told(linked) == [("sysctl.d", "/etc/sysctl.d/99-sysctl.conf:1", "0")]


def test_lines_of_tmpfiles_that_write_are_owners_and_patterns_stop_at_slashes(tmp_path: Path) -> None:
    text = (
        "# hugepages\n"
        "d /run/x 0755 root root -\n"
        f"w {THP}/enabled - - - - madvise\n"
        f"w! {THP}/*/enabled - - - - never\\n\n"
        f"w+ {THP}/hugepages-*kB/enabled - - - - 'inherit'\n"
    )
    files = {"/etc/tmpfiles.d/thp.conf": text}
    assert told(owners(tmp_path / "a", f"{THP}/enabled", files)) == [
        ("tmpfiles.d", "/etc/tmpfiles.d/thp.conf:3", "madvise")
    ]
    assert [o.value for o in owners(tmp_path / "b", f"{THP}/hugepages-64kB/enabled", files)] == ["never", "inherit"]


def test_fstab_owns_a_mount_and_says_where_huge_is_missing(tmp_path: Path) -> None:
    table = "UUID=1 / ext4 defaults 0 1\ntmpfs /dev/shm tmpfs rw,huge=within_size 0 0\ntmpfs /mnt/a\\040pool tmpfs size=1g 0 0\n"
    assert told(owners(tmp_path / "a", "/dev/shm", {"/etc/fstab": table})) == [("fstab", "/etc/fstab:2", "within_size")]
    (owner,) = owners(tmp_path / "b", "/mnt/a pool", {"/etc/fstab": table})
    assert owner.value is None and "no huge=" in owner.where


def test_the_last_drop_in_of_a_mount_unit_stands(tmp_path: Path) -> None:
    files = {
        "/usr/lib/systemd/system/dev-shm.mount": "[Mount]\nWhat=tmpfs\nOptions=mode=1777\n",
        "/etc/systemd/system/dev-shm.mount.d/huge.conf": "[Unit]\nOptions=no\n[Mount]\nOptions=mode=1777,\\\n  huge=advise\n",
    }
    where = "/etc/systemd/system/dev-shm.mount.d/huge.conf:4"
    assert told(owners(tmp_path / "a", "/dev/shm", files)) == [("mount unit", where, "advise")]
    escaped = {"/etc/systemd/system/mnt-kv\\x2dpool.mount": "[Mount]\nOptions=huge=always\n"}
    assert [o.value for o in owners(tmp_path / "b", "/mnt/kv-pool", escaped)] == ["always"]


TUNED = {
    "/etc/tuned/active_profile": "mine\n",
    "/usr/lib/tuned/base/tuned.conf": "[vm]\ntransparent_hugepages=always\ntransparent_hugepage.defrag=always\n[sysctl]\nkernel.numa_balancing=1\n",
    "/etc/tuned/mine/tuned.conf": (
        "[main]\nsummary=ours\ninclude=base, -not-there\n[vm]\ntransparent_hugepages=never # as before\n"
        f"[pages]\ntype=sysfs\n{THP}/khugepaged/*=0\n{THP}/shmem_enabled=${{word}}\n"
    ),
}


@pytest.mark.parametrize(
    ("path", "where", "value"),
    [
        (f"{THP}/enabled", "/etc/tuned/mine/tuned.conf:5", "never"),
        (f"{THP}/defrag", "/usr/lib/tuned/base/tuned.conf:3", "always"),
        (BALANCING, "/usr/lib/tuned/base/tuned.conf:5", "1"),
        (f"{THP}/khugepaged/defrag", "/etc/tuned/mine/tuned.conf:8", "0"),
        (f"{THP}/shmem_enabled", "/etc/tuned/mine/tuned.conf:9", None),
    ],
)
def test_tuneds_profile_wins_over_what_it_includes(path: str, where: str, value: str | None, tmp_path: Path) -> None:
    assert told(owners(tmp_path, path, TUNED)) == [("tuned (mine)", where, value)]


def test_a_profile_in_a_folder_of_profiles_is_found_and_may_include_the_one_it_replaces(tmp_path: Path) -> None:
    files = {
        "/etc/tuned/active_profile": "kv",
        "/etc/tuned/profiles/kv/tuned.conf": "[main]\ninclude=kv\n[vm]\ntransparent_hugepage=madvise\n",
        "/usr/lib/tuned/profiles/kv/tuned.conf": "[vm]\ntransparent_hugepage.defrag=never\n",
    }
    assert [o.value for o in owners(tmp_path / "a", f"{THP}/enabled", files)] == ["madvise"]
    assert [o.value for o in owners(tmp_path / "b", f"{THP}/defrag", files)] == ["never"]


def test_a_profile_that_includes_itself_ends(tmp_path: Path) -> None:
    files = {
        "/etc/tuned/active_profile": "a",
        "/etc/tuned/a/tuned.conf": "[main]\ninclude=a\n[vm]\ntransparent_hugepages=never\n",
    }
    assert [o.value for o in owners(tmp_path, f"{THP}/enabled", files)] == ["never"]


def test_an_active_profile_that_is_not_there_is_said(tmp_path: Path) -> None:
    (owner,) = owners(tmp_path, f"{THP}/enabled", {"/etc/tuned/active_profile": "gone"})
    assert owner.value is None and owner.where.startswith("could not be read: ") and "gone" in owner.name


def test_irqbalance_owns_vectors_alone(tmp_path: Path) -> None:
    files = {"/usr/sbin/irqbalance": ""}
    assert [o.name for o in owners(tmp_path / "a", "/proc/irq/40/smp_affinity_list", files)] == ["irqbalance"]
    assert owners(tmp_path / "b", BALANCING, files) == ()


def test_later_actors_come_later(tmp_path: Path) -> None:
    files = {
        **TUNED,
        "/proc/cmdline": "transparent_hugepage=always",
        "/etc/tmpfiles.d/a.conf": f"w {THP}/enabled - - - - madvise\n",
    }
    found = owners(tmp_path, f"{THP}/enabled", files)
    assert [owner.name for owner in found] == ["kernel command line", "tmpfiles.d", "tuned (mine)"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    owners(tmp_path, BALANCING, {"/etc/sysctl.d/1.conf": "x"})
    (tmp_path / "etc/sysctl.d/1.conf").chmod(0)
    (owner,) = owners(tmp_path, BALANCING, {})
    assert owner.value is None and "permission denied" in owner.where


def test_a_folder_or_file_of_the_wrong_kind_is_said_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "etc/sysctl.d/1.conf").mkdir(parents=True)
    (tmp_path / "etc/fstab").mkdir(parents=True)
    (owner,) = owners(tmp_path, BALANCING, {})
    assert (owner.name, owner.value) == ("sysctl.d", None) and owner.where.startswith(
        "could not be read: /etc/sysctl.d/1.conf"
    )
    (mount,) = owners(tmp_path, "/dev/shm", {})
    assert (mount.name, mount.value) == ("fstab", None) and "could not be read" in mount.where

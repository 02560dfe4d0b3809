"""The huge= option of tmpfs mounts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts.spec import HostSpec
from knob_looks import items, look, one, small, wants

from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.target import Method, Rule

PLAIN = {"/dev/shm": "rw,size=1024k"}


def shmem(word: str) -> dict[str, str]:
    listed = [
        f"[{one}]" if one == word else one for one in ("always", "within_size", "advise", "never", "deny", "force")
    ]
    return {**small().thp, "shmem_enabled": " ".join(listed)}


def test_dev_shm_without_huge_is_remounted_with_advise(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    item = one(look(tmp_path, small(tmpfs=PLAIN), choices), choices, "tmpfs.huge@/dev/shm")
    assert (item.kind, item.old, item.new, item.rule) == (ItemKind.CHANGE, "never", "advise", Rule.ONE_OF)
    assert item.target is not None and (item.target.method, item.target.path) == (Method.MOUNT, "/dev/shm")
    assert (item.proof, item.privilege) == ("tmpfs-huge", "root (CAP_SYS_ADMIN)")
    assert any("new pages only" in note for note in item.notes)
    assert any("hicachectl tune unit PLAN prints the line of /etc/fstab" in note for note in item.notes)


@pytest.mark.parametrize("word", ["advise", "within_size", "always"])
def test_what_gives_huge_pages_to_those_that_ask_stays(word: str, tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    item = one(look(tmp_path, small(tmpfs={"/dev/shm": f"rw,huge={word}"}), choices), choices, "tmpfs.huge@/dev/shm")
    assert (item.kind, item.old) == (ItemKind.SAME, word)
    assert (f"{word} does as well as advise" in item.notes) is (word != "advise")


def test_every_mount_of_the_choice_is_an_item(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=within_size@/dev/shm,/mnt/pool")
    spec = small(tmpfs={**PLAIN, "/mnt/pool": "rw,huge=always"})
    found = items(look(tmp_path, spec, choices), choices)
    assert [(item.id, item.kind) for item in found] == [
        ("tmpfs.huge@/dev/shm", ItemKind.CHANGE), ("tmpfs.huge@/mnt/pool", ItemKind.SAME),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("container", "remedy"),
    [(False, "add to /etc/fstab: tmpfs /dev/shm"), (True, "on the host and hand it to the container")],
)
def test_a_path_that_is_no_tmpfs_is_skipped_with_what_to_do(container: bool, remedy: str, tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    item = one(
        look(tmp_path, small(tmpfs={"/run": "rw"}, container=container), choices), choices, "tmpfs.huge@/dev/shm"
    )
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")
    assert item.reason is not None and "not a tmpfs mount" in item.reason
    assert item.remedy is not None and remedy in item.remedy


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise@shm")
    assert one(look(tmp_path, small(), choices), choices, "tmpfs.huge@shm").kind is ItemKind.SKIP


def test_a_kernel_without_huge_pages_is_not_asked(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    item = one(look(tmp_path, small(tmpfs=PLAIN, thp={}), choices), choices, "tmpfs.huge@/dev/shm")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")


def test_deny_makes_the_mount_pointless_unless_the_plan_lifts_it(tmp_path: Path) -> None:
    spec = small(tmpfs=PLAIN, thp=shmem("deny"))
    alone = wants("tmpfs.huge=advise")
    item = one(look(tmp_path / "a", spec, alone), alone, "tmpfs.huge@/dev/shm")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-SHM-4K")
    both = wants("tmpfs.huge=advise", "thp.shmem=advise")
    assert one(look(tmp_path / "b", spec, both), both, "tmpfs.huge@/dev/shm").kind is ItemKind.CHANGE
    dropped = replace(both, only=("tmpfs",))
    assert one(look(tmp_path / "c", spec, dropped), dropped, "tmpfs.huge@/dev/shm").kind is ItemKind.SKIP


def test_force_is_told(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    item = one(look(tmp_path, small(tmpfs=PLAIN, thp=shmem("force")), choices), choices, "tmpfs.huge@/dev/shm")
    assert item.kind is ItemKind.CHANGE and any("force overrides" in note for note in item.notes)


def test_a_line_of_fstab_is_the_one_to_edit(tmp_path: Path) -> None:
    choices = wants("tmpfs.huge=advise")
    spec: HostSpec = small(tmpfs=PLAIN, files={"/etc/fstab": b"# boot\ntmpfs /dev/shm tmpfs defaults,size=8g 0 0\n"})
    item = one(look(tmp_path, spec, choices), choices, "tmpfs.huge@/dev/shm")
    assert any("write huge=advise into the options at /etc/fstab:2" in note for note in item.notes)

"""Aliases hide ids and users, lead back to the real name, and stay the same in a recording of a recording."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicachectl.tuning.host.aliases import Aliases

ID = "ab12" * 16


@pytest.mark.parametrize(
    ("real", "shown"),
    [
        ("/", "/"),
        ("/serving.slice/engine.service", "/serving.slice/engine.service"),
        (f"/docker/{ID}", "/docker/left-out"),
        (f"/kubepods.slice/cri-containerd-{ID}.scope", "/kubepods.slice/cri-containerd-left-out.scope"),
        ("/kubepods/pod1a2b3c4d-12ab-34cd-abcd-5678deadbeef", "/kubepods/pod-left-out"),
        ("/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-left-out.slice/session-left-out.scope"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dalice.scope", "/machine.slice/machine-left-out.scope"),
        ("/lxc/alice", "/lxc/left-out"),
        ("/lxc.payload.alice", "/lxc.payload.left-out"),
        ("/slurm/uid_1000/job_7", "/slurm/uid_left-out/job_left-out"),
        ("/k8s.io/engine", "/k8s.io/engine"),
    ],
)
def test_a_group_keeps_its_words_and_loses_its_ids(real: str, shown: str) -> None:
    names = Aliases()
    assert names.group(real) == shown
    assert names.real(f"/sys/fs/cgroup{shown}/memory.max") == f"/sys/fs/cgroup{real}/memory.max"
    assert Aliases().group(shown) == shown


def test_two_ids_are_two_names_and_one_id_is_one() -> None:
    names = Aliases()
    one, two, again = names.group("/docker/1111"), names.group("/docker/2222"), names.group("/docker/1111")
    assert one == again != two
    assert (names.real(one), names.real(two)) == ("/docker/1111", "/docker/2222")
    assert (Aliases().group(one), Aliases().group(two)) == (one, two)


def test_a_mount_point_of_the_system_stays_and_others_are_numbered() -> None:
    names = Aliases()
    for place in ("/dev/shm", "/run/lock", "/sys/fs/cgroup/memory", "/mnt/huge", "/"):
        assert names.mount(place) == place
    assert [names.mount(p) for p in ("/run/user/1000", "/home/a", "/run/user/1000")] == [
        "/left-out/1", "/left-out/2", "/left-out/1",
    ]  # fmt: skip
    assert names.real("/left-out/2/memory.max") == "/home/a/memory.max"
    assert names.real("/left-out/20/memory.max") == "/left-out/20/memory.max"
    assert Aliases().mount("/left-out/2") == "/left-out/2"


PARTS = st.text(alphabet="abcdef0123456789-_.@\\x ", min_size=1, max_size=24).filter(
    lambda part: part not in (".", "..")
)


@given(st.lists(st.lists(PARTS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_alias_is_without_digits_leads_back_and_is_its_own_alias(groups: list[list[str]]) -> None:
    names = Aliases()
    paths = ["/" + "/".join(parts) for parts in groups]
    shown = [names.group(path) for path in paths]
    for path, alias in zip(paths, shown, strict=True):
        assert names.real(alias) == path
        assert not re.search(r"\d", re.sub(r"\\x[0-9a-f]{2}", "", alias))
        assert Aliases().group(alias) == alias
    assert len(set(shown)) == len(set(paths))

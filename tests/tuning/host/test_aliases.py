"""Aliases hide ids and users, lead back to the real name, and stay the same in a recording of a recording."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicachectl.tuning.host.aliases import Aliases
from hicachectl.tuning.host.isolation import _RUNTIMES

ID = "ab12" * 16


@pytest.mark.parametrize(
    ("real", "shown"),
    [
        ("/", "/"),
        ("/serving.slice/engine.service", "/left-out.slice/left-out.service"),
        ("/init.scope", "/init.scope"),
        ("/system.slice/docker.service", "/system.slice/docker.service"),
        ("/system.slice/postgresql@acme-bank.service", "/system.slice/left-out@left-out.service"),
        ("/system.slice/system-openvpn\\x2dclient.slice", "/system.slice/system-left-out.slice"),
        ("/system.slice/\\xe5\\xae\\xb9.service", "/system.slice/left-out.service"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice",
            "/user.slice/user-left-out.slice/user@left-out.service/app.slice",
        ),
        ("/alice", "/left-out"),
        ("/容器/张伟", "/left-out/left-out-b"),
        ("/user/张伟", "/user/left-out"),
        ("/libvirt/qemu/acme-db", "/libvirt/qemu/left-out"),
        ("/machine/qemu-1-acme.libvirt-qemu", "/machine/qemu-left-out.libvirt-qemu"),
        ("/machine.slice/systemd-nspawn@acme-bank.service", "/machine.slice/systemd-nspawn@left-out.service"),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podabcdef01_22aa.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod-left-out.slice",
        ),
        ("/slurm/uid_alice/job_7/step_batch", "/slurm/uid_left-out/job_left-out/step_batch"),
        ("/docker/buildkit/xyz", "/docker/buildkit/left-out"),
        (f"/docker/{ID}", "/docker/left-out"),
        (f"/kubepods.slice/cri-containerd-{ID}.scope", "/kubepods.slice/cri-containerd-left-out.scope"),
        ("/kubepods/pod1a2b3c4d-12ab-34cd-abcd-5678deadbeef", "/kubepods/pod-left-out"),
        ("/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-left-out.slice/session-left-out.scope"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dalice.scope", "/machine.slice/machine-qemu\\x2dleft-out.scope"),
        ("/lxc/alice", "/lxc/left-out"),
        ("/lxc.payload.alice", "/lxc.payload.left-out"),
        ("/slurm/uid_1000/job_7", "/slurm/uid_left-out/job_left-out"),
        ("/k8s.io/engine", "/k8s.io/left-out"),
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


def test_every_runtime_that_the_reader_knows_is_kept() -> None:
    for word in _RUNTIMES:
        assert Aliases().group(f"/{word}/{ID}") == f"/{word}/left-out"


@pytest.mark.parametrize(
    "place",
    [
        "/mnt/huge_acme",
        "/dev/hugepages-bank1",
        "/sys/fs/cgroup/acme_secret",
        "/cgroup/acme",
        "/mnt/hugepages_prod",
        "/dev/shm/a",
    ],
)
def test_a_mount_point_that_somebody_named_is_numbered(place: str) -> None:
    assert Aliases().mount(place) == "/left-out/1"


@pytest.mark.parametrize(
    "place",
    [
        "/mnt/huge_1G",
        "/mnt/huge-2M",
        "/mnt/huge1GB",
        "/dev/hugepages",
        "/dev/hugepages1G",
        "/dev/hugepages-2M",
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/unified",
        "/cgroup/memory",
        "/dev/cpuset",
    ],
)
def test_a_mount_point_of_a_size_or_controller_stays(place: str) -> None:
    assert Aliases().mount(place) == place


PARTS = st.text(alphabet="abcdef0123456789-_.@\\x 张é", min_size=1, max_size=24).filter(
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

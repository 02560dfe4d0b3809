"""What a snapshot holds, line by line: what the readers use, and nothing that tells of the process, its users or others."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import tarfile
from pathlib import Path

import pytest
import zstandard
from cli_runner import call
from hosts.builder import write_shape

FILES = re.compile(
    r"manifest\.json|topo\.json|probes\.json"
    r"|proc/(buddyinfo|cmdline|cpuinfo|meminfo|vmstat|zoneinfo|version|mounts)"
    r"|proc/self/(auxv|cgroup|cpuset|limits|mountinfo|numa_maps|status)"
    r"|proc/sys/(kernel/(arch|hostname|numa_balancing|osrelease|random/boot_id)|vm/zone_reclaim_mode)"
    r"|proc/driver/nvidia/gpus/[^/]+/numa_status"
    r"|sys/class/dmi/id/(sys_vendor|product_name)"
    r"|sys/devices/system/(clocksource/clocksource0/available_clocksource|node/(online|has_generic_initiator)"
    r"|node/node\d+/(cpulist|cpumap|distance|meminfo|hugepages/hugepages-\d+kB/(nr|free)_hugepages)|cpu/online"
    r"|cpu/cpu\d+/(topology/(package_cpus_list|core_siblings_list)|cpuidle/state\d+/(disable|latency|name)))"
    r"|sys/fs/cgroup/(.*/)?(cgroup\.(controllers|type)|(memory|cpuset)\.[a-z_.]+)"
    r"|sys/kernel/(iommu_groups/\d+/type|security/lockdown|mm/(hugepages|transparent_hugepage|mempolicy)/.*)"
    r"|sys/devices/(pci[0-9a-f:]+|.*/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/("
    r"aer_dev_(correctable|fatal|nonfatal)|class|config|(current|max)_link_(speed|width)|device|vendor|subsystem_(vendor|device)"
    r"|revision|iommu_group/type|local_cpulist|local_cpus|numa_node|power/runtime_status|resource|sriov_numvfs)"
    r"|sys/hypervisor/type|run/systemd/container|usr/share/(misc|hwdata)/pci\.ids"
)
"""Every file a reader reads. A new one needs a look at what it tells before it joins this list."""

NAME = r"[A-Za-z._@=-]|left-out"
GROUP = rf"(/|(/(({NAME})+))+)"
PLACE = r"/(sys|proc|dev(/shm)?|run(/lock|/shm)?|tmp|var/tmp|sys/fs/cgroup(/[\w,=]+)?|sys/firmware|proc/\w+|left-out/\d+|mnt/huge)?"
LINES = {
    "proc/cpuinfo": r"(processor|vendor_id|CPU implementer|CPU architecture|cpu family|model|model name|cpu|flags)\s*:.*",
    "proc/version": r"Linux version \S+",
    "proc/self/status": r"(CapEff:\t[0-9a-f]{16}|(Cpus|Mems)_allowed_list:\t[\d,-]*|THP_enabled:\t[01])",
    "proc/self/limits": r"Max locked memory .*",
    "proc/self/numa_maps": r"0 (default|local|prefer|bind|interleave)[\w:,=-]*",
    "proc/self/cgroup": rf"\d+:[\w,=]*:{GROUP}",
    "proc/self/cpuset": GROUP,
    "proc/self/mountinfo": rf"0 0 0:0 {GROUP} {PLACE} r[ow] - (tmpfs|sysfs|proc|cgroup2?|other) none (r[ow]|((size|huge)=\w+|memory|cpuset|,)+)",
}
SECRET_ID = "9b37d674759f49fb2a965f8ef3e0ed5b9b37d674759f49fb2a965f8ef3e0ed5b"


def contents(path: Path) -> dict[str, bytes]:
    raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {m.name: (file.read() if (file := tar.extractfile(m)) else b"") for m in tar if m.isreg()}


def crowded_host(folder: Path) -> Path:
    """A made-up host whose files tell all that real ones do: ids, users, addresses, places."""
    host = write_shape("8n8x-4up16", folder)
    process = host / "proc/self"
    status = (process / "status").read_text()
    (process / "status").write_text(
        f"Name:\tSECRET-name\nPid:\t77777\nUid:\t66666\t66666\t66666\t66666\nNSpid:\t77777\n{status}\nSigQ:\t0/55555\n"
    )
    (process / "numa_maps").write_text(
        "7f3aSECRET default\n".replace("SECRET", "deadbeef0000") + "7f00 default file=/home/SECRET\n"
    )
    vector = struct.pack("<10Q", 33, 0x7FFC_5EC2_E700, 11, 66666, 6, 4096, 25, 0x7FFC_5EC2_E777, 0, 0)
    (process / "auxv").write_bytes(vector)
    (process / "limits").write_text(
        "Limit Soft Hard Units\nMax locked memory         65536                65536                bytes     \n"
        "Max processes             55555                55555                processes \n"
    )
    group = f"/user.slice/user-66666.slice/docker-{SECRET_ID}.scope"
    (process / "cgroup").write_text(f"0::{group}\n")
    for at, limit in ((group, str(3 << 30)), ("/user.slice/user-66666.slice", "max"), ("/user.slice", "max")):
        there = host / f"sys/fs/cgroup{at}"
        there.mkdir(parents=True, exist_ok=True)
        (there / "memory.max").write_text(f"{limit}\n")
        (there / "memory.current").write_text("4096\n")
        (there / "cgroup.controllers").write_text("cpuset memory\n")
        (there / "cgroup.type").write_text("domain\n")
    (process / "mountinfo").write_text(
        "30 21 0:30 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1048576k,huge=advise,uid=66666\n"
        "31 21 0:31 / /run/user/66666 rw - tmpfs tmpfs rw,size=77k,uid=66666,gid=66666\n"
        "32 21 0:32 / /home/SECRET\\040one rw - tmpfs SECRET rw\n"
        "33 21 0:33 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
        f"34 21 0:34 /{SECRET_ID} /var/lib/SECRET/cgroup rw - cgroup cgroup rw,pids\n"
        "35 21 0:35 / /data rw - nfs4 SECRET-server:/x rw,addr=10.1.2.3\n"
    )
    (host / "proc/cmdline").write_text("root=UUID=SECRET ro iommu=pt luks.key=SECRET -- SECRET\n")
    with (host / "proc/cpuinfo").open("a") as file:
        file.write("\nSerial\t\t: SECRET\n")
    link = process / "ns/pid"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to("pid:[4026566666]")
    return host


@pytest.mark.parametrize("which", ["crowded", "shape", "live"])
def test_every_file_and_line_of_a_snapshot_is_on_the_list(which: str, tmp_path: Path) -> None:
    root = {
        "crowded": lambda: ["--root", str(crowded_host(tmp_path / "host"))],
        "shape": lambda: ["--root", str(write_shape("cpuset-container", tmp_path / "host"))],
        "live": list,
    }[which]()
    assert call("topo", "snapshot", str(tmp_path / "x.tar.zst"), *root).code == 0
    inside = contents(tmp_path / "x.tar.zst")
    assert [name for name in inside if not FILES.fullmatch(name)] == []
    odd = [
        (name, line)
        for name, pattern in LINES.items()
        for line in inside.get(name, b"").decode().splitlines()
        if not re.fullmatch(pattern, line)
    ]
    assert odd == []
    vector = inside.get("proc/self/auxv", b"")
    assert len(vector) in (0, 16)
    assert not vector or 6 in struct.unpack("<2Q", vector)


def test_ids_users_addresses_places_and_secrets_are_nowhere_in_a_snapshot(tmp_path: Path) -> None:
    host = crowded_host(tmp_path / "host")
    assert call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(host)).code == 0
    raw = zstandard.ZstdDecompressor().stream_reader((tmp_path / "x.tar.zst").read_bytes()).read()
    for secret in (
        b"SECRET",
        b"66666",
        b"77777",
        b"55555",
        b"deadbeef",
        b"9b37d674",
        b"10.1.2.3",
        b"/run/user",
        b"/home",
    ):
        assert secret not in raw, raw[max(0, raw.find(secret) - 80) : raw.find(secret) + 80]
    assert struct.pack("<Q", 0x7FFC_5EC2_E777)[:6] not in raw


def test_the_live_process_and_its_groups_and_places_are_nowhere_in_a_snapshot(tmp_path: Path) -> None:
    assert call("topo", "snapshot", str(tmp_path / "x.tar.zst")).code == 0
    raw = zstandard.ZstdDecompressor().stream_reader((tmp_path / "x.tar.zst").read_bytes()).read()
    ids = re.findall(r"[0-9a-f]{12,}", Path("/proc/self/cgroup").read_text())
    places = [
        line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - tmpfs " in line
    ]
    for word in [*ids, *(place for place in places if not re.fullmatch(PLACE, place) and place.count("/") > 2)]:
        assert word.encode() not in raw, word
    assert f"Pid:\t{os.getpid()}".encode() not in raw


def test_what_is_renamed_is_still_read_and_the_same_name_everywhere(tmp_path: Path) -> None:
    host = crowded_host(tmp_path / "host")
    assert call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(host)).code == 0
    plain = call("topo", "--root", str(host), "-o", "json").json["data"]
    kept = call("topo", "--root", str(tmp_path / "x.tar.zst"), "-o", "json").json["data"]
    assert kept["memory"]["cgroup"]["memory_limited_by"] == "/user.slice/user-left-out.slice/docker-left-out.scope"
    assert kept["memory"]["cgroup"]["memory_max_bytes"] == plain["memory"]["cgroup"]["memory_max_bytes"] == 3 << 30
    places = [(mount["path"], mount["huge"], mount["size_bytes"]) for mount in kept["memory"]["tmpfs"]]
    assert places == [
        ("/dev/shm", "advise", 1 << 30), ("/left-out/1", "never", 77 << 10), ("/left-out/2", "never", None),
    ]  # fmt: skip
    for name in ("page_bytes", "memlock_bytes", "thp"):
        assert kept["memory"][name] == plain["memory"][name]
    assert kept["numa"] == plain["numa"]
    assert {k: v for k, v in kept["host"].items() if k != "command_line"} == {
        k: v for k, v in plain["host"].items() if k != "command_line"
    }


def test_a_host_does_not_differ_from_its_snapshot_by_what_was_left_out(tmp_path: Path) -> None:
    host = crowded_host(tmp_path / "host")
    assert call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(host)).code == 0
    for sides in (["live"], [str(host)]):
        ran = call("topo", "diff", str(tmp_path / "x.tar.zst"), *sides, "--all", "--root", str(host))
        assert ran.code == 0, ran.out
        assert "nothing differs" in ran.out
    assert "66666" not in ran.out


def test_a_snapshot_of_a_live_hosts_snapshot_keeps_what_no_file_holds_and_its_moment(tmp_path: Path) -> None:
    one, two = tmp_path / "1.tar.zst", tmp_path / "2.tar.zst"
    assert call("topo", "snapshot", str(one)).code == 0
    assert call("topo", "snapshot", str(two), "--root", str(one)).code == 0
    inside = [contents(path) for path in (one, two)]
    assert inside[0]["probes.json"] == inside[1]["probes.json"]
    moments = [json.loads(found["manifest.json"])["collected_at"] for found in inside]
    assert moments[0] == moments[1]
    assert call("topo", "diff", str(one), str(two), "--all").code == 0


def test_a_snapshot_says_on_stderr_and_in_its_manifest_what_tells_this_host_from_others(tmp_path: Path) -> None:
    host = crowded_host(tmp_path / "host")
    ran = call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(host), "-o", "json")
    for word in ("host name", "boot id", "PCI addresses"):
        assert word in ran.err
        assert any(word in held for held in ran.json["data"]["identifying"])
    assert (
        json.loads(contents(tmp_path / "x.tar.zst")["manifest.json"])["identifying"] == ran.json["data"]["identifying"]
    )
    help_text = " ".join(call("topo", "snapshot", "--help").out.split())
    assert "host name, boot id, PCI addresses" in help_text


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_what_is_there_is_not_replaced_unless_forced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out/x.tar.zst"
    path.parent.mkdir()
    {"file": lambda: path.write_text("old"), "folder": path.mkdir, "dangling link": lambda: path.symlink_to("no")}[
        kind
    ]()
    ran = call("topo", "snapshot", str(path))
    assert ran.code == 2
    assert str(path) in ran.err
    assert "--force" in ran.err
    assert os.listdir(path.parent) == ["x.tar.zst"]
    assert kind != "file" or path.read_text() == "old"
    if kind != "folder":
        assert call("topo", "snapshot", str(path), "--force").code == 0
        assert call("topo", "--root", str(path)).code == 0
        assert os.listdir(path.parent) == ["x.tar.zst"]


def test_one_fact_is_one_fact_and_none_are_none(tmp_path: Path) -> None:
    from hicachectl.units import counted

    assert [counted(n, "fact") for n in (0, 1, 2, 1200)] == ["0 facts", "1 fact", "2 facts", "1,200 facts"]
    ran = call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(write_shape("1n0x-vm", tmp_path / "h")))
    assert ", 0 facts that no file holds" in ran.out

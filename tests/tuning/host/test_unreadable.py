"""Each file a reader reads goes missing, is refused or is garbage: unknown with a reason, never a default, never an exception."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import pytest
from small_host import CPUS, GROUPS, LINKS, THP, V1, facts_of, small_host, write_host

from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.machine import read_host
from hicachectl.tuning.host.memory import read_memory
from hicachectl.tuning.host.numa import read_numa
from hicachectl.tuning.host.root import HostRoot

Facts = dict[str, Fact[object]]

# The same thing is said elsewhere: damage may go unnoticed, or give the fact named here another, less exact value.
SECOND_SOURCE = {
    "/proc/self/auxv": "page_bytes, and what is counted in pages: an x86 CPU has one page size",
    "/sys/class/dmi/id/sys_vendor": "host.virtualisation: the CPU's flag remains",
    "/proc/sys/kernel/arch": "architecture: from the CPU's flags, for kernels before 6.1",
    "/proc/self/status": "allowed nodes and CPUs: the cpuset's",
    "/usr/share/misc/pci.ids": "only looked for, read by others",
    "/sys/fs/cgroup/memory/serving/engine/memory.stat": "the limit above what can be seen; the seen ones remain",
}
# Evidence that is only asked when something else is odd or absent.
ONLY_WHEN_ODD = (
    "/sys/devices/system/node/has_generic_initiator",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/serving.slice/cpuset.mems.effective",
    "/sys/fs/cgroup/serving.slice/cgroup.controllers",
    "/sys/fs/cgroup/serving.slice/cgroup.type",
    "/sys/fs/cgroup/serving.slice/engine.service/cgroup.controllers",
    "/sys/fs/cgroup/serving.slice/engine.service/cgroup.type",
    "/sys/fs/cgroup/serving.slice/engine.service/memory.current",  # the limiting group's counts
    "/sys/fs/cgroup/memory/serving/engine/memory.usage_in_bytes",
    "/sys/devices/system/cpu/cpu0/cpuidle/state0/name",  # the deepest state's counts
)
# Any text is a value of these.
FREE_TEXT = ("host.command_line", "host.cpu_name", "host.cpu_vendor", "host.deepest_idle_state", "host.pci_ids")
# A kernel without the file is a kernel without the thing: nothing to be unknown.
MAY_BE_ABSENT = {
    f"{THP}/hugepages-64kB/enabled": "a size that cannot be chosen",
    f"{THP}/hugepages-2048kB/enabled": "a size that cannot be chosen",
    f"{THP}/hugepages-2048kB/shmem_enabled": "kernels before 6.10",
    f"{GROUPS}/serving.slice/memory.high": "recordings made before it was read",
    f"{CPUS}/cpu0/cpuidle/state0/disable": "kernels before 3.4",
    f"{CPUS}/cpu0/cpuidle/state1/disable": "kernels before 3.4",
}
GARBAGE = {
    "bytes": bytes(range(255, 0, -1)) * 3,
    "empty": b"",
    "words": b"unheard of\n",
    "negative": b"-1\n",
    "huge": b"9" * 5000,
    "list": b"0-99999999999,7-3\n",
    "zero": b"\0\0\0\0\n",
}


class Refusing(HostRoot):
    """A recording of which one path may not be looked at."""

    refused = ""

    def data(self, path: str, n_bytes: int) -> Fact[bytes]:
        return unknown(path, "permission denied") if path == self.refused else super().data(path, n_bytes)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return unknown(path, "permission denied") if path == self.refused else super().names(path)

    def link(self, path: str) -> Fact[str]:
        return unknown(path, "permission denied") if path == self.refused else super().link(path)


def read_all(root: HostRoot) -> Facts:
    return {
        where: fact
        for name, value in (("numa", read_numa(root)), ("memory", read_memory(root)), ("host", read_host(root)))
        for where, fact in facts_of(value, name)
    }


@functools.cache
def good(version: int) -> Facts:
    with tempfile.TemporaryDirectory() as top:
        return read_all(write_host(Path(top), small_host(version)))


CASES = [(2, path) for path in sorted(small_host(2))] + [(1, path) for path in sorted(V1)]


def check(version: int, path: str, found: Facts) -> None:
    """The law: a fact is as it was, or unknown with a reason; one that is gone has an unknown list or another text above it."""
    before = good(version)
    changed = [where for where, fact in before.items() if where not in found or found[where].value != fact.value]
    unknown_below_path = any(not fact.is_known and fact.source.startswith(path) for fact in found.values())
    for where in changed:
        now = found.get(where)
        if now is None:
            assert unknown_below_path or "host.command_line" in changed, f"{where} vanished without a word"
        elif now.is_known:
            told = where in FREE_TEXT or ".listed." in where or SECOND_SOURCE.get(path, "").startswith(f"{where}:")
            assert told, f"{where}: {before[where].value!r} became {now.value!r} ({now.source})"
    if path not in ONLY_WHEN_ODD and path not in SECOND_SOURCE:
        assert changed, f"nothing noticed that {path} is damaged"


@pytest.mark.parametrize(("version", "path"), CASES)
def test_a_missing_file_is_unknown(tmp_path: Path, version: int, path: str) -> None:
    root = write_host(tmp_path, small_host(version))
    (tmp_path / path.lstrip("/")).unlink()
    if path in MAY_BE_ABSENT:
        read_all(root)
    else:
        check(version, path, read_all(root))


@pytest.mark.parametrize(("version", "path"), CASES)
def test_a_file_that_is_refused_or_cannot_be_read_is_unknown(tmp_path: Path, version: int, path: str) -> None:
    write_host(tmp_path, small_host(version))
    root = Refusing(tmp_path, name="refusing")
    root.refused = path
    check(version, path, read_all(root))
    (tmp_path / path.lstrip("/")).unlink()
    (tmp_path / path.lstrip("/")).mkdir()
    check(version, path, read_all(HostRoot(tmp_path, name="folder instead")))


@pytest.mark.parametrize(("version", "path"), CASES)
def test_garbage_is_unknown(tmp_path: Path, version: int, path: str) -> None:
    write_host(tmp_path, small_host(version))
    for name, content in GARBAGE.items():
        if valid_too(path, name):
            continue
        (tmp_path / path.lstrip("/")).write_bytes(content)
        check(version, path, read_all(HostRoot(tmp_path, name=name)))


def valid_too(path: str, garbage: str) -> bool:
    """Whether this garbage is a legal content: no CPUs, no devices' nodes, a latency of -1 us, any host name."""
    if garbage == "empty":
        return path.endswith(("/cpulist", "/has_generic_initiator", "/online"))
    return (garbage == "negative" and path.endswith(("/hostname", "/osrelease", "/arch", "/latency"))) or (
        garbage == "huge" and path.endswith("/cmdline")
    )


@pytest.mark.parametrize("version", [1, 2])
def test_every_folder_and_link_refused_in_turn_is_unknown(tmp_path: Path, version: int) -> None:
    write_host(tmp_path, small_host(version))
    asked = HostRoot(tmp_path, name="small")
    read_all(asked)
    assert asked.touched.links == set(LINKS)
    for path in sorted(asked.touched.folders | asked.touched.links):
        root = Refusing(tmp_path, name="refusing")
        root.refused = path
        check(version, path, read_all(root))


def test_an_empty_root_knows_nothing_and_says_why(tmp_path: Path) -> None:
    found = read_all(HostRoot(tmp_path, name="empty"))
    assert {where for where, fact in found.items() if fact.is_known} == set()
    assert all(fact.reason for fact in found.values())


def test_every_file_of_the_small_host_is_read(tmp_path: Path) -> None:
    for version in (1, 2):
        root = write_host(tmp_path / str(version), small_host(version))
        read_all(root)
        unread = set(small_host(version)) - set(root.touched.files)
        assert unread <= {*ONLY_WHEN_ODD, "/usr/share/misc/pci.ids"}
        shutil.rmtree(tmp_path / str(version))

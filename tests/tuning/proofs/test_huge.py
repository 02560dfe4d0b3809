"""Proofs of huge-page settings: against a kernel that gives, withholds, fails or refuses, and against the kernel at hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from fakes.calls import FakeCalls
from fakes.items import THP, item

from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.item import Item
from hicachectl.tuning.proofs import Proof, prove_effect
from hicachectl.tuning.proofs.huge_share import Pages, expected_of
from hicachectl.tuning.proofs.mapping import smaps_of
from hicachectl.tuning.target import Method, Target

BUDDY_FREE = "Node 0, zone   Normal      5      0      0      0      0      0      0      0      0     40      9\n"
BUDDY_EMPTY = "Node 0, zone   Normal   9999    900     90      9      1      1      1      1      1      0      0\n"
KINDS = ("thp-anonymous", "thp-shmem", "tmpfs-huge")


def host(top: Path, **changes: str | None) -> HostRoot:
    """Return a live root below `top` with what the proofs read; a change of None leaves the file out."""
    files: dict[str, str | None] = {
        f"{THP}/hpage_pmd_size": "2097152", f"{THP}/enabled": "always [madvise] never",
        f"{THP}/shmem_enabled": "always within_size [advise] never deny force",
        f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never",
        f"{THP}/hugepages-2048kB/shmem_enabled": "always [inherit] within_size advise never",
        "/proc/meminfo": "MemAvailable: 4194304 kB", "/proc/buddyinfo": BUDDY_FREE,
        "/proc/vmstat": "thp_fault_fallback 7\nthp_file_fallback 7\n",
        "/proc/self/status": "THP_enabled:\t1\n", "/proc/cpuinfo": "vendor_id : HygonGenuine",
        "/proc/self/mountinfo": "24 1 0:23 / /dev/shm rw - tmpfs tmpfs rw,huge=advise",
    }  # fmt: skip
    for path, text in {**files, **{where.replace("__", "/"): text for where, text in changes.items()}}.items():
        if text is not None:
            (top / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (top / path.lstrip("/")).write_text(text + "\n")
    (top / "dev/shm").mkdir(parents=True, exist_ok=True)
    return HostRoot(top)


def planned(proof: str, wanted: str) -> Item:
    """Return a change whose setting the proof is about."""
    if proof == "tmpfs-huge":
        return item("tmpfs.huge", "/dev/shm", wanted, method=Method.MOUNT, proof=proof, subject="/dev/shm")
    name = "enabled" if proof == "thp-anonymous" else "shmem_enabled"
    return item(f"thp.{name}", f"{THP}/{name}", wanted, proof=proof)


def advice_word(proof: str) -> str:
    return "madvise" if proof == "thp-anonymous" else "advise"


def prove(top: Path, proof: str, wanted: str | None = None, **kernel: Any) -> tuple[Proof, FakeCalls]:
    calls = FakeCalls(top, **kernel)
    found = prove_effect(planned(proof, wanted or advice_word(proof)), host(top), calls=calls)
    assert calls.all_given_back
    return found, calls


# -- what is seen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proof", KINDS)
def test_an_advised_mapping_in_huge_pages_and_one_without_advice_in_none_prove_the_setting(
    proof: str, tmp_path: Path
) -> None:
    found, calls = prove(tmp_path, proof)
    assert (found.name, found.held, found.reason) == (proof, True, None)
    assert "advised, 64 of 64 MiB in huge pages; without advice 0" in found.seen
    assert found.observed["huge_bytes"] == 64 << 20 and found.observed["unadvised_huge_bytes"] == 0
    assert calls.calls.count("advise-huge") == 1


@pytest.mark.parametrize("proof", KINDS)
def test_always_is_proven_without_advice(proof: str, tmp_path: Path) -> None:
    found, calls = prove(tmp_path, proof, "always", huge_mib=lambda advised: 64)
    assert found.held is True
    assert "advise-huge" not in calls.calls
    assert "unadvised_huge_bytes" not in found.observed


@pytest.mark.parametrize("proof", KINDS)
def test_a_setting_that_gives_huge_pages_to_everybody_does_not_prove_advice(proof: str, tmp_path: Path) -> None:
    found, _ = prove(tmp_path, proof, huge_mib=lambda advised: 64)
    assert found.held is False
    assert "without advice" in (found.reason or "")


@pytest.mark.parametrize("proof", KINDS)
def test_no_huge_page_where_none_was_asked_for_says_that_the_setting_has_no_effect(proof: str, tmp_path: Path) -> None:
    found, _ = prove(tmp_path, proof, huge_mib=lambda advised: 0, fallbacks=0)
    assert found.held is False
    assert "did not try" in (found.reason or "")


@pytest.mark.parametrize("proof", KINDS)
def test_failed_huge_faults_say_that_no_block_was_free_and_nothing_about_the_setting(
    proof: str, tmp_path: Path
) -> None:
    found, _ = prove(tmp_path, proof, huge_mib=lambda advised: 0, fallbacks=32)
    assert found.held is None
    assert "fragmented" in (found.reason or "") and "failed huge faults 32" in (found.reason or "")


def test_fewer_failed_faults_than_ours_would_be_are_those_of_others(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, "thp-anonymous", huge_mib=lambda advised: 0, fallbacks=31)
    assert found.held is False


def test_a_small_share_proves_the_setting_and_is_told(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, "thp-anonymous", huge_mib=lambda advised: 10 if advised else 0, fallbacks=27)
    assert found.held is True
    assert "10 of 64 MiB" in found.seen


@pytest.mark.parametrize(
    ("buddy", "held"), [(BUDDY_FREE, False), (BUDDY_EMPTY, None), (None, None)], ids=["free", "none free", "unread"]
)
def test_without_counters_free_blocks_decide(buddy: str | None, held: bool | None, tmp_path: Path) -> None:
    root = host(tmp_path, **{"/proc/vmstat": None, "/proc/buddyinfo": buddy})
    calls = FakeCalls(tmp_path, huge_mib=lambda advised: 0)
    assert prove_effect(planned("thp-shmem", "advise"), root, calls=calls).held is held


@pytest.mark.parametrize("proof", KINDS)
def test_never_is_proven_by_a_mapping_that_asked_and_got_none(proof: str, tmp_path: Path) -> None:
    found, calls = prove(tmp_path, proof, "never", huge_mib=lambda advised: 0)
    assert found.held is True
    assert "advise-huge" in calls.calls
    found, _ = prove(tmp_path, proof, "never")
    assert found.held is False
    found, _ = prove(tmp_path, proof, "never", huge_mib=lambda advised: 0, fallbacks=32)
    assert found.held is None  # it may have been let, and have got none


def test_the_setting_that_goes_before_the_items_is_named(tmp_path: Path) -> None:
    root = host(tmp_path, **{f"{THP}/hugepages-2048kB/enabled": "[always] inherit madvise never"})
    calls = FakeCalls(tmp_path, huge_mib=lambda advised: 64)
    found = prove_effect(planned("thp-anonymous", "never"), root, calls=calls)
    assert (found.held, found.reason) == (
        None,
        "never promises none, and hugepages-2048kB/enabled always goes before it",
    )
    found = prove_effect(planned("thp-anonymous", "madvise"), root, calls=calls)
    assert found.held is None and "none without advice, and hugepages-2048kB" in (found.reason or "")
    root = host(tmp_path, **{f"{THP}/shmem_enabled": "always within_size advise never deny [force]"})
    found = prove_effect(planned("tmpfs-huge", "never"), root, calls=calls)
    assert found.held is None and "shmem_enabled force goes before it" in (found.reason or "")
    root = host(tmp_path, **{f"{THP}/shmem_enabled": "always within_size advise never [deny] force"})
    calls = FakeCalls(tmp_path, huge_mib=lambda advised: 0)
    found = prove_effect(planned("tmpfs-huge", "advise"), root, calls=calls)
    assert found.held is False
    assert "because of shmem_enabled deny" in (found.reason or "")


def test_a_setting_that_only_steers_the_search_is_proven_under_the_word_that_is_in_force(tmp_path: Path) -> None:
    steering = item("thp.defrag", f"{THP}/defrag", "defer+madvise", proof="thp-anonymous")
    assert prove_effect(steering, host(tmp_path), calls=FakeCalls(tmp_path)).held is True
    root = host(tmp_path, **{f"{THP}/hugepages-2048kB/enabled": "always inherit madvise [never]"})
    found = prove_effect(steering, root, calls=FakeCalls(tmp_path, huge_mib=lambda advised: 0))
    assert found.held is True  # never is in force, and it holds
    assert "0 of 64 MiB" in found.seen


def test_the_size_of_a_huge_page_that_smaps_counts_is_proven_and_no_other(tmp_path: Path) -> None:
    for size, wanted, held in (("2048", "madvise", True), ("2048", "inherit", True), ("64", "madvise", None)):
        calls = FakeCalls(tmp_path)
        sized = item(f"thp.size.{size}kB", f"{THP}/hugepages-{size}kB/enabled", wanted, proof="thp-anonymous")
        found = prove_effect(sized, host(tmp_path), calls=calls)
        assert found.held is held, found
    assert found.reason == f"smaps counts only pages of 2048 kB, not of 64 kB ({THP}/hugepages-64kB/enabled)"


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL, errno.ENOMEM, errno.ENOSYS])
@pytest.mark.parametrize(
    ("proof", "call"),
    [
        *(("thp-anonymous", call) for call in ("reserve", "place", "advise-huge", "populate")),
        *(("thp-shmem", call) for call in ("shared_memory", "reserve", "place", "advise-huge", "populate")),
        *(("tmpfs-huge", call) for call in ("nameless_file", "free_bytes", "place", "advise-huge", "populate")),
    ],
)
def test_a_refused_call_is_not_observed_says_which_and_leaves_nothing_behind(
    proof: str, call: str, code: int, tmp_path: Path
) -> None:
    refuse = {call: code, "touch": code} if call == "populate" else {call: code}
    found, calls = prove(tmp_path, proof, refuse=refuse)
    assert found.held is None
    said = "touch" if call == "populate" and code == errno.EINVAL else call
    assert (found.reason or "").startswith(f"{said}: {errno.errorcode[code]}")
    assert calls.all_given_back


def test_a_kernel_without_populate_is_touched_instead(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, "tmpfs-huge", refuse={"populate": errno.EINVAL})
    assert found.held is True
    assert calls.calls.count("touch") == 2


def test_a_recording_is_never_asked(tmp_path: Path) -> None:
    calls = FakeCalls(tmp_path)
    recorded = HostRoot(host(tmp_path).path, name="recorded")
    for proof in (*KINDS, "binding"):
        found = prove_effect(planned(proof, "advise"), recorded, calls=calls)
        assert (found.held, found.reason) == (None, "observed on a live host only")
    assert calls.calls == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"/proc/meminfo": "MemAvailable: 200000 kB"}, "195 MiB are available"),
        ({"/proc/meminfo": "MemFree: 200000 kB"}, "has no MemAvailable"),
        ({f"{THP}/hpage_pmd_size": None}, "no such file"),
        ({"/proc/self/status": "THP_enabled:\t0"}, "switched off for this process"),
    ],
)
def test_what_forbids_a_look_is_said_before_anything_is_mapped(
    changes: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    calls = FakeCalls(tmp_path)
    found = prove_effect(planned("thp-anonymous", "madvise"), host(tmp_path, **changes), calls=calls)
    assert found.held is None
    assert said in (found.reason or "")
    assert calls.calls == []


@pytest.mark.parametrize(("cache_mib", "tried"), [(0, False), (900, True)])
def test_file_cache_that_goes_first_is_room_for_a_look(cache_mib: int, tried: bool, tmp_path: Path) -> None:
    """A group of 1 GiB that file cache fills, and one that memory of processes does."""
    group = {
        "/proc/self/cgroup": "0::/pod", "/proc/self/mountinfo": "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 none rw",
        "/sys/fs/cgroup/cgroup.controllers": "memory", "/sys/fs/cgroup/pod/memory.max": str(1 << 30),
        "/sys/fs/cgroup/pod/memory.current": str(1000 << 20), "/sys/fs/cgroup/pod/memory.stat": f"inactive_file {cache_mib << 20}",
    }  # fmt: skip
    calls = FakeCalls(tmp_path)
    found = prove_effect(planned("thp-anonymous", "madvise"), host(tmp_path, **group), calls=calls)
    assert bool(calls.calls) is tried
    assert tried or "the control group has 24 MiB left" in str(found.reason)


def test_a_full_mount_is_left_alone(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, "tmpfs-huge", mount_free_bytes=(128 << 20) - 1)
    assert (found.held, found.reason) == (None, "less than 128 MiB are free on the mount")
    assert "reserve" not in calls.calls


def test_a_mount_without_a_limit_is_looked_at(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, "tmpfs-huge", mount_free_bytes=None)
    assert found.held is not None


def test_pages_that_did_not_stay_prove_nothing(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, "thp-anonymous", resident_mib=60, huge_mib=lambda advised: 60 if advised else 0)
    assert (found.held, found.reason) == (None, "only 60 MiB stayed in memory")


def test_huge_pages_that_smaps_hides_while_they_are_sampled_are_looked_at_again(tmp_path: Path) -> None:
    found, calls = prove(tmp_path, "thp-anonymous", hidden=2)
    assert found.held is True and "advised, 64 of 64 MiB in huge pages; without advice 0" in found.seen
    assert calls.calls.count("populate") == 4  # three looks at the advised mapping, one at the other
    found, _ = prove(tmp_path, "thp-anonymous", hidden=3)
    assert (found.held, found.reason) == (None, "only 0 MiB stayed in memory")


def test_the_file_lies_on_the_items_mount(tmp_path: Path) -> None:
    _, calls = prove(tmp_path, "tmpfs-huge")
    assert set(calls.folders) == {str(tmp_path / "dev/shm")}


def test_an_unknown_word_and_an_unknown_proof_are_not_guessed(tmp_path: Path) -> None:
    found, _ = prove(tmp_path, "thp-anonymous", "sometimes")
    assert (found.held, found.reason) == (None, "what sometimes promises is not known here (thp.enabled)")
    for name, said in (("thp-other", "no proof called thp-other"), ("", "a load")):
        found = prove_effect(item(proof=name), HostRoot(tmp_path), calls=FakeCalls(tmp_path))
        assert found.held is None and said in (found.reason or "")


def test_a_proof_that_did_not_hold_has_a_reason() -> None:
    for held, reason in ((None, None), (False, None), (True, "why")):
        with pytest.raises(ValueError, match="reason"):
            Proof("x", held, "seen", {}, reason)
    assert Proof("x", True, "64 of 64 MiB").text == "64 of 64 MiB"
    assert Proof("x", None, "not observed", {}, "mmap: EPERM").text == "not observed: mmap: EPERM"


# -- smaps ------------------------------------------------------------------------------------------------------------------


def test_smaps_counts_the_entries_inside_the_mapping_alone_however_it_is_split() -> None:
    text = (
        "1000-2000 rw-p 0 00:00 0\nRss: 4 kB\nAnonHugePages: 4 kB\n"
        "2000-3000 rw-p 0 00:00 0 [heap]\nRss: 3 kB\nAnonHugePages: 1 kB\nVmFlags: rd wr\n"
        "3000-4000 rw-p 0 00:00 0\nRss: 4 kB\nAnonHugePages: 2 kB\n"
        "3000-5000 rw-p 0 00:00 0\nRss: 9 kB\nAnonHugePages: 9 kB\n"
    )
    assert smaps_of(text, 0x2000, 0x2000, "AnonHugePages") == Pages(7 << 10, 3 << 10)
    assert smaps_of(text, 0x2000, 0x2000, "ShmemPmdMapped") is None
    assert smaps_of(text, 0x9000, 0x1000, "AnonHugePages") is None


# -- the kernel at hand: mapping memory changes no setting ------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def words_here() -> list[tuple[str, Target, str]]:
    """Every (proof, target, word in force) of this machine; none where it has no huge pages."""
    root, found = HostRoot(), []
    for proof, name in (("thp-anonymous", "enabled"), ("thp-shmem", "shmem_enabled")):
        text = root.text(f"{THP}/{name}").value or ""
        word = text.partition("[")[2].partition("]")[0]
        own = (root.text(f"{THP}/hugepages-2048kB/{name}").value or "[inherit]").partition("[")[2].partition("]")[0]
        if word:
            found.append((proof, Target(Method.SYSFS, f"{THP}/{name}"), word if own == "inherit" else own))
    for line in (root.text("/proc/self/mounts").value or "").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "tmpfs" and where == "/dev/shm":
            word = next((o.partition("=")[2] for o in options.split(",") if o.startswith("huge=")), "never")
            found.append(("tmpfs-huge", Target(Method.MOUNT, where), word))
    return found


@pytest.mark.parametrize("proof", KINDS)
def test_what_is_in_force_on_this_machine_is_never_seen_missing_and_its_opposite_never_seen(proof: str) -> None:
    cases = [(target, word) for name, target, word in words_here() if name == proof]
    if not cases:
        pytest.skip("this machine has no such setting")
    target, word = cases[-1]  # of mounts on one place the last is on top
    before = open_files()
    true = prove_effect(planned_at(proof, target, word), HostRoot())
    assert true.held is not False, true
    expected = expected_of(word, shared=proof != "thp-anonymous")
    assert expected is not None
    opposite = "never" if expected.advised else "always"
    false = prove_effect(planned_at(proof, target, opposite), HostRoot())
    assert false.held is not True, false
    assert open_files() == before


def planned_at(proof: str, target: Target, wanted: str) -> Item:
    return item("any", proof=proof, wanted=wanted, target=target)

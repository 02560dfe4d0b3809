"""What `hicachectl run` does when a lower tier fails: counted degradation and right bytes, or a stop that names the byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import QUIET, call, command_line, signalled
from files import files_below
from run_calls import conversation_trace, counts, replay, run

from hicachectl.runtime.memory.device_pool import DevicePool
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.memory.slots import Slots
from hicachectl.runtime.probes.store_folder import RUN_PREFIX, StoreFolder
from hicachectl.runtime.replay import driver
from hicachectl.runtime.transfer.backends import Direction, Submitted
from hicachectl.runtime.transfer.cpu import CpuBackend

L3 = ("--device-slots", "8", "--host-slots", "16", "--storage-path", "l3")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(QUIET, "HICACHECTL_RUN_PREFETCH_POLICY", "wait_complete")  # counts with no deadline in them


def objects() -> list[Path]:
    return sorted(Path("l3").rglob("*.page"))


def leftovers() -> list[Path]:
    return [path for path in Path("l3").rglob("*") if path.is_file() and path.suffix != ".page"]


def in_own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts that nobody else sees; skip where that is not permitted."""
    tool = shutil.which("unshare")
    if tool is None:
        pytest.skip("unshare (util-linux) is not installed")
    may = subprocess.run(
        [tool, "-m", "sh", "-c", "mkdir -p l3 && mount -t tmpfs -o size=1m none l3"],
        capture_output=True,
        text=True,
        check=False,
    )
    if may.returncode:
        pytest.skip(f"no private mount namespace with a tmpfs here: {may.stderr.strip()}")
    return subprocess.run(
        [tool, "-m", "sh", "-c", script], env=QUIET, capture_output=True, text=True, timeout=120, check=False
    )


def words(*argv: str) -> str:
    small = ("--geometry", "tiny-64k", "--restore", "always", "--progress", "none", "-o", "json")
    return " ".join(command_line("run", *small, *argv))


def test_a_full_disk_degrades_with_counts_and_exit_0(tmp_path: Path) -> None:
    """192 pages of 68 KiB want into 1 MiB."""
    line = words("--trace", conversation_trace(tmp_path, n=24), *L3)
    ran = in_own_mounts(
        f"mount -t tmpfs -o size=1m none l3 && {line}; code=$?; find l3 -type f ! -name '*.page' >&2; exit $code"
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    data = document["data"]
    assert data["failures_by_reason"]["storage_full"] >= 1
    assert data["evicted_pages"]["storage"] > 0
    assert data["pools"]["storage_used_bytes"] <= 1 << 20
    assert (data["pages_mismatched"], data["pages_verified"]) == (0, data["pages_restored"])
    assert document["status"] == "findings"
    assert "storage_full" in {d["code"]: d["message"] for d in document["diagnostics"]}["HC-TIER-DEGRADED"]
    assert "/.tmp" not in ran.stderr


def test_a_read_only_storage_folder_is_not_ready(tmp_path: Path) -> None:
    ran = in_own_mounts(
        f"mount -t tmpfs -o size=1m,ro none l3 && {words('--trace', conversation_trace(tmp_path), *L3)}"
    )
    assert (ran.returncode, json.loads(ran.stdout)["diagnostics"][0]["code"]) == (10, "HC-STORAGE")


def test_a_second_run_restores_what_the_first_one_left_in_the_folder(tmp_path: Path) -> None:
    argv = ("--trace", conversation_trace(tmp_path, rounds=1), *L3)
    assert replay(*argv)["pages_hit"] == 0
    again = replay(*argv)
    assert again["pages_hit_by_tier"] == {"device": 0, "host": 0, "storage": 96}
    assert again["pages_verified"] == 96


def test_corrupt_and_short_objects_are_counted_misses_removed_and_written_anew(tmp_path: Path) -> None:
    """Of 12 conversations: the first page of one flipped, the sixth of one flipped, one page of one cut short."""
    argv = ("--trace", conversation_trace(tmp_path, rounds=1), *L3)
    whole = replay(*argv)
    by_age = sorted(objects(), key=lambda path: path.stat().st_mtime_ns)  # a path's head is its youngest page
    assert len(by_age) == 96
    flip(by_age[7], -1)
    flip(by_age[8 + 2], 200)
    cut = by_age[16 + 3]
    cut.write_bytes(cut.read_bytes()[:-9])
    data = replay(*argv)
    assert data["failures_by_reason"] == {"storage_corrupt": 2}
    assert data["storage_corrupt_removed"] == 3
    assert data["pages_hit_by_tier"]["storage"] == 96 - 4
    assert data["missed_tokens_by_reason"]["failed"] == (8 + 3) * 512
    assert data["pages_restored"] == data["pages_used"] == 96 - 4 - 11
    assert data["pages_total"] == whole["pages_total"]
    assert leftovers() == []
    healed = replay(*argv)
    assert healed["pages_restored"] == 96
    assert healed["failures_by_reason"] == {}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_degradation_is_a_finding_on_the_screen_too(tmp_path: Path) -> None:
    argv = ("--trace", conversation_trace(tmp_path, rounds=1), *L3)
    replay(*argv)
    flip(objects()[0], -1)
    ran = call("run", "--geometry", "tiny-4k", "--restore", "always", "--progress", "none", *argv)
    assert ran.code == 0
    assert "HC-TIER-DEGRADED" in ran.out
    assert "1 storage_corrupt" in ran.out


def test_objects_that_vanish_between_two_runs_are_misses(tmp_path: Path) -> None:
    argv = ("--trace", conversation_trace(tmp_path, rounds=1), *L3)
    replay(*argv)
    for path in objects()[::2]:
        path.unlink()
    data = replay(*argv)
    assert 0 < data["pages_restored"] < 96
    assert len(objects()) == 96


def test_another_trace_and_another_geometry_do_not_read_these_objects(tmp_path: Path) -> None:
    replay("--trace", conversation_trace(tmp_path, rounds=1), *L3)
    other = replay("--trace", conversation_trace(tmp_path, n=11, rounds=1), *L3)
    assert other["pages_hit"] == 0
    wide = replay("--trace", conversation_trace(tmp_path, rounds=1), *L3, "--geometry", "tiny-64k")
    assert wide["pages_hit"] == 0


def test_what_a_killed_run_left_in_the_temporary_folder_is_removed_and_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUIET, "TMPDIR", str(tmp_path / "tmp"))
    killed = signalled(signal.SIGKILL, "run", when=lambda: files_below(tmp_path, ".page"))
    assert killed.code == -signal.SIGKILL
    (left,) = (tmp_path / "tmp").iterdir()
    at_work = StoreFolder(tmp_path / "tmp", prefix=RUN_PREFIX)
    with at_work:
        ran = call("run", "--limit", "3")
        assert f"removed {left}, which a killed process left" in "".join(ran.err.splitlines())
        assert list((tmp_path / "tmp").iterdir()) == [at_work.path]
    assert "removed" not in call("run", "--limit", "3").err
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_of_another_in_the_temporary_folder_stays_and_is_told_also_by_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        (folder,) = (tmp_path / "tmp").glob(f"{RUN_PREFIX}*")
        (folder / "mine").write_text("of another")
        raise RuntimeError("in the middle")

    monkeypatch.setattr("hicachectl.commands.run._replay", fail)
    ran = call("run", "--trace", str(conversation_trace(tmp_path)), *L3[:-1], "auto")
    (folder,) = (tmp_path / "tmp").glob(f"{RUN_PREFIX}*")
    said = "".join(ran.err.splitlines())
    assert (ran.code, (folder / "mine").read_text()) == (1, "of another")
    assert f"left in the temporary storage folder: {folder}/mine: not written by the store" in said


def test_a_temporary_storage_folder_is_gone_after_the_run(tmp_path: Path) -> None:
    data = replay(
        "--trace", conversation_trace(tmp_path), "--device-slots", "8", "--host-slots", "16", "--storage-path", "auto"
    )
    assert data["pages_hit_by_tier"]["storage"] > 0
    assert os.listdir(tempfile.gettempdir()) == []


class Hooked(CpuBackend):
    """Copies like `cpu`, after `before` has had its way with the pools."""

    loads = 0

    def before(self, direction: Direction, host_pool: HostPool, host_slots: Slots) -> None:
        raise AssertionError("a subclass says what happens before the copy")

    def copy(
        self,
        direction: Direction,
        device_pool: DevicePool,
        host_pool: HostPool,
        device_slots: Slots,
        host_slots: Slots,
        planes: range,
    ) -> Submitted:
        type(self).loads += direction is Direction.LOAD
        self.before(direction, host_pool, host_slots)
        return super().copy(direction, device_pool, host_pool, device_slots, host_slots, planes)


def hook(monkeypatch: pytest.MonkeyPatch, before: Any) -> None:
    kind = type("Hook", (Hooked,), {"before": before})
    monkeypatch.setattr(driver, "make_backend", lambda _backend, _layout, _device: kind())


def test_a_flipped_byte_in_the_host_pool_stops_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped: list[tuple[int, int, int]] = []

    def before(self: Hooked, direction: Direction, host_pool: HostPool, host_slots: Slots) -> None:
        if direction is Direction.LOAD and self.loads == 3:
            slot = int(host_slots[5])
            page = host_pool.read_page(slot)
            flipped.append((slot, int(page[1, 77]), int(page[1, 77]) ^ 4))
            page[1, 77] ^= 4
            host_pool.write_page(slot, page)

    hook(monkeypatch, before)
    ran = run(
        "--trace", conversation_trace(tmp_path), "--host-slots", "200", "--storage-path", "auto", "--report", "out.html"
    )
    assert ran.code == 1
    ((slot, want, got),) = flipped
    (failure,) = [d for d in ran.json["diagnostics"] if d["severity"] == "failure"]
    assert failure["code"] == "HC-PAGE-MISMATCH"
    assert f"page 5 restored from host: byte 77 of plane 1 is {got:#04x}, must be {want:#04x}" in failure["message"]
    assert f"host tier, host slot {slot}," in failure["subject"]
    data = ran.json["data"]
    assert (data["stop"], data["requests"], data["pages_mismatched"], data["pages_verified"]) == (
        "failed",
        15,
        1,
        2 * 8 + 5,
    )
    assert "error: host tier, host slot" in ran.err
    assert Path("out.html").read_text().rstrip().endswith("</html>")
    assert [name for name in os.listdir(tempfile.gettempdir()) if "-l3-" in name] == []


@pytest.mark.parametrize("direction", [Direction.LOAD, Direction.BACKUP])
def test_copies_that_fail_cost_a_recompute_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    def before(self: Hooked, one: Direction, host_pool: HostPool, host_slots: Slots) -> None:
        if one is direction:
            raise OSError(5, "made to fail")

    hook(monkeypatch, before)
    ran = run("--trace", conversation_trace(tmp_path), "--host-slots", "200", "--storage-path", "auto")
    data = ran.json["data"]
    assert ran.code == 0
    assert data["failures_by_reason"][f"transfer_{direction.value}"] >= 12
    assert (data["pages_restored"], data["pages_used"]) == (0, 0)
    assert data["missed_tokens_by_reason"]["never_seen"] == 96 * 512
    assert [d["code"] for d in ran.json["diagnostics"]] == ["HC-TIER-DEGRADED"]


def test_a_slow_path_is_learned_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load takes 50 ms, which its measurement says; prefill of 8 pages is 1.2e-6 s a token."""

    def before(self: Hooked, direction: Direction, host_pool: HostPool, host_slots: Slots) -> None:
        if direction is Direction.LOAD:
            time.sleep(0.05)

    hook(monkeypatch, before)
    Path("hicache.yaml").write_text("run:\n  compute: {a_s: 0, b_s: 1.2e-6, c_s: 0}\n")
    data = replay("--trace", conversation_trace(tmp_path, rounds=3), "--host-slots", "200", "--restore", "cost")
    assert 0 < data["pages_restored"] < 48
    assert data["missed_tokens_by_reason"]["restore_dearer"] > 96 * 512


def test_counts_do_not_depend_on_how_slow_a_copy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = (
        "--trace",
        conversation_trace(tmp_path, n=6, rounds=3),
        "--device-slots",
        "9",
        "--host-slots",
        "20",
        "--storage-path",
        "auto",
    )
    quick = counts(replay(*argv))
    rng = np.random.default_rng(3)
    hook(monkeypatch, lambda self, direction, host_pool, host_slots: time.sleep(float(rng.uniform(0, 0.02))))
    assert counts(replay(*argv)) == quick


def test_a_folder_that_is_made_is_told_and_a_mistyped_path_is_refused(tmp_path: Path) -> None:
    trace = conversation_trace(tmp_path)
    new, far = tmp_path / "l3", tmp_path / "no" / "such" / "l3"
    checked = run("--trace", trace, "--storage-path", str(new), "--check")
    assert checked.json["data"]["storage"] == f"{new} (will be made)"
    assert not new.exists()
    ran = run("--trace", trace, "--storage-path", str(new))
    assert any(
        f"the storage folder {new} was not there, this run made it" in note for note in ran.json["data"]["notes"]
    )
    again = run("--trace", trace, "--storage-path", str(new))
    assert not any("this run made it" in note for note in again.json["data"]["notes"])
    refused = run("--trace", trace, "--storage-path", str(far))
    assert refused.code == 10
    assert f"mkdir -p {far.parent}" in " ".join(refused.err.split())
    assert not (tmp_path / "no").exists()

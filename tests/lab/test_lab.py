"""Tests of the lab itself: pretend devices alone, then whole runs (10 s each; skipped until setup.sh has run)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab import LAB_DIR, Result, run
from vfio_user_device import DEVICE_CONTROL, DEVICE_CONTROL_2, ConfigSpace, Device


def lab(test: Any) -> Any:
    """Mark a test that boots a guest."""
    return pytest.mark.lab(pytest.mark.timeout(300)(pytest.mark.usefixtures("pieces")(test)))


IDO = bytes.fromhex("0003")  # bits 8 and 9, little endian
ACCELERATOR = {"name": "accel", "vendor": "1d22", "device": "3685", "class_code": "1200"}


def space(**fields: object) -> ConfigSpace:
    return ConfigSpace(Device.from_json({**ACCELERATOR, **fields}))


@pytest.mark.parametrize(
    ("behaviour", "reads"),
    [
        ("accepts", ["0003", "0003", "0003", "0003"]),
        ("refuses", ["0000", "0000", "0000", "0000"]),
        ({"reverts_after_reads": 2}, ["0003", "0003", "0000", "0000"]),
        ("falls_off", ["ffff", "ffff", "ffff", "ffff"]),
    ],
)
def test_ido_write_is_answered_as_told(behaviour: object, reads: list[str]) -> None:
    config = space(behaviour=behaviour)
    config.write(DEVICE_CONTROL_2, IDO)
    assert [config.read(DEVICE_CONTROL_2, 2).hex() for _ in range(4)] == reads


def test_only_ido_and_low_bits_of_device_control_2_are_writable() -> None:
    config = space()
    config.write(DEVICE_CONTROL_2, b"\xff\xff")
    assert config.read(DEVICE_CONTROL_2, 2).hex() == "1f03"


def test_version_1_capability_has_another_register_there() -> None:
    config = space(capability_version=1)
    config.write(DEVICE_CONTROL_2, b"\xff\xff")
    assert config.read(DEVICE_CONTROL_2, 2) == b"\xff\xff"


def test_function_reset_clears_ido() -> None:
    config = space()
    config.write(DEVICE_CONTROL_2, IDO)
    config.write(DEVICE_CONTROL, (0x8000).to_bytes(2, "little"))
    assert config.read(DEVICE_CONTROL_2, 2) == b"\0\0"


def test_a_lab_that_is_required_and_not_set_up_fails_else_it_skips(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text("def test_one(pieces):\n    pass\n")
    (tmp_path / "conftest.py").write_text(
        (LAB_DIR / "conftest.py").read_text().replace("__file__", repr(str(LAB_DIR / "x")))
    )
    for required, words in (("0", "1 skipped"), ("1", "1 error")):
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", tmp_path, test],
            env={**os.environ, "LAB_CACHE": str(tmp_path / "nothing"), "LAB_REQUIRED": required},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert words in ran.stdout, ran.stdout + ran.stderr
        assert "the lab is not set up" in ran.stdout


def run_job(machine: str, job: str, out_dir: Path) -> Result:
    result = run(LAB_DIR / "machines" / f"{machine}.json", LAB_DIR / "jobs" / job, out_dir=out_dir, timeout_s=240)
    assert result.exit_code == 0, result.stdout
    return result


@lab
@pytest.mark.parametrize("machine", ["hygon-8n8x", "stubborn", "nvidia-2n4x", "kunlun-2n8x", "single"])
def test_log_holds_exactly_the_jobs_writes(machine: str, tmp_path: Path) -> None:
    result = run_job(machine, "probe", tmp_path)
    pretend = {write["address"] for write in result.config_writes}
    noted = json.loads((tmp_path / "files" / "ido-writes.json").read_text())
    logged = [
        {key: write[key] for key in ("address", "offset", "bytes")}
        for write in result.config_writes
        if write["phase"] == "job"
    ]
    assert logged == [write for write in noted if write["address"] in pretend]


@lab
def test_locked_down_situations(tmp_path: Path) -> None:
    run_job("hygon-8n8x", "locked-down", tmp_path)
    answers = json.loads((tmp_path / "files" / "locked-down.json").read_text())
    assert answers["nobody"]["config bytes readable"] == "64"
    assert answers["nobody"]["config write"] == "EACCES"
    assert answers["without_cap_sys_admin"]["config bytes readable"] == "64"
    assert answers["without_cap_sys_admin"]["config write"] == "OK, 2 bytes taken"
    assert answers["seccomp_eperm"]["mbind node 1"] == "EPERM"
    assert answers["cpuset_of_two_nodes"]["mbind node 7"] == "EINVAL"
    assert answers["cpuset_of_two_nodes"]["nodes listed by sysfs"] == "8"
    assert answers["read_only_sys"]["config write"] == "EROFS"
    assert answers["hidden_sys_mm"]["THP write"] == "ENOENT"
    assert answers["kernel_lockdown"]["config write"] == "EPERM"

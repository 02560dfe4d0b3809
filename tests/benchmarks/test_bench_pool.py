"""The benchmark of host memory runs without an accelerator, says so, and puts back what it changed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_memory import MIB, FakeDriver, FakeKernel

from hicachectl.runtime.probes.pool import default_cases, run_pool_probe

ROOT = Path(__file__).resolve().parents[2]


def test_bench_pool_measures_without_a_device_and_says_what_it_left_out(tmp_path: Path) -> None:
    target = tmp_path / "pool.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_pool.py"), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(target.read_text())
    assert content["command"] == "python benchmarks/bench_pool.py --quick"
    rows = {row["name"]: row for row in content["rows"]}
    assert (
        rows["anonymous huge, 2 threads: not in huge pages"]["limit"] is None
    )  # targets are for a device, beside torch
    assert rows["memfd 4K, 2 threads: populate"]["samples"]
    where = content["environment"]
    assert {"device", "driver", "kernel", "commit", "transparent_hugepage_enabled"} <= set(where)
    assert where["shmem_enabled"] == {}
    assert all(len(row["samples"]) == 2 for row in where["probe"]["rows"])
    assert where["probe"]["baseline"]["reason"] == "not asked for (--cuda)"
    assert "nothing registered: not asked for (--cuda)" in done.stdout


def test_a_pool_larger_than_the_machine_is_refused_with_the_sum(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_pool.py"), "--gib", "1e6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "left to the machine" in done.stderr


def setting(name: str = "_host_setting") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_changed_setting_is_put_back_also_after_an_error_and_both_values_are_recorded(tmp_path: Path) -> None:
    path, record = tmp_path / "shmem_enabled", dict[str, Any]()
    path.write_text("always within_size [advise] never deny force\n")
    assert setting().chosen(path) == "advise"
    path.write_text("never\n")

    def run() -> None:
        with setting().changed(path, "advise", record):
            assert path.read_text() == "advise"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert path.read_text() == "never"
    assert record == {"path": str(path), "old": "never", "new": "advise", "read_back": "advise", "restored": "never"}


def test_with_a_device_the_target_is_a_third_of_torchs_time_in_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = setting("bench_pool")
    probe = run_pool_probe(
        MIB, default_cases((1, 2)), rounds=1, registrar=FakeDriver(), baseline=lambda n: (60.0, 1.0), calls=FakeKernel()
    )
    rows = {row.name: row for row in bench._rows(probe)}
    limits = {name: row.limit for name, row in rows.items() if row.limit is not None}
    assert limits == {
        "anonymous huge, 2 threads: total": 20.0, "anonymous huge, 2 threads: not in huge pages": 1.0,
        "memfd huge, 2 threads: total": 20.0, "memfd huge, 2 threads: not in huge pages": 1.0,
    }  # fmt: skip
    assert "times faster than torch" in rows["memfd huge, 1 thread: total"].note
    assert rows["torch.empty(pin_memory=True): total"].samples == (60.0,)
    assert rows["anonymous 4K, 2 threads: not in huge pages"].samples == (100.0,)


def test_without_a_word_nothing_is_read_or_written(tmp_path: Path) -> None:
    record = dict[str, Any]()
    with setting().changed(tmp_path / "absent", None, record):
        pass
    assert record == {}


def test_a_value_that_does_not_come_back_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "stuck"
    path.write_text("never\n")

    class Stuck(type(path)):  # type: ignore[misc]
        def write_text(self, text: str, *more: Any, **named: Any) -> int:
            return super().write_text("advise") if text == "advise" else 0

    with pytest.raises(RuntimeError, match="write never to it"), setting().changed(Stuck(path), "advise", {}):
        pass


def test_a_tmpfs_is_mounted_in_private_mounts_only() -> None:
    assert "HICACHE_BENCH_MOUNTS_OF" not in os.environ
    with pytest.raises(RuntimeError, match="mounts of its own"), setting().private_tmpfs(1, {}):
        pass

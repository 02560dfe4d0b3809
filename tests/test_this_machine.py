from __future__ import annotations

from pathlib import Path

from hicachectl.this_machine import machine_words


def test_a_machine_is_told_from_its_files_and_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert dict(machine_words(tmp_path))["processor"] == dict(machine_words(tmp_path))["memory"] == "unknown"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Test CPU\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    (tmp_path / "proc/meminfo").write_text("MemTotal:        2097152 kB\nMemFree: 1 kB\n")
    words = dict(machine_words(tmp_path))
    assert (words["processor"], words["memory"]) == ("Test CPU", "2.0 GiB")
    assert list(words) == ["processor", "cores", "memory", "kernel", "Python", "torch", "numpy"]

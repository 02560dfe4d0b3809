"""What README promises runs, and what it admits is what was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_embedding_example_caches_and_restores() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    body = code.partition("\n\n")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    try:
        long, other = (np.arange(start, start + 70 * 64, dtype="<u4").tobytes() for start in (0, 1 << 20))
        accounts = []
        for tokens in (long, other, long):  # the second drives the end of the first off the device
            accounts.append(names["serve"](tokens))
            names["cache"].drain()  # copies down hold pages in place until they are over
        first, again = accounts[0], accounts[2]
        assert (first.hit_pages, again.hit_pages, again.used_pages) == (0, 70, 70)
        assert again.restored_host_pages > 0
        names["cache"].check()
    finally:
        for part in ("cache", "engine", "host", "device"):
            names[part].close()


def test_every_limit_that_was_missed_is_named() -> None:
    results = (ROOT / "benchmarks/results/README.md").read_text(encoding="utf-8")
    missed = re.findall(r"^\| (.*?) \| ([\d,.]+) \|.*\*\*missed\*\*", results, re.MULTILINE)
    admitted = re.findall(r"^\| (.*?) \| [\d,.]+[^|]* \| ([\d,.]+)[^|]* \|$", README, re.MULTILINE)
    assert sorted(admitted) == sorted(missed)


def test_every_command_line_on_traffic_names_its_geometry_or_a_profile() -> None:
    lines = re.findall(r"^    \.venv/bin/hicachectl run (--trace .*)$", README, re.MULTILINE)
    assert lines
    assert [line for line in lines if "--geometry" not in line and "--profile" not in line] == []

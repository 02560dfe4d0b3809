"""What the benchmarks share: arguments, timing, the record of where it ran, the table and the JSON file.

A benchmark is a script: it makes rows of raw samples and calls `report`. Imports the standard library only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_CONTENT_VERSION = 1
_LIBRARIES = ("hicachectl", "numpy", "torch", "triton", "sglang")


@dataclass(frozen=True)
class Row:
    """One measured thing: raw samples in `unit`, and the limit its p50 has to keep, where there is one.

    With `at_least` the limit is kept from below.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    limit: float | None = None
    note: str = ""
    at_least: bool = False

    @property
    def p50(self) -> float:
        """The median sample."""
        return statistics.median(self.samples)

    @property
    def kept(self) -> bool:
        """Whether the p50 keeps the limit; without one it does."""
        if self.limit is None:
            return True
        return self.p50 >= self.limit if self.at_least else self.p50 <= self.limit


def arguments(description: str, add: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Parse `--json FILE`, `--commit SHA` and `--quick`, and what `add` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write raw samples, commit and hardware to FILE")
    parser.add_argument("--commit", metavar="SHA", help="commit this is a clean copy of, where there is no repository")
    parser.add_argument("--quick", action="store_true", help="few, small samples: shows that it runs, not how fast")
    if add is not None:
        add(parser)
    return parser.parse_args()


def timed(
    action: Callable[[], object], *, repeats: int, scale: float = 1e6, before: Callable[[], object] | None = None
) -> tuple[float, ...]:
    """Time an action `repeats` times after one unmeasured call; `before` runs untimed ahead of each.

    Returns wall times in seconds times `scale` (1e6: microseconds). The cyclic collector rests meanwhile.
    """
    samples: list[float] = []
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats + 1):
            if before is not None:
                before()
            start = time.perf_counter()
            action()
            samples.append((time.perf_counter() - start) * scale)
    finally:
        if was_enabled:
            gc.enable()
    return tuple(samples[1:])


def environment() -> dict[str, Any]:
    """Record commit, hardware and library versions; what cannot be found out is None."""
    versions: dict[str, str | None] = {}
    for library in _LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            versions[library] = None
    return {
        "commit": _git("rev-parse", "HEAD"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "uncommitted_changes": bool(status) if (status := _git("status", "--porcelain")) is not None else None,
        "cpu": _proc_field("/proc/cpuinfo", "model name") or platform.processor() or None,
        "n_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _proc_field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "versions": versions,
    }


def report(
    name: str, method: str, rows: Sequence[Row], options: argparse.Namespace, more: Mapping[str, Any] | None = None
) -> None:
    """Print the method and a table, and write the JSON file where one was asked for (whole, or not at all).

    `more` joins the record of where it ran: an accelerator, settings that were changed, and the like.
    """
    where = {**environment(), **(more or {})}
    if options.commit:
        where |= {"commit": options.commit, "uncommitted_changes": False}
    print(f"{name}: {method}")
    commit = (where["commit"] or "unknown")[:12] + ("+changes" if where["uncommitted_changes"] else "")
    load = where["load_average"][0]
    print(f"commit {commit}; {where['cpu']}, {where['n_cpus']} cpus, load {load:.1f}; Python {where['python']}")
    _print_table(rows)
    if options.json is not None:
        content = {
            "benchmark": name,
            "version": _CONTENT_VERSION,
            "command": command_of(sys.argv),
            "method": method,
            "quick": options.quick,
            "environment": where,
            "rows": [{**asdict(row), "p50": row.p50} for row in rows],
        }
        draft = options.json.with_name(options.json.name + ".part")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draft.replace(options.json)
        print(f"raw samples: {options.json}", file=sys.stderr)


def command_of(argv: Sequence[str]) -> str:
    """Return the command line that repeats a run: without what says where results go and which commit it is. Pure.

    >>> command_of(["/a/bench_pool.py", "--cuda", "--json", "x.json", "--gib", "16", "--commit=abc"])
    'python benchmarks/bench_pool.py --cuda --gib 16'
    """
    words, left_out = [], False
    for word in argv[1:]:
        name, _, value = word.partition("=")
        if name in ("--json", "--commit"):
            left_out = not value
        elif not left_out:
            words.append(word)
        else:
            left_out = False
    return shlex.join(["python", f"benchmarks/{Path(argv[0]).name}", *words])


def _print_table(rows: Sequence[Row]) -> None:
    head = ("case", "n", "p50", "min", "max", "unit", "limit", "note")
    cells = [head]
    for row in rows:
        numbers = (f"{x:.4g}" if x < 1e4 else f"{x:.0f}" for x in (row.p50, min(row.samples), max(row.samples)))
        sign = ">= " if row.at_least else ""
        limit = "" if row.limit is None else f"{sign}{row.limit:g} {'kept' if row.kept else 'MISSED'}"
        cells.append((row.name, str(len(row.samples)), *numbers, row.unit, limit, row.note))
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    numeric = range(1, 5)
    for line in cells:
        sized = [line[i].rjust(width) if i in numeric else line[i].ljust(width) for i, width in enumerate(widths)]
        print("  ".join(sized).rstrip())


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _proc_field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)

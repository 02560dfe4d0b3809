"""`topo`: one look at this host, and at a made-up one with 500 PCI functions; a snapshot of it, written and read.

Run: python benchmarks/bench_topo.py [--json FILE] [--quick]
"""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from _bench import Row, arguments, report, timed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hosts.builder import build_root
from hosts.shapes import describe
from hosts.spec import Bus, Function, HostSpec

from hicachectl.tuning.findings import judge
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.recording import RecordingRoot
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.snapshot import open_root, write_snapshot
from hicachectl.tuning.placement import placements

METHOD = (
    "whole commands in a new process: wall time, and CPU time of user and kernel; the parts in this process, one thread, warm "
    "files; the made-up host has the shape 8n8x-4up16 and virtual functions up to 500"
)
N_FUNCTIONS = 500


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0])
    repeats = 2 if options.quick else 9
    with TemporaryDirectory() as folder:
        root = build_root(Path(folder) / "host", large_host())
        rows = [
            *command("this host", [], repeats, cpu_limit=0.4),
            *command(f"{N_FUNCTIONS} functions", ["--root", str(root)], repeats, wall_limit=1.0),
            *parts(Path(folder), root, repeats),
        ]
    report("bench_topo", METHOD, rows, options)


def large_host() -> HostSpec:
    """The worked host with virtual functions behind one more root port."""
    host = describe("8n8x-4up16")
    have = sum(_size(function) for bus in host.buses for function in bus.functions)
    n_more = N_FUNCTIONS - have - 1
    card = next(f for bus in host.buses for f in _all(bus.functions) if f.net)
    more = tuple(
        replace(card, address=f"0000:{0xE1 + i // 256:02x}:{i // 8 % 32:02x}.{i % 8}", net=(f"v{i}",), infiniband=(), iommu_group=100 + i)
        for i in range(n_more)
    )  # fmt: skip
    port = next(f for f in host.buses[-1].functions)
    return replace(
        host,
        buses=(*host.buses, Bus("0000:e0", (replace(port, address="0000:e0:01.0", children=more, iommu_group=99),))),
    )


def command(
    name: str, words: list[str], repeats: int, *, cpu_limit: float | None = None, wall_limit: float | None = None
) -> list[Row]:
    """Time the command in new processes."""
    rows = []
    for form in ("table", "json"):
        line = [sys.executable, "-m", "hicachectl", "topo", *words, "-o", form]
        cpu: list[float] = []

        def run(line: list[str] = line, cpu: list[float] = cpu) -> None:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(line, capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

        wall = timed(run, repeats=repeats, scale=1)
        rows.append(Row(f"topo -o {form}, {name}, CPU", "s", tuple(cpu[1:]), limit=cpu_limit))
        rows.append(Row(f"topo -o {form}, {name}, wall", "s", wall, limit=wall_limit))
    return rows


def parts(folder: Path, root: Path, repeats: int) -> list[Row]:
    """Time the steps inside."""
    recorded = partial(HostRoot, root, name="host")
    machine = read_machine(recorded())
    path = folder / "x.tar.zst"
    note = f"{len(machine.devices)} functions"

    def snapshot() -> Machine:
        recording = RecordingRoot(recorded())
        found = read_machine(recording)
        write_snapshot(path, recording, found, topo=b"{}\n", about={"collected_at": "2026-01-01T00:00:00Z"}, force=True)
        return found

    return [
        Row("read_machine, this host", "ms", timed(lambda: read_machine(HostRoot()), repeats=repeats, scale=1e3)),
        Row("read_machine", "ms", timed(lambda: read_machine(recorded()), repeats=repeats, scale=1e3), note=note),
        Row("judge", "ms", timed(lambda: judge(machine), repeats=repeats, scale=1e3), note=note),
        Row("placements", "ms", timed(lambda: placements(machine), repeats=repeats, scale=1e3), note=note),
        Row("flatten", "ms", timed(lambda: flatten(machine), repeats=repeats, scale=1e3), note=note),
        Row("snapshot written", "ms", timed(snapshot, repeats=max(2, repeats // 3), scale=1e3), note=note),
        Row(
            "snapshot opened and read",
            "ms",
            timed(lambda: read_machine(open_root(path)), repeats=repeats, scale=1e3),
            note=f"{path.stat().st_size >> 10} KiB",
        ),
    ]


def _all(functions: tuple[Function, ...]) -> list[Function]:
    return [one for function in functions for one in (function, *_all(function.children))]


def _size(function: Function) -> int:
    return 1 + sum(map(_size, function.children))


if __name__ == "__main__":
    main()

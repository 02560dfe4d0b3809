"""Write results/README.md from the JSON files beside it: one table a benchmark, with its method and where it ran.

Run: python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
HEAD = """# Measured

Made by `python benchmarks/tables.py` from the JSON files in this folder, which keep the raw samples. `make bench` runs every benchmark as
it is without an accelerator; what ran on one is repeated there by the line of its section (the
traces are those of kvcache-ai/Mooncake, FAST25-release). A limit is kept when the median is at or below it, one with >= when it is at or above. The virtual machine without an
accelerator had two processors and ran other work now and then (the load average says how much), so runs differ; bench_replay has
given 363 to 714 requests a second there.
"""

TRACE = "traces/mooncake-fast25/conversation_trace.jsonl.gz"
COMMANDS = {
    "bench_copy": "python benchmarks/bench_copy.py --device cuda --rounds 11",
    "bench_pool": "python benchmarks/bench_pool.py --cuda --gib 16 --threads 1,16 --rounds 2 --shmem-enabled advise --private-tmpfs",
    "bench_replay_device": f"python benchmarks/bench_replay.py --device cuda --trace {TRACE}",
    "bench_size_device": f"python benchmarks/bench_size.py --device cuda --geometry tiny-512k --trace {TRACE}",
}
"""How results were made whose files do not say so (`command`)."""
LEAST_SAMPLES = 3
"""Below this many samples their spread is not known (`hicachectl.bench_data`): a limit is kept or missed by so few alone."""


def main() -> None:
    """Write the page."""
    target = RESULTS / "README.md"
    target.write_text(page(RESULTS), encoding="utf-8")
    print(target)


def page(folder: Path) -> str:
    """Return the text of the page for the results in `folder`. Reads only."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("bench_*.json"))]
    return "\n".join([HEAD, *(_section(content) for content in contents)])


def _section(content: dict[str, Any]) -> str:
    where = content["environment"]
    libraries = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    commit = (where["commit"] or "unknown")[:12] + (" with uncommitted changes" if where["uncommitted_changes"] else "")
    command = content.get("command") or COMMANDS.get(content["benchmark"])
    lines = [
        f"## {content['benchmark']}",
        "",
        f"{where['date']}, commit {commit}. {where['cpu']}, {where['n_cpus']} cpus (load average at the "
        f"end {where['load_average'][0]:.1f}), {where['memory']}, Linux {where['kernel']}, Python {where['python']}, {libraries}."
        + (f" {where['accelerator']}." if where.get("accelerator") else ""),
        "",
        f"Method: {content['method']}."
        + (" **Few, small samples (--quick): no measurement.**" if content["quick"] else ""),
        "",
        *(
            [
                f"Repeat: `{command}`, as root for settings and mounts."
                if "--shmem" in command
                else f"Repeat: `{command}`.",
                "",
            ]
            if command
            else []
        ),
        "| case | p50 | min | max | unit | limit | n | note |",
        "|---|---:|---:|---:|---|---|---:|---|",
    ]
    for row in content["rows"]:
        samples = row["samples"]
        numbers = " | ".join(_number(x) for x in (row["p50"], min(samples), max(samples)))
        limit = ""
        if row["limit"] is not None:
            at_least = row.get("at_least", False)
            kept = row["p50"] >= row["limit"] if at_least else row["p50"] <= row["limit"]
            limit = f"{'>= ' if at_least else ''}{row['limit']:g} {'kept' if kept else '**missed**'}"
            limit += (
                "" if len(samples) >= LEAST_SAMPLES else f", by {len(samples)} sample{'s' if len(samples) > 1 else ''}"
            )
        lines.append(f"| {row['name']} | {numbers} | {row['unit']} | {limit} | {len(samples)} | {row['note']} |")
    return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()

"""Write results/README.md from the JSON files beside it: one table a benchmark, with its method and where it ran.

Run: python benchmarks/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
HEAD = """# Measured

Made by `python benchmarks/tables.py` from the JSON files in this folder, which keep the raw samples. Measure again with
`make bench`; a limit is kept when the median is at or below it, one with >= when it is at or above. The virtual machine without an
accelerator had two processors and ran other work now and then (the load average says how much), so runs differ; bench_replay has
given 363 to 714 requests a second there.
"""


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
        lines.append(f"| {row['name']} | {numbers} | {row['unit']} | {limit} | {len(samples)} | {row['note']} |")
    return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()

"""What makes two sizing runs the same question: compared where one is gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.context import Context
    from hicachectl.size_run import Sizing
    from hicachectl.tuning.sizing.prediction import Prediction

__all__ = ["asked_of", "check_found", "name_run", "refuse_other"]

_FOUND = {"steps", "chosen", "bound", "rule", "reason"}
"""Of what a run records as asked: what it found itself."""
_MISSING = object()
_SAID_OTHERWISE = {
    "trace", "synthetic", "costs", "host_slots", "storage_path", "storage_bytes", "report", "metrics_port", "host_memory",
    "compute", "limit", "seed", "geometry", "device", "device_slots", "layout", "backend", "write_policy", "eviction",
    "session_gap_s",
}  # fmt: skip
"""Settings of `run` that a record holds by what they came to, or that a sizing does not use."""


def asked_of(run: Sizing, prediction: Prediction) -> dict[str, Any]:
    """Return what a sizing asks, as its record holds it: every option that its answer hangs on, and what it found itself. Pure."""
    from hicachectl.run_costs import sizing_costs

    base, settings, info, choice = run.base, run.effective.run, run.plan.info, prediction.choice
    return {
        "records": 4, "device": base.device, "host_memory": settings.host_memory.model_dump(mode="json"),
        "trace": base.trace_name, "format": info.format, "requests": info.n_requests, "input_tokens": info.total_input_tokens,
        "blocks": info.total_blocks, "limit": settings.limit, "seed": settings.seed, "geometry": base.geometry.name,
        "page_bytes": base.geometry.page_bytes, "device_slots": run.device_pages, "layout": settings.layout,
        "backend": settings.backend, "write_policy": settings.write_policy, "eviction": settings.eviction,
        "steps": list(prediction.sizes), "chosen": choice.host_pages, "points": run.points, "bound": choice.bound.value,
        "rule": choice.rule.value, "reason": choice.reason, "concurrency": run.concurrency, "exclusive": run.exclusive,
        "storage_pages": run.storage_pages, "steps_text": run.steps_text, "max_bytes": run.max_bytes, "ranks": run.ranks,
        "shared": run.shared, "session_gap_s": settings.session_gap_s, "compute": settings.compute.model_dump(mode="json"),
        "costs": {key: value for key, value in asdict(sizing_costs(run.bench_results)).items() if key != "why_no_host_read"}, "window_sha256": prediction.window_sha256,
        "storage_folder": None if run.storage_folder is None else str(run.storage_folder),
        "settings": {key: value for key, value in settings.model_dump(mode="json").items() if key not in _SAID_OTHERWISE},
    }  # fmt: skip


def refuse_other(run_id: str, folder: Path, was: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Compare what a run was asked with what is asked now. Pure. Raises UsageError naming both values of each difference."""
    now = json.loads(json.dumps(asked))
    differs = [key for key in sorted(now) if key not in _FOUND and was.get(key, _MISSING) != now[key]]
    if differs:
        raise UsageError(
            f"{run_id} asked for something else: {', '.join(_both(key, was, now) for key in differs)}",
            where=str(folder),
            hint="give the options of that run, or start a new one without --resume",
        )


def check_found(was: Mapping[str, Any], where: str) -> None:
    """Check what a run recorded of its own choice, before it is taken up. Pure. Raises UsageError for what no sizing writes."""
    from hicachectl.tuning.sizing.journal_lines import JournalLine, bad_line
    from hicachectl.tuning.sizing.plateau import Bound, Rule

    line = JournalLine(where, dict(was))
    kinds: dict[str, type] = {"chosen": int, "steps": list, "bound": str, "rule": str, "reason": str}
    for name, kind in kinds.items():
        line.field(name, kind)
    if not all(type(pages) is int and pages > 0 for pages in was["steps"]) or was["chosen"] < 0:
        raise bad_line(where, f"steps {was['steps']}, chosen {was['chosen']}: not pages")
    for known, name in ((Bound, "bound"), (Rule, "rule")):
        if was[name] not in [one.value for one in known]:
            raise bad_line(where, f"{name} is {was[name]!r}")


def name_run(cli: Context, run_id: str) -> None:
    """Let log lines and the error of a signal name the run. Changes `cli`."""
    cli.subject = run_id
    cli.go_on = f"{run_id} goes on with --resume and the same options"


def _both(key: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name a difference, of an object its fields that differ."""
    before, after = was.get(key, _MISSING), now[key]
    if isinstance(before, dict) and isinstance(after, dict):
        inner = sorted(name for name in {*before, *after} if before.get(name, _MISSING) != after.get(name, _MISSING))
        return ", ".join(f"{key}.{name} {_word(before, name)}, now {_word(after, name)}" for name in inner)
    return f"{key} {_word(was, key)}, now {_word(now, key)}"


def _word(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False) if name in values else "not recorded"

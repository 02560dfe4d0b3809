"""What makes two sizing runs the same question: compared where one is gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hicachectl.errors import UsageError

__all__ = ["check_found", "refuse_other"]

_FOUND = {"steps", "chosen", "bound", "rule", "reason"}
"""Of what a run records as asked: what it found itself."""
_MISSING = object()


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


def _both(key: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name a difference, of an object its fields that differ."""
    before, after = was.get(key, _MISSING), now[key]
    if isinstance(before, dict) and isinstance(after, dict):
        inner = sorted(name for name in {*before, *after} if before.get(name, _MISSING) != after.get(name, _MISSING))
        return ", ".join(f"{key}.{name} {_word(before, name)}, now {_word(after, name)}" for name in inner)
    return f"{key} {_word(was, key)}, now {_word(now, key)}"


def _word(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False) if name in values else "not recorded"

"""Runs apply or rollback in forked children, each killed at one step, and prints what became of the host as JSON lines.

    python tune_child.py FOLDER apply|rollback

A process of its own: it forks, and a test process has threads. For every step (before and after each journal record) a
fresh copy of one host is changed by a child that sends itself SIGKILL there. The parent then says what `tune status`
would, rolls back as another process would, and compares every file of the host with the one before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hosts.builder import build_root
from tuned_host import TunedHost, choose, open_host, small_spec

from hicachectl.errors import HicacheError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.journal import read_journal
from hicachectl.tuning.rollback import still_in_place


def main(folder: Path, what: str) -> None:
    """Print one line a case and a last one with the number of steps of an undisturbed run."""
    first = folder / "first"
    build_root(first / "host", small_spec())
    begin(first)
    steps = count(first, what)
    for number in range(len(steps)):
        case = folder / f"case-{number}"
        prepare(case, what)
        before = open_host(case / "host").everything() if what == "apply" else open_host(first / "host").everything()
        print(json.dumps(one(case, what, number, steps[number], before)), flush=True)
        shutil.rmtree(case)
    print(json.dumps({"steps": len(steps), "records": len({step.split()[-1] for step in steps})}))


def begin(folder: Path) -> None:
    """Leave a pristine copy beside the host."""
    shutil.copytree(folder / "host", folder.parent / "pristine", symlinks=True)


def prepare(case: Path, what: str) -> None:
    """Make a fresh host; for rollback one on which everything was applied."""
    shutil.copytree(case.parent / "pristine", case / "host", symlinks=True)
    if what == "rollback":
        host = open_host(case / "host")
        host.session.apply(host.session.plan(choose()), ApplyOptions())


def count(first: Path, what: str) -> list[str]:
    """Return the names of all steps of an undisturbed run, and leave the host as it was."""
    steps: list[str] = []
    if what == "apply":
        host = open_host(first / "host", checkpoint=steps.append)
        host.session.apply(host.session.plan(choose()), ApplyOptions())
        open_host(first / "host").session.rollback()
    else:
        host = open_host(first / "host")
        host.session.apply(host.session.plan(choose()), ApplyOptions())
        open_host(first / "host", checkpoint=steps.append).session.rollback()
    return steps


def one(case: Path, what: str, number: int, name: str, before: dict[str, bytes]) -> dict[str, Any]:
    """Kill a child at one step and tell the end of the story."""
    child = os.fork()
    if child == 0:
        host = open_host(case / "host", checkpoint=killer(number))
        if what == "apply":
            host.session.apply(host.session.plan(choose()), ApplyOptions())
        else:
            host.session.rollback()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    host = open_host(case / "host")
    state = host.session.states()[-1]
    changed = sorted(name for name, data in host.everything().items() if before.get(name) != data)
    entries = read_journal(Path(state.folder)).entries()
    told: dict[str, Any] = {
        "case": name,
        "status": status,
        "outcome": state.outcome.value,
        "reason": state.reason,
        "open_item": state.open_item,
        "n_applied": state.n_applied,
        "host_changed": changed,
        "recorded": [entry.item for entry in still_in_place(read_journal(Path(state.folder)))],
        "second_apply": refused(host),
        "entries": len(entries),
    }
    told["rolled_back"] = rolled_back(case)
    after = open_host(case / "host").everything()
    told["identical"] = after == before
    told["end"] = open_host(case / "host").session.states()[-1].outcome.value
    return told


def refused(host: TunedHost) -> str | None:
    """Say with which code a new apply is refused, if it is; it applies nothing."""
    plan = host.session.plan(choose({}))
    try:
        host.session.apply(plan, ApplyOptions())
    except HicacheError as error:
        return error.code
    return None


def rolled_back(case: Path) -> str:
    """Roll back in the parent, as another person would, and name the outcome."""
    try:
        return open_host(case / "host").session.rollback().outcome.value
    except HicacheError as error:
        return f"{error.code}: {error.what}"


def killer(number: int) -> Callable[[str], None]:
    """Return a checkpoint that kills this process at the `number`-th step."""
    left = [number]

    def checkpoint(step: str) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    return checkpoint


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

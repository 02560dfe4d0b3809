"""`tune unit`: the files that keep a saved plan over boots, printed, or written side by side into a folder."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.context import Context, origin_of
from hicachectl.envelope import Result
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hicachectl.tuning.plan import Plan
    from hicachectl.tuning.session import Session
    from hicachectl.tuning.unit import BootFile

__all__ = ["running_program", "unit"]

_CLEANED = ("/tmp", "/var/tmp", "/run", "/dev/shm")
"""Folders that a boot empties (file-hierarchy(7))."""


def unit(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(readable=False, metavar="PLAN", help="A saved plan: tune plan --output-file PLAN.")],
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Unit before which the plan is applied.", metavar="UNIT", show_default=False),
    ] = None,
    require: Annotated[
        bool, typer.Option("--require", help="Those units do not start when the plan does not hold, or no longer fits.")
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Write each file into this folder instead; none that is there is replaced.", metavar="DIR", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Print the files that keep a saved plan over boots: a systemd unit and timer, tmpfiles.d lines, an fstab line.

    Changes nothing of the host. The unit applies the plan after systemd-sysctl and before the engine; the timer verifies
    it later. After an update of the kernel, another PCI card or an edited recipe the plan no longer fits: the unit then
    fails (exit 8) and nothing is applied until a new plan is saved to the same file. With --require the engine stays
    down until then; without, it starts on settings that are not as planned. A rollback lasts until the next boot: disable
    the unit first.
    """
    from hicachectl.render.tune_unit import draw_unit
    from hicachectl.tuning.host.mounts import read_mounts
    from hicachectl.tuning.plan_file import read_plan
    from hicachectl.tuning.unit import boot_files

    cli: Context = ctx.obj
    if require and not engine:
        raise UsageError(
            "--require needs --engine", where="hicachectl tune unit", hint="--engine ENGINE.service --require"
        )
    plan, plan_file = read_plan(file), str(file.absolute())
    cli.subject = plan.id
    session = cli.tune_session()
    program = running_program(sys.argv[0], sys.executable)
    mounts = {mount.path: mount for mount in read_mounts(session.root).value or ()}
    files = boot_files(
        plan, plan_file=plan_file, program=program, engines=tuple(engine or ()), require=require, mounts=mounts
    )
    warnings = _warnings(session, plan, plan_file, program)
    written = None if output_dir is None else _write(output_dir, files)
    data = {
        "plan_id": plan.id, "plan_file": plan_file, "program": shlex.join(program), "files": files, "warnings": warnings,
        "written": [str(path) for path in written or ()],
    }  # fmt: skip
    cli.emit(
        Result("hicachectl.tune-unit/1", data, rows="/files"),
        render=lambda screen, _: draw_unit(
            screen, files, warnings, written, engines=tuple(engine or ()), require=require
        ),
        origin=origin_of(session.root),
    )


def running_program(argv0: str, interpreter: str) -> tuple[str, ...]:
    """Return the words that start this program again, with absolute paths. Reads PATH and the folder.

    A copy in a virtual environment is that copy: whichever hicachectl root's PATH has may be another one or none.

    >>> running_program("/opt/venv/lib/python3.11/site-packages/hicachectl/__main__.py", "/opt/venv/bin/python")
    ('/opt/venv/bin/python', '-m', 'hicachectl')
    """
    named = Path(argv0)
    if named.name == "hicachectl":
        found = str(named.absolute()) if named.exists() else shutil.which("hicachectl")
        if found is not None:
            return (found,)
    return (interpreter, "-m", "hicachectl")


def _warnings(session: Session, plan: Plan, plan_file: str, program: Sequence[str]) -> tuple[str, ...]:
    """Say what will keep the files from doing at boot what they are for."""
    from hicachectl.tuning.fingerprint import fingerprint_of, moved
    from hicachectl.tuning.host.read import read_machine

    found = []
    machine = read_machine(session.root)
    here = machine.host.hostname.value
    if plan.about.host is not None and plan.about.host != here:
        found.append(f"the plan was made for host {plan.about.host}, this is {here or 'a host without a name'}")
    changed = moved(plan.fingerprint, fingerprint_of(machine, session.recipes), another_boot=True)
    if changed:
        found.append(f"STALE, the unit will end with exit 8: {'; '.join(changed)}")
    if not plan.changes and not any(item.wanted and item.target is not None for item in plan.items):
        found.append("the plan sets nothing, so there is nothing to keep")
    for what, path in (("the plan", plan_file), ("the program", program[0])):
        if any(path.startswith(f"{folder}/") for folder in _CLEANED):
            found.append(f"{what} {path} lies in a folder that a boot empties: put it below /etc/hicachectl or /opt")
    return tuple(found)


def _write(folder: Path, files: Sequence[BootFile]) -> tuple[Path, ...]:
    """Write each file by its last name. Changes the folder. Raises UsageError for one that is there, before any is written."""
    paths = tuple(folder / file.path.rpartition("/")[2] for file in files)
    there = [path for path in paths if os.path.exists(path)]
    if there:
        raise UsageError(
            "is there already", where=str(there[0]), why="--output-dir replaces no file", hint="give an empty folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, files, strict=True):
            with path.open("a", encoding="utf-8") as out:  # several lines of fstab share a name
                out.write(file.text)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(error.filename or folder)) from error
    return tuple(dict.fromkeys(paths))

"""A command that ends as its argument says; only tests register it."""

from __future__ import annotations

import os
import signal
from typing import Annotated, Any

import typer

from hicachectl import errors
from hicachectl.envelope import Diagnostic, Fact, Result, Severity
from hicachectl.errors import ExitCode

SCHEMA = "hicachectl.fake/1"
NAME = "机房-7"


def command(
    ctx: typer.Context,
    how: Annotated[str, typer.Argument(help="How to end.")] = "ok",
    yes: Annotated[bool, typer.Option("--yes", help="No question.")] = False,
) -> Any:
    """End as told."""
    cli = ctx.obj
    if how in ENDINGS:
        raise ENDINGS[how]
    if how == "ask":
        cli.confirm("Change it?", yes=yes)
    if how == "bug":
        raise ZeroDivisionError("seven by zero")
    if how == "int":
        os.kill(os.getpid(), signal.SIGINT)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "returns":
        return ExitCode.DEGRADED
    if how == "twice":
        cli.emit(Result(SCHEMA, {}), render=lambda screen, data: None)
    if how == "stream":
        cli.output.record({"n": 1, "name": NAME})
        cli.output.record({"n": 2})
        return None
    findings = (
        Diagnostic("HC-LINK-SPEED", Severity.NOTE, "idle?", subject="0000:95:01.0"),
        Diagnostic("HC-LINK-WIDTH", Severity.ERROR, "runs x8 of x16", subject="0000:b7:01.0", hint="reseat"),
    )
    result = Result(
        SCHEMA,
        {
            "name": NAME,
            "size_bytes": 3,
            "link_bytes_per_s": None,
            "rows": [{"a": 1, "b": "x\ty"}, {"a": 2, "b": None, "reason": "?"}],
        },
        facts={"/link_bytes_per_s": Fact(source="/sys/x", reason="not readable without root")},
        diagnostics=findings if how.startswith("find") else (),
        fail_on={"find-warn": Severity.WARN, "find-note": Severity.NOTE}.get(how),
        rows="/rows" if how == "rows" else None,
        private=how == "private",
    )
    if how == "half":
        result = result.with_error(errors.InvariantBroken("pages 3 != 4", where="host slot 9"))
    cli.emit(result, render=lambda screen, data: screen.print(f"{data['name']}  {data['size_bytes']}"))
    return None


ENDINGS: dict[str, Exception] = {
    "usage": errors.UsageError("page_tokens 7 does not divide the block of 512", where="trace.jsonl:3", why="512 = 73 x 7 + 1", hint="use 64"),
    "bare": errors.UsageError("no"),
    "profile": errors.ProfileError("no key 'lenght'", where="p.yaml:4"),
    "host": errors.HostError("EIO", where="/sys/x"),
    "denied": errors.PermissionDenied("EACCES", where="/sys/x"),
    "unsupported": errors.Unsupported("no IDO", where="0000:95:01.0"),
    "gone": errors.Vanished("ENODEV", where="0000:95:01.0"),
    "stale": errors.PlanStale("boot 5d1e is now 77aa"),
    "undone": errors.ApplyFailed("thp.defrag", applied=["a"], rolled_back=["a"], left=[]),
    "partial": errors.ApplyFailed("thp.defrag", applied=["a", "b"], rolled_back=["a"], left=["b"]),
    "verify": errors.VerifyMismatch("want madvise, see always", where="/sys/kernel/mm/transparent_hugepage/enabled"),
    "capacity": errors.CapacityError(
        "host pool does not fit (pages)", terms=[("asked", 16000), ("in use", 210), ("there", 12000)], where="run.host_slots"
    ),
    "storage": errors.StorageError("cannot create", fault=errors.StorageFault.DENIED, where="/l3"),
    "invariant": errors.InvariantBroken("owned 5 + free 2 != 8", where="host slots"),
}  # fmt: skip

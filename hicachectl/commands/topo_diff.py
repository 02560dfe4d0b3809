"""`hicachectl topo diff`: two hosts, or one host at two times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.context import Context, origin_of
from hicachectl.envelope import Diagnostic, Result, Severity
from hicachectl.errors import ExitCode, UsageError
from hicachectl.topo_data import seen

if TYPE_CHECKING:
    from hicachectl.tuning.host.model import Machine

__all__ = ["diff"]


def diff(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="A snapshot, a folder, or the word live.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.", show_default="live, or --root")] = "live",
    moving: Annotated[bool, typer.Option("--all", help="Compare free memory, counters and idle speeds too.")] = False,
) -> None:
    """Show what differs between two recorded hosts, or a recorded and this one. Exit code 3 when something does.

    Exit code 5 when nodes or devices could be read on neither side: nothing was compared there.
    """
    from hicachectl.render.topo_diff import diff_data, draw_diff
    from hicachectl.tuning.host.diff import compare
    from hicachectl.tuning.host.flatten import flatten
    from hicachectl.tuning.host.read import read_machine
    from hicachectl.tuning.host.recording import RecordingRoot
    from hicachectl.tuning.host.snapshot import open_root

    cli: Context = ctx.obj
    if a == b == "live":
        raise UsageError(
            "both sides are the same host", where="A, B", why="live is this host, or what --root names, and B is live where it is not given", hint="hicachectl topo diff BEFORE.tar.zst",
        )  # fmt: skip
    # read as a snapshot reads, or a host would differ from its own snapshot by the names that are left out of it
    roots = [
        RecordingRoot(cli.host_root() if side == "live" else open_root(Path(side), named_by=f"argument {word}"))
        for side, word in ((a, "A"), (b, "B"))
    ]
    machines = [read_machine(root) for root in roots]
    origins = [origin_of(root) for root in roots]
    found = compare(flatten(machines[0]), flatten(machines[1]), moving=moving)
    sides = [seen(root, origin) for root, origin in zip(roots, origins, strict=True)]
    unread = _unread_on_both(machines[0], machines[1])
    cli.emit(
        Result(
            "hicachectl.topo-diff/1",
            diff_data(found, origins[0], origins[1]),
            diagnostics=unread,
            exit_code=ExitCode.UNSUPPORTED if unread else ExitCode.DIFFERS if found.changes else ExitCode.OK,
            rows="/changes",
        ),
        render=lambda screen, _: draw_diff(screen, found, sides[0], sides[1]),
        origin=origins[1],
    )


def _unread_on_both(a: Machine, b: Machine) -> tuple[Diagnostic, ...]:
    """Say which list was read on neither side: no difference there means nothing."""
    from hicachectl.tuning.host.gaps import why_no_devices, why_no_nodes

    lists = (("NUMA nodes", why_no_nodes(a), why_no_nodes(b)), ("PCI devices", why_no_devices(a), why_no_devices(b)))
    lost = [(what, ours, theirs) for what, ours, theirs in lists if ours is not None and theirs is not None]
    if not lost:
        return ()
    told = "; ".join(f"{what} of neither side could be read: A {ours}, B {theirs}" for what, ours, theirs in lost)
    code = "HC-NOTHING-READ" if len(lost) == len(lists) else "HC-PART-READ"
    message = f"{told}; they were not compared, and no difference means nothing"
    return (
        Diagnostic(
            code, Severity.ERROR, message, subject="A, B", hint="hicachectl topo snapshot FILE.tar.zst, on the hosts"
        ),
    )

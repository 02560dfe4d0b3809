"""`hicachectl topo`: the machine as the copies see it, live or recorded; path classes, snapshots, differences."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hicachectl.commands import topo_diff, topo_snapshot
from hicachectl.commands.topo_snapshot import WakeOption
from hicachectl.context import Context, origin_of
from hicachectl.envelope import Result, Severity
from hicachectl.errors import UsageError
from hicachectl.render.screen import Screen
from hicachectl.topo_data import placements_of, seen, topo_result

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


class FailOn(str, Enum):
    """From which severity findings make the exit code 3, and a host whose nodes or devices could not be read 5."""

    WARN = "warn"
    ERROR = "error"


@app.callback()
def topo(
    ctx: typer.Context,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on",
            help="Exit with 3 when a finding weighs this much or more, with 5 when nodes or devices could not be read.",
            show_default=False,
        ),
    ] = None,
    wake: WakeOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="A file of bench link: its rates in the place of link math.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show which accelerators share which link, which node each is near, what is set wrongly, and what could not be read.

    Reads files of /sys and /proc, needs no privilege and changes nothing. Capacities are link math but for what the
    file of --measured holds. Without root the config space ends after 64 bytes: what it holds is unknown then, never zero.

    LINK is PCIe generation and lanes, now / at most; CAP, SOLO (alone) and ALL BUSY are GiB/s of one direction; IDO is whether
    ID-based ordering of requests and of completions is on in the accelerators.
    HOST POOLS sizes equal host memory pools for all accelerators from available memory, for five policies: local, on the card's
    own node; one-to-one, a node for each card; socket, all nodes of its socket; interleave, all nodes evenly; weighted, all
    nodes by what is available. INSTALLED is the memory of the nodes in use, DISTANCE the mean kernel distance from a card's
    node to its bytes (10 is its own), REMOTE the share of bytes on other nodes.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_lost_options(ctx.invoked_subcommand, fail_on=fail_on, wake=wake, measured=measured)
        return
    from hicachectl.render.topo_screen import Topology, draw_topology
    from hicachectl.tuning.findings import judge
    from hicachectl.tuning.host.read import read_machine

    cli: Context = ctx.obj
    root = cli.host_root()
    machine = read_machine(root, wake=wake)
    origin = origin_of(root)
    findings = judge(machine, recorded=not root.is_live)
    told: str | None = None
    if measured is not None:
        from hicachectl.topo_measured import read_measured

        machine, told = read_measured(measured, machine)
        if cli.output.format.for_machines:
            cli.note(told)
    result = topo_result(machine, findings, fail_on=None if fail_on is None else Severity(fail_on.value))

    def render(screen: Screen, data: dict[str, Any]) -> None:
        persistence = None
        if screen.wide:
            from hicachectl.tuning.host.vendor_tool import read_persistence

            persistence = read_persistence(root, machine.devices)
        shown = Topology(
            machine,
            result.diagnostics,
            data["facts"],
            seen(root, origin),
            placements_of(machine),
            persistence,
            [f.named for f in findings],
        )
        draw_topology(screen, shown)
        if told is not None:
            screen.paragraph("CAP, SOLO, ALL BUSY  ", told)

    cli.emit(result, render=render, origin=origin)


@app.command()
def matrix(ctx: typer.Context, wake: WakeOption = False) -> None:
    """Show the path class between accelerators and nodes, and between each two accelerators, with its legend."""
    from hicachectl.render.topo_matrix import draw_matrix, matrix_data
    from hicachectl.render.topo_words import names_of
    from hicachectl.tuning.host.matrix import find_matrix
    from hicachectl.tuning.host.read import read_machine

    cli: Context = ctx.obj
    root = cli.host_root()
    machine = read_machine(root, wake=wake)
    found, origin = find_matrix(machine), origin_of(root)
    data = matrix_data(machine, found)
    cli.emit(
        Result("hicachectl.topo-matrix/1", data, rows="/pairs"),
        render=lambda screen, _: draw_matrix(screen, machine, found, names_of(machine), seen(root, origin)),
        origin=origin,
    )


app.command()(topo_snapshot.snapshot)
app.command()(topo_diff.diff)


def _refuse_lost_options(command: str, *, fail_on: FailOn | None, wake: bool, measured: Path | None) -> None:
    """Stop where an option of `topo` alone stands before a command below it: it would do nothing there."""
    if fail_on is not None:
        raise UsageError(f"--fail-on is an option of topo, not of topo {command}", where=f"--fail-on {fail_on.value}", why=f"topo {command} judges nothing", hint=f"hicachectl topo --fail-on {fail_on.value}, and topo {command} by itself")  # fmt: skip
    if measured is not None:
        raise UsageError(f"--measured is an option of topo, not of topo {command}", where=f"--measured {measured}", why=f"topo {command} shows no measured rate", hint=f"hicachectl topo --measured {quote(str(measured))}, and topo {command} by itself")  # fmt: skip
    if wake:
        hint = "hicachectl topo diff wakes nothing" if command == "diff" else f"hicachectl topo {command} --wake"
        raise UsageError("--wake stands before the command it is for", where="--wake", why=f"topo takes it for its own screen, topo {command} would not see it", hint=hint)  # fmt: skip

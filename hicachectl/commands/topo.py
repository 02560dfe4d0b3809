"""`hicachectl topo`: the machine as the copies see it, live or recorded; path classes, snapshots, differences."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context, origin_of
from hicachectl.envelope import Diagnostic, Origin, Result, Severity, envelope, plain
from hicachectl.errors import ExitCode, UsageError
from hicachectl.render.screen import Screen

if TYPE_CHECKING:
    from hicachectl.render.topo_screen import Seen
    from hicachectl.tuning.finding import Finding
    from hicachectl.tuning.host.model import Machine
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.placement import Placement

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)

_WAKE = typer.Option("--wake", help="Also read the config space of sleeping devices; this wakes them.")


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
    wake: Annotated[bool, _WAKE] = False,
) -> None:
    """Show which accelerators share which link, which node each is near, what is set wrongly, and what could not be read.

    Reads files of /sys and /proc, needs no privilege and changes nothing. Capacities are link math until a bench measured
    them. Without root the config space ends after 64 bytes: what it holds is unknown then, never zero.

    LINK is PCIe generation and lanes, now / at most; CAP, SOLO (alone) and ALL BUSY are GiB/s of one direction.
    HOST POOLS sizes equal host memory pools for all accelerators from available memory, for five policies: local, on the card's
    own node; one-to-one, a node for each card; socket, all nodes of its socket; interleave, all nodes evenly; weighted, all
    nodes by what is available. INSTALLED is the memory of the nodes in use, DISTANCE the mean kernel distance from a card's
    node to its bytes (10 is its own), REMOTE the share of bytes on other nodes.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_lost_options(ctx.invoked_subcommand, fail_on=fail_on, wake=wake)
        return
    from hicachectl.render.topo_screen import Topology, draw_topology
    from hicachectl.tuning.findings import judge
    from hicachectl.tuning.host.read import read_machine

    cli: Context = ctx.obj
    root = cli.host_root()
    machine = read_machine(root, wake=wake)
    origin = origin_of(root)
    findings = judge(machine, recorded=not root.is_live)
    result = _topo_result(machine, findings, fail_on=None if fail_on is None else Severity(fail_on.value))

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
            _placements(machine),
            persistence,
            [f.named for f in findings],
        )
        draw_topology(screen, shown)

    cli.emit(result, render=render, origin=origin)


@app.command()
def matrix(ctx: typer.Context, wake: Annotated[bool, _WAKE] = False) -> None:
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


@app.command()
def snapshot(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.zst", help="Where to write it, at once and as a whole.")],
    wake: Annotated[bool, _WAKE] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it is there already.")] = False,
) -> None:
    """Record this host in one file: what topo reads, and the document of that same read.

    It does hold what tells this host from others: host name, boot id, PCI addresses, device ids, interface names, kernel,
    CPU. Serial numbers, hardware addresses, other hosts' names, command-line secrets, process, user and container ids, names of
    services and mount points of users are left out; the manifest inside lists the rules and every file with size and
    sha256. Look before you send it: tar --zstd -tvf FILE.
    """
    from hicachectl.tuning.findings import judge
    from hicachectl.tuning.host.read import read_machine
    from hicachectl.tuning.host.recording import RecordingRoot
    from hicachectl.tuning.host.snapshot import refuse_existing, write_snapshot

    cli: Context = ctx.obj
    if not file.name.endswith(".tar.zst"):
        name = (
            file.name.removesuffix(".zst")
            .removesuffix(".gz")
            .removesuffix(".xz")
            .removesuffix(".bz2")
            .removesuffix(".tar")
        )
        raise UsageError(
            "a snapshot's name ends with .tar.zst",
            where=str(file),
            why="it is a tar archive packed with zstd, whatever its name says",
            hint=f"hicachectl topo snapshot {quote(str(file.with_name(name + '.tar.zst')))}",
        )
    if not force:
        refuse_existing(file)  # before the host is read
    recording = RecordingRoot(cli.host_root())
    machine = read_machine(recording, wake=wake)
    origin = origin_of(recording)
    import json

    document = envelope(_topo_result(machine, judge(machine, recorded=True)), origin)  # as a replay says it
    written = write_snapshot(
        file,
        recording,
        machine,
        topo=(json.dumps(document, indent=1, allow_nan=False) + "\n").encode(),
        about={
            "tool_version": origin.tool_version,
            "host": origin.host,
            "boot_id": origin.boot_id,
            "collected_at": origin.collected_at,
            "source": origin.source,
        },
        force=force,
    )
    data = plain(written)
    data["left_out"] = [{"what": what, "how": how} for what, how in written.left_out]
    cli.note(f"it holds what tells this host from others: {', '.join(written.identifying)}")
    missing = _not_recorded(machine, file, live=recording.is_live)
    cli.emit(
        Result("hicachectl.topo-snapshot/1", data, diagnostics=missing, rows="/members"),
        render=_draw_written,
        origin=origin,
    )


@app.command()
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


def _refuse_lost_options(command: str, *, fail_on: FailOn | None, wake: bool) -> None:
    """Stop where an option of `topo` alone stands before a command below it: it would do nothing there."""
    if fail_on is not None:
        raise UsageError(f"--fail-on is an option of topo, not of topo {command}", where=f"--fail-on {fail_on.value}", why=f"topo {command} judges nothing", hint=f"hicachectl topo --fail-on {fail_on.value}, and topo {command} by itself")  # fmt: skip
    if wake:
        hint = "hicachectl topo diff wakes nothing" if command == "diff" else f"hicachectl topo {command} --wake"
        raise UsageError("--wake stands before the command it is for", where="--wake", why=f"topo takes it for its own screen, topo {command} would not see it", hint=hint)  # fmt: skip


def _not_recorded(machine: Machine, file: Path, *, live: bool) -> tuple[Diagnostic, ...]:
    """Say what a snapshot lacks that cannot be had from it later."""
    from hicachectl.tuning.host.gaps import why_no_devices, why_no_nodes

    again = f"sudo hicachectl topo snapshot {quote(str(file))} --force"
    nodes, devices = why_no_nodes(machine), why_no_devices(machine)
    found = []
    if nodes or devices:
        what = "neither nodes nor devices" if nodes and devices else "no nodes" if nodes else "no devices"
        why = ", ".join(reason for reason in (nodes, devices) if reason)
        code = "HC-NOTHING-READ" if nodes and devices else "HC-PART-READ"
        hint = f"on the host itself, outside of containers and sandboxes: {again if live else 'take it again there'}"
        found.append(Diagnostic(code, Severity.WARN, f"{what} recorded: {why}", subject=str(file), hint=hint))
    short = [device.address for device in machine.devices if device.config.readable_bytes.value == 64]
    if short:
        message = (
            f"config space of {counted(len(short), 'function')} ends after 64 bytes, as for everybody but root: payload, ordering "
            "and ACS are not recorded"
        )
        found.append(
            Diagnostic(
                "HC-NEED-ROOT",
                Severity.NOTE,
                message,
                subject=str(file),
                hint=f"take it as root: {again}" if live else "take it as root, on its host",
            )
        )
    return tuple(found)


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


def seen(root: HostRoot, origin: Origin, *, now: datetime | None = None) -> Seen:
    """Say for the header what was looked at, and how old a recording is as far as it says."""
    from hicachectl.render.topo_screen import Seen

    if root.name is None:
        return Seen(None, origin.collected_at)
    at = _recorded_at(root)
    if at is None:
        return Seen(root.name, None)
    age_s = ((now or datetime.now(timezone.utc)) - at).total_seconds()
    return Seen(root.name, at.strftime("%Y-%m-%dT%H:%M:%SZ"), age_s)


def _topo_result(machine: Machine, findings: tuple[Finding, ...], *, fail_on: Severity | None = None) -> Result:
    from hicachectl.tuning.host.flatten import flatten

    diagnostics = tuple(
        Diagnostic(f.code, Severity(f.severity), f.message, subject=f.subject, hint=f.hint, source=f.source)
        for f in findings
    )
    data = flatten(machine, findings, _placements(machine))
    unread = fail_on is not None and any(f.code in ("HC-NOTHING-READ", "HC-PART-READ") for f in findings)
    cause = ExitCode.UNSUPPORTED if unread else ExitCode.OK
    return Result("hicachectl.topo/1", data, diagnostics=diagnostics, exit_code=cause, fail_on=fail_on)


def _placements(machine: Machine) -> tuple[Placement, ...]:
    from hicachectl.tuning.host.model import SlotKind
    from hicachectl.tuning.placement import placements

    return placements(machine) if any(d.kind == SlotKind.ACCELERATOR for d in machine.devices) else ()


def _recorded_at(root: HostRoot) -> datetime | None:
    """When a recording was made: what its manifest says, else the date of its files."""
    if root.collected_at is not None:
        try:
            return datetime.strptime(root.collected_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return None
    seconds = root.newest_s()
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def counted(n: int, what: str) -> str:
    """Say how many of something there are. Pure.

    >>> counted(1, "fact"), counted(0, "fact")
    ('1 fact', '0 facts')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _draw_written(screen: Screen, data: dict[str, Any]) -> None:
    from hicachectl.units import format_bytes

    screen.print(f"wrote {data['path']}  {format_bytes(data['size_bytes'])}, mode 0600", "bold")
    screen.print(f"sha256 {data['sha256']}")
    counts = (counted(len(data["members"]), "file"), counted(data["n_links"], "link"))
    n_probes = len(data["probes"])
    screen.print(f"{', '.join(counts)}, {counted(n_probes, 'fact')} that no file holds")
    for rule in data["left_out"]:
        screen.paragraph("left out  ", f"{rule['what']}: {rule['how']}")
    screen.print(f"read it: hicachectl topo --root {data['path']}")

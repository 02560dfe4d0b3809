"""`hicachectl topo snapshot`: one host in one file, and what the file lacks."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.context import Context, origin_of
from hicachectl.envelope import Diagnostic, Result, Severity, envelope, plain
from hicachectl.errors import UsageError
from hicachectl.render.screen import Screen
from hicachectl.topo_data import topo_result
from hicachectl.units import counted, format_bytes

if TYPE_CHECKING:
    from hicachectl.tuning.host.model import Machine

__all__ = ["WakeOption", "snapshot"]

WakeOption = Annotated[
    bool, typer.Option("--wake", help="Also read the config space of sleeping devices; this wakes them.")
]


def snapshot(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.zst", help="Where to write it, at once and as a whole.")],
    wake: WakeOption = False,
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

    document = envelope(topo_result(machine, judge(machine, recorded=True)), origin)  # as a replay says it
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


def _draw_written(screen: Screen, data: dict[str, Any]) -> None:
    screen.print(f"wrote {data['path']}  {format_bytes(data['size_bytes'])}, mode 0600", "bold")
    screen.print(f"sha256 {data['sha256']}")
    counts = (counted(len(data["members"]), "file"), counted(data["n_links"], "link"))
    n_probes = len(data["probes"])
    screen.print(f"{', '.join(counts)}, {counted(n_probes, 'fact')} that no file holds")
    for rule in data["left_out"]:
        screen.paragraph("left out  ", f"{rule['what']}: {rule['how']}")
    screen.print(f"read it: hicachectl topo --root {data['path']}")

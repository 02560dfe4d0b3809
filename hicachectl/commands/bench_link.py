"""`bench link`: what the links between accelerators and host memory carry; without accelerators, memory between nodes."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.commands.bench_options import DeviceOption, RoundsOption, TimeBudgetOption
from hicachectl.context import Context
from hicachectl.device_names import require_device_name
from hicachectl.errors import HicacheError, Unsupported, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hicachectl.bench_data import Setting
    from hicachectl.bench_link_run import LinkAsk
    from hicachectl.runtime.probes.link_math import Way

__all__ = ["link"]

_OF_LINKS = {"sizes": "--size", "directions": "--direction", "concurrent": "--concurrent"}
"""Options that say nothing of memory between nodes."""


def link(
    ctx: typer.Context,
    target: Annotated[str | None, typer.Argument(metavar="NAME", help="An accelerator or uplink: its name in topo (X6, U3) or its PCI address.", show_default="all")] = None,
    nodes: Annotated[str, typer.Option("--node", help="Nodes whose memory is used: local (each accelerator's own), all, or numbers.", metavar="NODE,...")] = "local",
    sizes: Annotated[str, typer.Option("--size", help="Bytes of one copy; the largest is used where several run together.", metavar="SIZE,...")] = "1MiB,16MiB,256MiB",
    directions: Annotated[str, typer.Option("--direction", help="h2d, d2h, both.", metavar="WAY,...")] = "h2d,d2h,both",
    concurrent: Annotated[bool, typer.Option("--concurrent", help="Only what shares a link or all of memory, and what it is compared with.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Of one sample.", metavar="S", min=0.01, max=60)] = 0.25,
    rounds: RoundsOption = 3,
    device: DeviceOption = "auto",
    time_budget: TimeBudgetOption = None,
) -> None:  # fmt: skip
    """Measure what the links between accelerators and host memory carry: each alone, all behind one uplink, against each other.

    Beside each rate stands what it should be by link arithmetic; what is far below is a finding with the check that comes next.
    Memory is bound to the node and registered. An accelerator is busy or idle while its neighbour is measured: alone, uplink
    (all behind it the same way), spread (the same, each with a node of its own), against (the neighbours the other way), host (all
    there are). Without an accelerator, or with --device cpu, it copies memory between NUMA nodes instead, and says so. Loads only:
    no setting and no register is changed.
    """
    cli: Context = ctx.obj
    cli.refuse_root("bench link")
    from hicachectl.bench_data import BUDGET_USED
    from hicachectl.bench_link_run import links_result, nodes_result
    from hicachectl.memory_room import host_memory
    from hicachectl.render.bench_link import draw_link
    from hicachectl.tuning.host.read import read_machine

    ask = _asked(target, nodes, sizes, directions, concurrent, seconds, rounds)
    of_links = _given(ctx)
    require_device_name(device)
    if device.partition(":")[0] == "cpu" and of_links:
        raise UsageError(
            f"{', '.join(of_links)} with --device {device}", where=of_links[0],
            why="memory between nodes has no directions and no sizes of copies", hint=f"leave {', '.join(of_links)} out, or --device {device}",
        )  # fmt: skip
    root = cli.host_root()
    machine = read_machine(root)
    devices, why, short = _devices(device)
    if why is not None and of_links:
        cli.note(f"{', '.join(of_links)} without effect: no link is loaded, memory between nodes is measured ({why})")
    deadline_s = None if time_budget is None else monotonic() + time_budget
    stop: Callable[[], str | None] = lambda: (  # noqa: E731
        BUDGET_USED if deadline_s is not None and monotonic() >= deadline_s else None
    )
    host = partial(host_memory, tell=cli.note)
    with cli.progress("bench link", unit="cases") as progress:

        def told(number: int, total: int, text: str) -> None:
            progress.total = total
            progress.enter(text)
            progress.update(number)

        if why is None:
            setting = partial(_setting, devices[0].name, short, rounds)
            result = links_result(ask, machine, devices, setting, root=root, host=host, told=told, stop=stop)
        else:
            setting = partial(_setting, "cpu", short, rounds)
            result = nodes_result(ask, machine, why, setting, host=host, told=told, stop=stop)
        progress.stopped = result.data["stopped"] is not None
        if not progress.stopped:
            progress.update(progress.total or 0)
    cli.emit(result, render=lambda screen, data: draw_link(screen, data))


def _asked(
    target: str | None, nodes: str, sizes: str, directions: str, concurrent: bool, seconds: float, rounds: int
) -> LinkAsk:
    from hicachectl.bench_link_run import LinkAsk
    from hicachectl.units import parse_size

    found = tuple(sorted({parse_size(word.strip(), where="--size") for word in sizes.split(",")}))
    if found[0] < 1:
        raise UsageError("a copy of 0 bytes", where="--size", hint="give 64KiB or more")
    return LinkAsk(target, _nodes(nodes), found, _ways(directions), concurrent, seconds, rounds)


def _given(ctx: typer.Context) -> list[str]:
    """The options of links alone that stand on the line."""
    sources = {flag: ctx.get_parameter_source(name) for name, flag in _OF_LINKS.items()}
    return [flag for flag, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _nodes(text: str) -> tuple[int, ...] | None:
    """None for local, the empty tuple for all."""
    if text == "local":
        return None
    if text == "all":
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(
            f"{text!r} names no nodes", where="--node", hint="--node local, --node all, or numbers: --node 0,2"
        )
    return tuple(sorted({int(word) for word in words}))


def _ways(text: str) -> tuple[Way, ...]:
    from hicachectl.runtime.probes.link_math import Way
    from hicachectl.units import parse_words

    words = parse_words(text, [way.value for way in Way], where="--direction", what="direction")
    return tuple(way for way in Way if way.value in words)


def _devices(wanted: str) -> tuple[Sequence[Any], str | None, str]:
    """The accelerators to load, none and why where memory between nodes is measured instead, and the short of it.

    Raises Unsupported for a named device that is not there, UsageError for a name that is none.
    """
    from hicachectl.prove_load import see_accelerators

    if wanted.partition(":")[0] == "cpu":
        return (), f"--device {wanted} was given", "asked for"
    try:
        found = see_accelerators()
    except HicacheError as error:
        if wanted != "auto":
            _require_usable(wanted)
            raise
        return (), f"{error.what} ({error.why})", error.what
    if wanted == "auto":
        return found, None, f"{len(found)} seen by torch"
    chosen = [one for one in found if wanted in (one.name, one.name.partition(":")[0])]
    if not chosen:
        _require_usable(wanted)
        raise Unsupported(
            f"torch cannot use device {wanted} here", where="--device",
            why=f"it sees {', '.join(one.name for one in found)}", hint="leave --device out to load what there is",
        )  # fmt: skip
    return chosen, None, "asked for"


def _require_usable(wanted: str) -> None:
    """Say what torch lacks for this device, where torch is there to be asked. Raises Unsupported, UsageError for an unknown type."""
    from importlib.util import find_spec

    if find_spec("torch") is not None:
        from hicachectl.runtime.transfer.usable import require_usable

        require_usable(wanted, where="--device")


def _setting(device: str, reason: str, rounds: int, method: str) -> Setting:
    """The document's setting; also where torch cannot be loaded, which memory between nodes does not need."""
    try:
        from hicachectl.bench_setting import setting_of
        from hicachectl.runtime.probes.device import find_probe_device
    except ImportError as error:
        return _setting_without_torch(reason, str(error), rounds, method)
    from dataclasses import replace

    return replace(setting_of(find_probe_device(device), method, rounds), device_reason=reason)


def _setting_without_torch(reason: str, missing: str, rounds: int, method: str) -> Setting:
    import platform

    from hicachectl.bench_data import Setting
    from hicachectl.this_machine import machine_words

    words = dict(machine_words())
    reasons = {"accelerator": reason, "driver": reason, "cuda": reason, "torch": missing}
    return Setting(
        method, rounds, "cpu", reason, None, None, None, None, f"{platform.system()} {platform.release()}",
        words["processor"], words["cores"], words["memory"], reasons,
    )  # fmt: skip

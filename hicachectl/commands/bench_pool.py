"""`bench pool`: how long host memory takes to be had and registered, by kind, page size and threads, beside torch's pinned memory."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from hicachectl.commands.bench_options import DeviceOption, RoundsOption, TimeBudgetOption
from hicachectl.context import Context
from hicachectl.errors import CapacityError, HicacheError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hicachectl.runtime.memory.register import NoRegistrar, Registrar
    from hicachectl.runtime.probes.device import ProbeDevice
    from hicachectl.runtime.probes.pool import PoolCase, PoolProbe

__all__ = ["pool", "refusal_of"]

_LARGEST_DEFAULT_BYTES = 1 << 30
_SMALLEST_BYTES = 2 << 20
_RESERVE_BYTES = 512 << 20
"""Left to the rest of the machine."""
_MOST_POOL_THREADS = 1024
_KINDS = ("anonymous", "memfd", "tmpfs", "hugetlb")


def pool(
    ctx: typer.Context,
    size: Annotated[str | None, typer.Option("--size", help="Size of the pool, such as 16GiB.", metavar="SIZE", show_default="a quarter of what can be had, 1GiB at most")] = None,
    kinds: Annotated[str, typer.Option("--kind", help="Kinds of memory: anonymous, memfd, tmpfs, hugetlb.", metavar="KIND,...")] = "anonymous,memfd,tmpfs",
    threads: Annotated[str | None, typer.Option("--threads", help="Threads that fill huge pages.", metavar="N,...", show_default="1 and a thread a CPU, 16 at most")] = None,
    tmpfs: Annotated[str, typer.Option("--tmpfs", help="Folder on a tmpfs, for files without a name.", metavar="DIR")] = "/dev/shm",
    rounds: RoundsOption = 3,
    device: DeviceOption = "auto",
    time_budget: TimeBudgetOption = None,
) -> None:  # fmt: skip
    """Measure how long the memory of a host pool takes to be reserved, filled, registered and given back.

    With an accelerator pools are registered with its driver and compared with torch's pinned memory in the same run; without one
    registering is skipped, and said. Kind hugetlb draws on the reserved pool and is measured only when named. Memory is taken
    and given back; nothing of the host is changed.
    """
    cli: Context = ctx.obj
    cli.refuse_root("bench pool")
    from hicachectl.bench_data import bench_result, not_answered
    from hicachectl.bench_pool_data import METHOD, pool_costs, pool_details, pool_headline, pool_measures, pool_reasons
    from hicachectl.bench_setting import setting_of
    from hicachectl.render.bench_pool import draw_pool
    from hicachectl.runtime.probes.device import find_probe_device
    from hicachectl.units import parse_words

    asked = parse_words(kinds, _KINDS, where="--kind", what="kind of memory")
    on = find_probe_device(device)
    n_bytes = _pool_bytes(cli, size, torch_too=on.name.startswith("cuda"))
    if "hugetlb" in asked:
        _note_hugetlb(cli, n_bytes)
    cases = _cases(asked, _asked_threads(threads), tmpfs)
    probe = _probe(cli, n_bytes, cases, on, rounds, time_budget)
    measures = pool_measures(probe)
    costs, no_costs = pool_costs(probe, measures, accelerated=on.is_accelerator)
    refusal = refusal_of(probe)
    hint = "give more --rounds or a larger --size, on a quiet machine"
    findings, code = not_answered(pool_headline(measures), hint)
    if refusal is not None:
        findings, code = (), refusal.exit_code
    result = bench_result(
        "pool", setting_of(on, METHOD, rounds), measures, costs, pool_details(probe, measures),
        diagnostics=findings, exit_code=code, reasons={**pool_reasons(probe), **no_costs},
    )  # fmt: skip
    cli.emit(
        result if refusal is None else result.with_error(refusal), render=lambda screen, data: draw_pool(screen, data)
    )
    if refusal is not None:
        raise refusal
    cli.note_no_costs(result)


def _asked_threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        from hicachectl.runtime.memory.populate import MOST_THREADS, threads_for

        return tuple(sorted({1, threads_for(MOST_THREADS << 30)}))
    from hicachectl.units import parse_counts

    return parse_counts(text, where="--threads", most=_MOST_POOL_THREADS, what="thread counts")


def _pool_bytes(cli: Context, size: str | None, *, torch_too: bool) -> int:
    """Choose the size, or check the one asked for. Raises CapacityError with every term of the sum."""
    from hicachectl.memory_room import host_memory
    from hicachectl.runtime.memory.budget import Ask, ledger
    from hicachectl.units import parse_size

    host = host_memory(tell=cli.note)
    if size is None:
        room = ledger(host, (), reserve_bytes=_RESERVE_BYTES).room_bytes
        n_bytes = max(_SMALLEST_BYTES, min(_LARGEST_DEFAULT_BYTES, room // 4 // _SMALLEST_BYTES * _SMALLEST_BYTES))
    else:
        n_bytes = parse_size(size, where="--size")
    if n_bytes < _SMALLEST_BYTES:
        raise UsageError(
            f"a pool of {n_bytes} bytes", where="--size", why="times of less than a huge page say nothing", hint="give 2MiB or more"
        )  # fmt: skip
    asks = [Ask("pool, one at a time", n_bytes)]
    rounded = 1 << (n_bytes - 1).bit_length()
    if torch_too and rounded > n_bytes:
        asks.append(Ask("more for torch, which pins a power of two", rounded - n_bytes))
    ledger(host, asks, reserve_bytes=_RESERVE_BYTES).require("give a smaller --size")
    return n_bytes


def _note_hugetlb(cli: Context, n_bytes: int) -> None:
    """Say beforehand which limit of a control group keeps the pool of kind hugetlb from being filled: the kernel says EFAULT only."""
    from hicachectl.memory_room import hugetlb_room
    from hicachectl.units import format_bytes

    try:
        room = hugetlb_room()
    except CapacityError:
        return  # no such pool: its line of the report says so
    if room.group is not None and room.group_bytes < n_bytes:
        cli.note(
            f"kind hugetlb: {room.group.name} allows {format_bytes(room.group.limit_bytes)}, {format_bytes(room.group.used_bytes)} are "
            f"used: {format_bytes(room.group_bytes)} can be had, {format_bytes(n_bytes)} are asked"
        )


def _cases(kinds: Sequence[str], threads: Sequence[int], tmpfs: str) -> tuple[PoolCase, ...]:
    from hicachectl.runtime.probes.pool import default_cases

    cases = default_cases(threads, tmpfs=tmpfs if "tmpfs" in kinds else None, hugetlb="hugetlb" in kinds)
    return tuple(case for case in cases if case.spec.kind.value in kinds)


def _probe(
    cli: Context, n_bytes: int, cases: tuple[PoolCase, ...], on: ProbeDevice, rounds: int, time_budget_s: float | None
) -> PoolProbe:
    from hicachectl.runtime.probes.pool import run_pool_probe

    registrar, why_no_torch, once = _drivers(on)
    baseline = None
    if why_no_torch is None:
        from hicachectl.runtime.memory.torch_pinned import pin_with_torch

        baseline = pin_with_torch
    deadline_s = None if time_budget_s is None else monotonic() + time_budget_s
    total = rounds * (len(cases) + (baseline is not None))
    with cli.progress("bench pool", total=total, unit="pools") as progress:

        def told(text: str) -> None:
            progress.enter(text)
            progress.advance()

        return run_pool_probe(
            n_bytes, cases, rounds=rounds, registrar=registrar, baseline=baseline, baseline_reason=why_no_torch,
            baseline_once=once, told=told, go_on=lambda: deadline_s is None or monotonic() < deadline_s,
        )  # fmt: skip


def _drivers(on: ProbeDevice) -> tuple[Registrar | NoRegistrar, str | None, bool]:
    """What registers; why torch is not compared with (None: it is); and whether torch can be asked once only."""
    from hicachectl.runtime.memory.cuda_registrar import registrar_for

    kind, _, index = on.name.partition(":")
    registrar = registrar_for(kind, int(index or 0))
    if kind != "cuda":
        return registrar, f"device {on.name}: torch pins memory for CUDA devices", False
    from hicachectl.runtime.memory.torch_pinned import can_repeat, torch_cannot_pin

    return registrar, torch_cannot_pin(), not can_repeat()


def refusal_of(probe: PoolProbe) -> HicacheError | None:
    """Where every case was refused, the first refusal; None where a pool was made, or no time was left. Pure."""
    refused = [row.refusal for row in probe.rows if row.refusal is not None]
    return None if not refused or any(row.samples for row in probe.rows) else refused[0]

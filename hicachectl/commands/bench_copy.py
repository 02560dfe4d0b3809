"""`bench copy`: what moving pages between host and device costs, by layout and copy backend, for a model's geometry."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hicachectl.commands.bench_options import DeviceOption, RoundsOption, TimeBudgetOption
from hicachectl.context import Context
from hicachectl.errors import HicacheError
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.runtime.layout import Backend, Layout
    from hicachectl.runtime.memory.spec import MappingSpec
    from hicachectl.runtime.probes.copy import CopyProbe
    from hicachectl.runtime.probes.device import ProbeDevice

__all__ = ["copy"]

Word = TypeVar("Word", bound=Enum)
_RESERVE_BYTES = 512 << 20
"""Left to the rest of the machine."""
_ACCELERATOR_GEOMETRY, _ACCELERATOR_BYTES = ("qwen3-8b", 64), 512 << 20
_CPU_GEOMETRY, _CPU_BYTES = ("tiny-512k", 512), 64 << 20
"""What is moved where nobody says: a model's pages over a link; on the processor little, of small pages."""


def copy(
    ctx: typer.Context,
    geometry: Annotated[str | None, typer.Option("--geometry", help="KV geometry preset, such as qwen3-8b or mla-78.", metavar="NAME", show_default="qwen3-8b; on the processor tiny-512k")] = None,
    page_tokens: Annotated[str | None, typer.Option("--page-tokens", help="Tokens a page.", metavar="N", show_default="64; on the processor 512")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Element type of the KV cache, such as bf16, fp8_e4m3 or int8.", metavar="TYPE", show_default="the preset's")] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Profile that supplies what is not given.", metavar="NAME|FILE", show_default=False, autocompletion=profile_names)] = None,
    pages: Annotated[int | None, typer.Option("--pages", help="Pages of one transfer.", metavar="N", min=1, show_default="512MiB of them; on the processor 64MiB")] = None,
    layouts: Annotated[str | None, typer.Option("--layout", help="layer_first, page_first, page_first_direct.", metavar="LAYOUT,...", show_default="all")] = None,
    backends: Annotated[str | None, typer.Option("--backend", help="cpu, torch, direct, batch, strided, uva.", metavar="BACKEND,...", show_default="all")] = None,
    rounds: RoundsOption = 5,
    device: DeviceOption = "auto",
    time_budget: TimeBudgetOption = None,
) -> None:  # fmt: skip
    """Measure loads and backups of scattered pages in every layout with every copy backend, against the peak of the same run.

    Tells rate, share of the peak, time of the submission thread, when the first layer is there, and how much longer matrix
    products take beside it. Every byte is compared before anything is measured; a backend that cannot run here is a row with its
    reason. On the processor it measures copies within host memory only. Nothing of the host is changed.
    """
    cli: Context = ctx.obj
    cli.refuse_root("bench copy")
    from hicachectl.bench_copy_data import (
        copy_costs,
        copy_details,
        copy_doubts,
        copy_headline,
        copy_measures,
        copy_reasons,
        method_words,
    )  # fmt: skip
    from hicachectl.bench_data import bench_result, not_answered
    from hicachectl.bench_setting import setting_of
    from hicachectl.config import load_config
    from hicachectl.render.bench_copy import draw_copy
    from hicachectl.run_memory import measuring_spec
    from hicachectl.runtime.layout import Backend, Layout
    from hicachectl.runtime.probes.device import find_probe_device

    flags = {
        "run.geometry": geometry,
        "run.dtype": dtype,
        "run.page_tokens": page_tokens,
        "run.device": None if device == "auto" else device,
    }
    effective = cli.took(load_config(flags, env=cli.environ, path=cli.config_path, profile=profile))
    wanted = (_words(layouts, Layout, "--layout", "layout"), _words(backends, Backend, "--backend", "copy backend"))
    on = find_probe_device(effective.run.device)
    model = _geometry(effective, accelerated=on.is_accelerator)
    weights = effective.config.tune.numa.interleave_weight
    memory = measuring_spec(effective.run.host_memory, on.name, tuned_weights=weights)
    n_pages = _pages(cli, pages, model, memory, accelerated=on.is_accelerator)
    probe = _probe(cli, model, n_pages, on, memory, *wanted, rounds, time_budget)
    measures = copy_measures(probe, accelerated=on.is_accelerator)
    refusal = _refusal(probe)
    hint = "give more --rounds or --pages, on a quiet machine"
    findings, code = not_answered(copy_headline(measures), hint, copy_doubts(measures))
    if refusal is not None:
        findings, code = (), refusal.exit_code
    result = bench_result(
        "copy", setting_of(on, method_words(accelerated=on.is_accelerator), rounds), measures, copy_costs(probe, measures),
        copy_details(probe), diagnostics=findings, exit_code=code, reasons=copy_reasons(probe, measures),
    )  # fmt: skip
    cli.emit(
        result if refusal is None else result.with_error(refusal), render=lambda screen, data: draw_copy(screen, data)
    )
    if refusal is not None:
        raise refusal
    cli.note_no_costs(result)


def _words(text: str | None, kind: type[Word], flag: str, what: str) -> tuple[Word, ...]:
    from hicachectl.units import parse_words

    known = {one.value: one for one in kind}
    words = tuple(known) if text is None else parse_words(text, known, where=flag, what=what)
    return tuple(known[word] for word in words)


def _geometry(effective: Effective, *, accelerated: bool) -> KVGeometry:
    """The geometry that flag, environment, hicache.yaml or profile name; else one that suits the device."""
    from hicachectl.config import OriginKind
    from hicachectl.runtime.geometry import preset

    name, tokens = _ACCELERATOR_GEOMETRY if accelerated else _CPU_GEOMETRY
    if effective.origins["run.geometry"].kind is not OriginKind.DEFAULT:
        name = effective.run.geometry
    if effective.origins["run.page_tokens"].kind is not OriginKind.DEFAULT:
        tokens = effective.run.page_tokens
    return preset(name, tokens, effective.run.dtype)


def _pages(cli: Context, pages: int | None, geometry: KVGeometry, memory: MappingSpec, *, accelerated: bool) -> int:
    """Choose how many pages move, or check what was asked for. Raises CapacityError with every term of the sum."""
    from hicachectl.memory_room import host_memory, require_reserved
    from hicachectl.runtime.memory.budget import Ask, ledger
    from hicachectl.runtime.probes.copy import copy_pool_bytes

    host = host_memory(of=memory, tell=cli.note)
    if pages is None:
        room = ledger(host, (), reserve_bytes=_RESERVE_BYTES).room_bytes
        most = _ACCELERATOR_BYTES if accelerated else _CPU_BYTES
        pages = max(1, min(most, room // 8) // geometry.page_bytes)
    n_bytes = copy_pool_bytes(geometry, pages)
    is_plain = memory.kind.value != "hugetlb"  # that pool is of pages set apart
    asks = [Ask(f"host pool, 2 x {pages} + 8 pages", n_bytes)] if is_plain else []
    if not accelerated:
        asks.append(Ask("device pool, in host memory", n_bytes))
    hint = "give fewer --pages, or pages of fewer tokens (--page-tokens)"
    ledger(host, asks, reserve_bytes=_RESERVE_BYTES).require(hint)
    require_reserved(memory, n_bytes, hint)
    return pages


def _probe(
    cli: Context, model: KVGeometry, n_pages: int, on: ProbeDevice, memory: MappingSpec, layouts: Sequence[Layout], backends: Sequence[Backend],
    rounds: int, time_budget_s: float | None,
) -> CopyProbe:  # fmt: skip
    from hicachectl.runtime.probes.copy import n_pairs_here, run_copy_probe

    deadline_s = None if time_budget_s is None else monotonic() + time_budget_s
    with cli.progress("bench copy", total=n_pairs_here(on.name, layouts, backends), unit="pairs") as progress:

        def told(text: str) -> None:
            if progress.state is not None:
                progress.advance()
            progress.enter(text)

        probe = run_copy_probe(
            model, n_pages, on.name, layouts=layouts, backends=backends, rounds=rounds, host_memory=memory, told=told,
            go_on=lambda: deadline_s is None or monotonic() < deadline_s,
        )  # fmt: skip
        if progress.state is not None:
            progress.advance()
        return probe


def _refusal(probe: CopyProbe) -> HicacheError | None:
    """Where nothing could run, and not for a lack of time, the first refusal; None where something ran. Pure."""
    refused = [row.refusal for row in probe.rows if row.refusal is not None]
    no_time = any(row.refused is not None and row.refusal is None for row in probe.rows)
    return None if no_time or not refused or any(row.load is not None for row in probe.rows) else refused[0]

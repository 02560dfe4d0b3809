"""What benchmarks measured, as costs of `run`: where the cost model starts from, and the prefill where nobody else set one.

`run.costs` names files of `hicachectl bench -o json --output-file`, comma-separated; where two measured the same, the first counts. A
path's cost rules until its first transfers; the prefill of `bench model` replaces coefficients that come from a weaker place than the
name of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from hicachectl.bench_data import Costs, missing_costs, remedy_for_costs
from hicachectl.bench_results import BenchResult, priors_of, read_bench
from hicachectl.config import Effective, OriginKind
from hicachectl.envelope import Diagnostic, Severity
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.runtime.cost import LinearCost, Path
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.runtime.probes.page_cache import FileSystem
    from hicachectl.tuning.sizing.given_costs import GivenCosts

__all__ = [
    "measured_priors",
    "read_costs",
    "require_device",
    "require_pages",
    "sizing_costs",
    "storage_warnings",
    "unused_costs",
    "used_costs",
    "with_measured_prefill",
]

_COLD_SHARE = 0.01
"""Of the files, that may be in the page cache of a read that is called cold, as `bench` has it."""
_UNUSED = "HC-COSTS-UNUSED"
_MOVE_PAGES = ("copy", "store", "model")
_COMPUTE = tuple(f"run.compute.{word}" for word in ("a_s", "b_s", "c_s", "model", "hardware"))


def read_costs(names: str | None) -> tuple[BenchResult, ...]:
    """Read the results that `run.costs` names, in its order, a file named twice once, by its first name; none without a name.

    Raises UsageError for one that cannot be used, has no cost in it or is of another host.
    """
    results: dict[str, BenchResult] = {}
    for name in names.split(",") if names else ():
        result = read_bench(name.strip())
        results.setdefault(os.path.realpath(result.path), result)
    for result in results.values():
        if result.costs == Costs():
            why = "; ".join(dict.fromkeys(missing_costs(result.data).values()))
            again = (
                f"{remedy_for_costs(result.data)}: hicachectl bench {result.kind} -o json --output-file {result.path}"
            )
            raise UsageError(
                "no cost was measured in this file", where=result.path, why=why or f"bench {result.kind} measures none, or got no answer for any",
                hint=again if why else "name a file of bench model, store, copy or pool",
            )  # fmt: skip
        here = os.uname().nodename
        if result.host != here:
            raise UsageError(
                f"it was measured on {result.host or 'a host without a name'}, this is {here}", where=result.path,
                why="costs of another host say nothing of this one",
                hint=f"measure here: hicachectl bench {result.kind} -o json --output-file {result.path}",
            )  # fmt: skip
    return tuple(results.values())


def measured_priors(results: Sequence[BenchResult], device_type: str) -> dict[Path, LinearCost]:
    """Return what the cost model starts from, by path. Pure. Raises UsageError as `require_device`."""
    require_device(results, device_type)
    return {path: cost for result in reversed(results) for path, cost in priors_of(result).items()}


def require_device(results: Sequence[BenchResult], device_type: str) -> None:
    """Refuse results measured on another type of device than `device_type`, such as cuda: transfers, prefills and pools. Pure.

    Storage is read into host memory and costs the same for all. Raises UsageError with both.
    """
    for result in results:
        costs, measured_on = result.costs, result.setting.device.partition(":")[0]
        of_device = (costs.host_read, costs.host_write, costs.recompute, costs.make_s_per_gib)
        if measured_on != device_type and any(cost is not None for cost in of_device):
            raise UsageError(
                f"this result was measured on {result.setting.device}, this run is on {device_type}",
                where=result.path,
                why="what a transfer, a prefill or a pool costs is not the same there",
                hint=f"hicachectl bench {result.kind} --device {device_type} -o json --output-file {result.kind}-{device_type}.json",
            )


def require_pages(results: Sequence[BenchResult], geometry: KVGeometry, layout: str, backend: str = "auto") -> None:
    """Refuse results of other pages or another layout: a transfer costs by its chunks, a prefill by its model. Pure.

    So are transfers between host and device by another copy backend than the one that is asked for (`auto`: any). bench pool moves no
    pages and fits all. Raises UsageError with both.
    """
    asked = _Pages(geometry.name, geometry.page_tokens, geometry.page_bytes, geometry.dtype, layout)
    for result in results:
        pages = _pages_of(result)
        if pages is not None and pages != asked:
            raise UsageError(
                f"measured with pages of {pages}{_backend(result)}; asked for are pages of {asked}",
                where=result.path,
                why="what a transfer or a prefill costs depends on the pages, their layout and the model",
                hint=f"hicachectl bench {result.kind} --geometry {geometry.name} --page-tokens {geometry.page_tokens} --layout {layout}, "
                "or the file of these pages",
            )
        copied_by, costs = _backend_of(result), result.costs
        moved = costs.host_read is not None or costs.host_write is not None
        if moved and backend != "auto" and copied_by is not None and copied_by != backend:
            raise UsageError(
                f"measured with copy backend {copied_by}; asked for is {backend}",
                where=result.path,
                why="what a transfer between host and device costs is decided by how it is copied",
                hint=f"hicachectl bench {result.kind} --backend {backend} -o json --output-file {result.kind}-{backend}.json, or "
                f"--backend {copied_by}",
            )


def storage_warnings(
    results: Sequence[BenchResult],
    folder: FilePath | None,
    *,
    file_system_of: Callable[[FilePath], FileSystem] | None = None,
) -> tuple[Diagnostic, ...]:
    """Warn where the storage read that counts was measured on another file system than the tier's `folder`, or from the page cache.

    `folder` None: not known where the tier will be. Empty where nothing tells of one of both. Reads the list of mounts.
    """
    result = next((one for one in results if one.costs.storage_read is not None), None)
    if result is None:
        return ()
    from hicachectl.runtime.probes.page_cache import FileSystem, file_system

    found = result.data.get("storage") if result.kind == "model" else result.data
    place: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    here = FileSystem(None, None, None) if folder is None else (file_system_of or file_system)(folder)
    told, there = [], place.get("file_system")
    theirs = (there.get("kind"), there.get("device")) if isinstance(there, Mapping) else (None, None)
    if None not in (*theirs, here.kind, here.device) and theirs != (here.kind, here.device):
        told.append(
            f"its storage read was measured in {place.get('folder')}, {theirs[0]} on {theirs[1]}; the storage tier is in {folder}, "
            f"{here.kind} on {here.device}"
        )
    share = place.get("resident_share")
    is_warm = (
        share > _COLD_SHARE if isinstance(share, (int, float)) else _copied(place).get("storage_read") == "read warm"
    )
    if is_warm and not here.in_memory:
        told.append("its storage read is of files that stayed in the page cache: one from the disk takes longer")
    hint = f"hicachectl bench {result.kind} --path {folder or 'DIR'} -o json --output-file {result.kind}-l3.json, on the disk of the storage tier"
    return tuple(Diagnostic("HC-COSTS-L3", Severity.WARN, text, subject=result.path, hint=hint) for text in told)


def unused_costs(results: Sequence[BenchResult]) -> tuple[Diagnostic, ...]:
    """Say which results hold no cost that `run` uses: neither a transfer's nor a prefill's. Pure."""
    return tuple(
        Diagnostic(
            _UNUSED, Severity.NOTE, "it holds what making a pool costs and nothing that run uses: no transfer, no prefill",
            subject=result.path,
            hint="give it to tune size --costs; for run: hicachectl bench model -o json --output-file model.json",
        )
        for result in results
        if not priors_of(result) and result.costs.recompute is None
    )  # fmt: skip


def used_costs(names: str | None, told: Sequence[Diagnostic]) -> str | None:
    """Return the files of `--costs` without those that `unused_costs` told of, by any name; None when none is left. Follows links."""
    unused = {os.path.realpath(one.subject) for one in told if one.code == _UNUSED and one.subject is not None}
    left = [name for name in (names or "").split(",") if os.path.realpath(name.strip()) not in unused]
    return ",".join(left) or None


def sizing_costs(results: Sequence[BenchResult]) -> GivenCosts:
    """Return what the economics of a host pool takes from the results, of each cost the first named. Pure."""
    from hicachectl.runtime.cost import Path
    from hicachectl.tuning.sizing.given_costs import GivenCosts

    priors = {path: cost for result in reversed(results) for path, cost in priors_of(result).items()}
    make = next((one.costs.make_s_per_gib for one in results if one.costs.make_s_per_gib is not None), None)
    host_read = priors.get(Path.HOST_READ)
    why = _no_host_read(results) if results and host_read is None else None
    return GivenCosts(host_read, priors.get(Path.STORAGE_READ), make, why)


def _no_host_read(results: Sequence[BenchResult]) -> str:
    """Why none of the results has what a restore costs, in their own words, and what to do."""
    missing = [(result, missing_costs(result.data).get("host_read")) for result in results]
    told = [
        f"{result.path}: {why}; {remedy_for_costs(result.data)}: hicachectl bench {result.kind} -o json --output-file {result.path}"
        for result, why in missing
        if why
    ]
    words = told or ["measure it with hicachectl bench copy or bench model -o json --output-file FILE"]
    return f"no file of --costs has what a restore costs (costs.host_read): {'; '.join(words)}"


def with_measured_prefill(effective: Effective) -> Effective:
    """Return the configuration with the prefill that a file of `run.costs` measured. Reads those files.

    It stays as it is where the coefficients were set in a place at least as strong as the one that names the files. Raises
    UsageError as `read_costs`, and for a model that is no geometry preset.
    """
    from hicachectl.runtime.geometry import preset

    measured = next((result for result in read_costs(effective.run.costs) if result.costs.recompute is not None), None)
    if measured is None or measured.costs.recompute is None:
        return effective
    ranks = list(OriginKind)
    strongest = min(ranks.index(effective.origins[name].kind) for name in _COMPUTE)
    if strongest <= ranks.index(effective.origins["run.costs"].kind) and strongest != ranks.index(OriginKind.DEFAULT):
        return effective
    line = measured.costs.recompute
    preset(line.model, effective.run.page_tokens)
    return effective.replaced(
        dict(zip(_COMPUTE, (line.a_s, line.b_s, line.c_s, line.model, line.hardware), strict=True)), measured.path
    )


@dataclass(frozen=True, slots=True)
class _Pages:
    """What a file says of its pages."""

    name: str
    page_tokens: int
    page_bytes: int
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.name}, {self.page_tokens} tokens, {self.page_bytes} B, {self.dtype}, {self.layout}"


def _pages_of(result: BenchResult) -> _Pages | None:
    """Return what pages were moved; None for bench pool, which moves none. Raises UsageError."""
    if result.kind not in _MOVE_PAGES:
        return None
    found, data = result.data.get("geometry"), result.data
    place = found if isinstance(found, Mapping) else {**data, "name": found, "layout": _copied(data).get("layout")}
    values: dict[str, Any] = {field.name: place.get(field.name) for field in fields(_Pages)}
    numbers = all(type(values[name]) is int for name in ("page_tokens", "page_bytes"))
    if numbers and all(type(values[name]) is str for name in ("name", "dtype", "layout")):
        return _Pages(**values)
    said = ", ".join(f"{name} {value!r:.40}" for name, value in values.items())
    raise UsageError(
        f"the pages are given as {said}", where=result.path, why="the file was edited, or is of an earlier release",
        hint=f"measure again: hicachectl bench {result.kind}",
    )  # fmt: skip


def _backend(result: BenchResult) -> str:
    """Say which copy backend moved them, where one did."""
    name = _backend_of(result)
    return "" if name is None else f" by copy backend {name}"


def _backend_of(result: BenchResult) -> str | None:
    """The copy backend that moved them, None where none did."""
    name = _copied(result.data).get("backend") if result.kind == "copy" else result.data.get("backend")
    return name if isinstance(name, str) else None


def _copied(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the costs are of: layout and backend (bench copy), operations (bench store)."""
    found = data.get("costs_of")
    return found if isinstance(found, Mapping) else {}

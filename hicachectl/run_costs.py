"""What benchmarks measured, as costs of `run`: where the cost model starts from, and the prefill where nobody else set one.

`run.costs` names files of `hicachectl bench -o json --output-file`, comma-separated; where two measured the same, the first counts. A
path's cost rules until its first transfers; the prefill of `bench model` replaces coefficients that come from a weaker place than the
name of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hicachectl.bench_data import Costs, missing_costs
from hicachectl.bench_results import BenchResult, priors_of, read_bench
from hicachectl.config import Effective, OriginKind
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.runtime.cost import LinearCost, Path
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.tuning.sizing.given_costs import GivenCosts

__all__ = ["measured_priors", "read_costs", "require_pages", "sizing_costs", "with_measured_prefill"]

_COMPUTE = tuple(f"run.compute.{word}" for word in ("a_s", "b_s", "c_s", "model", "hardware"))


def read_costs(names: str | None) -> tuple[BenchResult, ...]:
    """Read the results that `run.costs` names, in its order; none without a name.

    Raises UsageError for one that cannot be used or has no cost in it.
    """
    results = tuple(read_bench(name.strip()) for name in names.split(",")) if names else ()
    for result in results:
        if result.costs == Costs():
            why = "; ".join(dict.fromkeys(missing_costs(result.data).values()))
            raise UsageError(
                "no cost was measured in this file", where=result.path, why=why or f"bench {result.kind} measures none, or got no answer for any",
                hint="name a file of bench model, store, copy or pool",
            )  # fmt: skip
    return results


def measured_priors(results: Sequence[BenchResult], device_type: str) -> dict[Path, LinearCost]:
    """Return what the cost model starts from, by path. Pure.

    Raises UsageError for transfers that were measured on another type of device than `device_type`, such as cuda.
    """
    from hicachectl.runtime.cost import Path

    found: dict[Path, LinearCost] = {}
    for result in results:
        new = {path: cost for path, cost in priors_of(result).items() if path not in found}
        measured_on = result.setting.device.partition(":")[0]
        if new.keys() & {Path.HOST_READ, Path.HOST_WRITE} and measured_on != device_type:
            raise UsageError(
                f"transfers of this result were measured on {result.setting.device}, this run is on {device_type}",
                where=result.path,
                why="what a byte costs to the device is not the same there",
                hint=f"hicachectl bench {result.kind} --device {device_type} -o json --output-file {result.kind}-{device_type}.json",
            )
        found |= new
    return found


def require_pages(results: Sequence[BenchResult], geometry: KVGeometry) -> None:
    """Refuse results of other pages: a transfer costs by its chunks, a prefill by its model. Pure.

    One that moved no pages (bench pool) fits all. Raises UsageError with both values.
    """
    for result in results:
        pages = _pages_of(result)
        if pages is not None and pages != (geometry.name, geometry.page_tokens, geometry.page_bytes):
            name, page_tokens, page_bytes = pages
            raise UsageError(
                f"measured with pages of {name}, {page_tokens} tokens, {page_bytes} B; asked for are pages of {geometry.name}, "
                f"{geometry.page_tokens} tokens, {geometry.page_bytes} B",
                where=result.path,
                why="what a transfer or a prefill costs depends on the pages and the model",
                hint=f"hicachectl bench {result.kind} --geometry {geometry.name} --page-tokens {geometry.page_tokens}, or the file of these pages",
            )


def sizing_costs(results: Sequence[BenchResult]) -> GivenCosts:
    """Return what the economics of a host pool takes from the results, of each cost the first named. Pure."""
    from hicachectl.runtime.cost import Path
    from hicachectl.tuning.sizing.given_costs import GivenCosts

    priors = {path: cost for result in reversed(results) for path, cost in priors_of(result).items()}
    make = next((one.costs.make_s_per_gib for one in results if one.costs.make_s_per_gib is not None), None)
    return GivenCosts(priors.get(Path.HOST_READ), priors.get(Path.STORAGE_READ), make)


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


def _pages_of(result: BenchResult) -> tuple[str, int, int] | None:
    """Return the geometry's name, tokens and bytes of a page; None where no pages were moved. Raises UsageError."""
    found = result.data.get("geometry")
    if found is None:
        return None
    place = found if isinstance(found, Mapping) else {**result.data, "name": found}
    name, page_tokens, page_bytes = (place.get(word) for word in ("name", "page_tokens", "page_bytes"))
    if type(name) is str and type(page_tokens) is int and type(page_bytes) is int:
        return name, page_tokens, page_bytes
    raise UsageError(
        f"the pages are given as {name!r}, {page_tokens!r} tokens, {page_bytes!r} bytes", where=result.path,
        why="the file was edited, or is no result of bench", hint=f"measure again: hicachectl bench {result.kind}",
    )  # fmt: skip

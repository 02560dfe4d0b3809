"""What benchmarks measured, as costs of `run`: where the cost model starts from, and the prefill where nobody else set one.

`run.costs` names files of `hicachectl bench -o json --output-file`, comma-separated; where two measured the same, the first counts. A
path's cost rules until its first transfers; the prefill of `bench model` replaces coefficients that come from a weaker place than the
name of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hicachectl.bench_results import BenchResult, priors_of, read_bench
from hicachectl.config import Effective, OriginKind
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.runtime.cost import LinearCost, Path

__all__ = ["measured_priors", "read_costs", "with_measured_prefill"]

_COMPUTE = tuple(f"run.compute.{word}" for word in ("a_s", "b_s", "c_s", "model", "hardware"))


def read_costs(names: str | None) -> tuple[BenchResult, ...]:
    """Read the results that `run.costs` names, in its order; none without a name. Raises UsageError for one that cannot be used."""
    return tuple(read_bench(name.strip()) for name in names.split(",")) if names else ()


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
                hint=f"hicachectl bench {result.kind} --device {device_type} -o json --output-file {result.path}",
            )
        found |= new
    return found


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

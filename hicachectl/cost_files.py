"""`--costs FILE`: results of `hicachectl bench` that a run or a sizing starts from, checked against the pages it moves.

    bench model    what restores and backups cost on each path, and a prefill when it was measured
    bench store    what reads and writes of the storage tier cost
    bench copy     what loads and backups cost
    bench pool     what a GiB of host pool costs to make

Each cost comes from one file. They stand in for `run.compute` and for the cost model's first guesses; what a path then costs in
the run itself replaces the guess, as without a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from hicachectl.bench_data import Costs
from hicachectl.bench_results import BenchResult, priors_of, read_bench
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.runtime.cost import LinearCost
    from hicachectl.runtime.cost import Path as CostPath
    from hicachectl.runtime.geometry import KVGeometry
    from hicachectl.tuning.sizing.given_costs import GivenCosts

__all__ = ["CostFiles", "costs_for", "read_costs"]

_KINDS = "bench model, store, copy or pool"


@dataclass(frozen=True, slots=True)
class CostFiles:
    """What the files gave. `sources` says for each cost (a name of `Costs`) which benchmark and file it is from."""

    costs: Costs
    priors: Mapping[CostPath, LinearCost]
    sources: Mapping[str, str]
    hosts: Mapping[str, str]
    """By source, which host it was measured on."""

    def applied(self, effective: Effective) -> Effective:
        """Return the configuration with the measured prefill in `run.compute`, in place of what any file or profile says. Pure.

        The file was named on the command line, so it goes before the environment, files and profiles.
        """
        recompute = self.costs.recompute
        if recompute is None:
            return effective
        for name in ("a_s", "b_s", "c_s", "model", "hardware"):
            what = self.sources["recompute"]
            effective = effective.with_measured(f"run.compute.{name}", getattr(recompute, name), what, over=True)
        return effective

    def for_sizing(self) -> GivenCosts:
        """Return what the economics of a host pool takes. Pure."""
        from hicachectl.runtime.cost import Path
        from hicachectl.tuning.sizing.given_costs import GivenCosts

        return GivenCosts(
            self.priors.get(Path.HOST_READ), self.priors.get(Path.STORAGE_READ), self.costs.make_s_per_gib
        )

    def words(self) -> tuple[str, ...]:
        """Say which cost is from where, a line a file. Pure."""
        by_source: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            by_source.setdefault(source, []).append(name)
        return tuple(
            f"costs of {source}, measured on {self.hosts[source]}: {', '.join(names)}"
            for source, names in by_source.items()
        )


def costs_for(effective: Effective, paths: Sequence[str], note: Callable[[str], None]) -> tuple[CostFiles, Effective]:
    """Read the files of `--costs`, say what is taken from which, and return them with the configuration they make.

    Raises what `read_costs` raises.
    """
    from hicachectl.runtime.geometry import preset

    run = effective.run
    given = read_costs(paths, preset(run.geometry, run.page_tokens, run.dtype))
    for words in given.words():
        note(words)
    return given, given.applied(effective)


def read_costs(paths: Sequence[str | Path], geometry: KVGeometry) -> CostFiles:
    """Read the files and check that they are of these pages. Raises UsageError with the file, and both values where they differ."""
    found: dict[str, object] = {}
    sources: dict[str, str] = {}
    priors: dict[CostPath, LinearCost] = {}
    hosts: dict[str, str] = {}
    for path in paths:
        result = read_bench(path)
        _check_pages(result, geometry)
        source = f"bench {result.kind} {result.path}"
        given = {field.name: getattr(result.costs, field.name) for field in fields(Costs)}
        given = {name: cost for name, cost in given.items() if cost is not None}
        if not given:
            raise UsageError(
                "no cost was measured in this file", where=str(path), why=f"it is a result of bench {result.kind} without an answer for any",
                hint=f"give a file of {_KINDS}",
            )  # fmt: skip
        for name in given:
            if name in sources:
                raise UsageError(
                    f"{name} is given twice: by {sources[name]} and by {source}", where="--costs", hint="name each cost's file once"
                )  # fmt: skip
            sources[name] = source
        found |= given
        priors |= priors_of(result)
        hosts[source] = result.host or "a host that is not known"
    return CostFiles(Costs(**found), priors, sources, hosts)  # type: ignore[arg-type]


def _check_pages(result: BenchResult, geometry: KVGeometry) -> None:
    """Refuse costs of other pages: a transfer costs by its chunks, a prefill by its model."""
    name, page_tokens, page_bytes = _pages_of(result)
    if name is None:
        return
    if (name, page_tokens, page_bytes) != (geometry.name, geometry.page_tokens, geometry.page_bytes):
        raise UsageError(
            f"measured with pages of {name}, {page_tokens} tokens, {page_bytes} B; asked for are pages of {geometry.name}, "
            f"{geometry.page_tokens} tokens, {geometry.page_bytes} B",
            where=result.path,
            why="what a transfer or a prefill costs depends on the pages and the model",
            hint=f"hicachectl bench {result.kind} --geometry {geometry.name} --page-tokens {geometry.page_tokens}, or the file of these pages",
        )
    recompute = result.costs.recompute
    if recompute is not None and recompute.model != geometry.name:
        raise UsageError(
            f"the prefill is that of {recompute.model}, the pages are those of {geometry.name}", where=result.path,
            hint=f"hicachectl bench model --geometry {geometry.name}",
        )  # fmt: skip


def _pages_of(result: BenchResult) -> tuple[str | None, object, object]:
    """Return the geometry's name, tokens and bytes of a page; a name of None where no pages were moved."""
    found = result.data.get("geometry")
    if found is None:
        return None, None, None
    place = found if isinstance(found, Mapping) else {**result.data, "name": found}
    values = (place.get("name"), place.get("page_tokens"), place.get("page_bytes"))
    if not isinstance(values[0], str) or not all(type(value) is int for value in values[1:]):
        raise UsageError(
            f"the pages are given as {values[0]!r}, {values[1]!r} tokens, {values[2]!r} bytes", where=result.path,
            why="the file was edited, or is no result of bench", hint=f"measure again: hicachectl bench {result.kind}",
        )  # fmt: skip
    return values

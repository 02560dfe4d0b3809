"""Results of `hicachectl bench` read back from a file: the envelope as `-o json --output-file FILE` wrote it.

Strict: the schema and its version, the status, the time, the type of every value, no field twice, numbers that a benchmark can have
measured, each median and each cost against its samples, and the digest over all values. Fields that a later release adds are passed over: additions keep its
number.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicachectl.bench_checks import check_costs, check_measures, check_time
from hicachectl.bench_data import Costs, Measure, Setting
from hicachectl.bench_json import made_of, parse_json, part_of, wrong
from hicachectl.data_digest import require_digest
from hicachectl.errors import UsageError
from hicachectl.input_file import read_input

if TYPE_CHECKING:
    from hicachectl.runtime.cost import LinearCost
    from hicachectl.runtime.cost import Path as CostPath

__all__ = ["KINDS", "BenchResult", "priors_of", "read_bench"]

KINDS = {"pool": 1, "copy": 1, "link": 1, "store": 1, "model": 1}
"""The benchmarks whose documents are read, each with its version."""
_PREFIX = "hicachectl.bench-"


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One result: where it is from, and what was measured. `data` is the whole document's data."""

    path: str
    kind: str
    host: str | None
    boot_id: str | None
    collected_at: str
    setting: Setting
    measures: tuple[Measure, ...]
    costs: Costs
    data: Mapping[str, Any]

    def find(self, subject: str, quantity: str) -> Measure | None:
        """Return one measure, None where it was not made. Pure."""
        return next((one for one in self.measures if (one.subject, one.quantity) == (subject, quantity)), None)


def read_bench(path: str | Path) -> BenchResult:
    """Read a result. Raises UsageError with the file, the place in it and what was expected there.

    A result that says of itself that it has no answer (exit code 9, or a failure) is refused: nothing may rest on it.
    """
    path = str(path)
    document = _document(path)
    kind = _kind(document, path)
    if document["status"] == "failed" or document["exit_code"] != 0:
        raise UsageError(
            f"this result of bench {kind} is no answer: status {document['status']}, exit code {document['exit_code']}",
            where=path,
            why="it failed, or noise or time gave no answer",
            hint=f"hicachectl bench {kind} -o json --output-file {path}, with more --rounds on a quiet machine",
        )
    data = document["data"]
    setting = made_of(Setting, {"reasons": {}, **part_of(data, "setting", dict, path)}, "setting", path)
    measures = tuple(
        made_of(Measure, value, f"measures[{at}]", path)
        for at, value in enumerate(part_of(data, "measures", list, path))
    )
    check_measures(measures, path)
    costs = made_of(Costs, part_of(data, "costs", dict, path), "costs", path)
    check_costs(kind, costs, measures, path)
    require_digest(data, path)
    return BenchResult(
        path, kind, document.get("host"), document.get("boot_id"), document["collected_at"], setting, measures, costs, data
    )  # fmt: skip


def priors_of(result: BenchResult) -> dict[CostPath, LinearCost]:
    """Return what the cost model may start from: the measured costs by path, those that were measured. Pure."""
    from hicachectl.runtime.cost import LinearCost, Path

    found = {path: getattr(result.costs, path.value) for path in Path}
    return {path: LinearCost(cost.fixed_s, cost.per_byte_s) for path, cost in found.items() if cost is not None}


def _document(path: str) -> dict[str, Any]:
    document = parse_json(read_input(Path(path), "name a file of bench -o json"), path)
    if not isinstance(document, dict):
        raise wrong(path, "the document", "an object", document)
    for name, kind in (("schema", str), ("collected_at", str), ("status", str), ("exit_code", int)):
        if type(document.get(name)) is not kind:
            raise wrong(path, name, kind, document.get(name))
    for name in ("host", "boot_id"):
        if not isinstance(document.get(name), (str, types.NoneType)):
            raise wrong(path, name, "str or null", document.get(name))
    check_time(document["collected_at"], path)
    if not isinstance(document.get("data"), dict):
        raise wrong(path, "data", "an object", document.get("data"))
    return document


def _kind(document: dict[str, Any], path: str) -> str:
    schema: str = document["schema"]
    kind, _, version = schema.removeprefix(_PREFIX).partition("/")
    if not schema.startswith(_PREFIX) or kind not in KINDS:
        raise UsageError(
            f"this is {schema}, no result of bench", where=path, hint=f"give a file of bench {', '.join(sorted(KINDS))}"
        )  # fmt: skip
    if version != str(KINDS[kind]):
        raise UsageError(
            f"version {version} of bench-{kind}, this release reads {KINDS[kind]}", where=path, hint=f"measure again: hicachectl bench {kind}"
        )  # fmt: skip
    return kind

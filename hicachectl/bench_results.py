"""Results of `hicachectl bench` read back from a file: the envelope as `-o json --output-file FILE` wrote it.

Strict: the schema and its version, the status, the type of every value, each median against its samples, and the digest over all
values. Fields that a later release adds are passed over: additions keep its number.
"""

from __future__ import annotations

import json
import math
import statistics
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from hicachectl.bench_data import Costs, Measure, Setting
from hicachectl.data_digest import require_digest
from hicachectl.errors import UsageError

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
    document = _document(Path(path))
    kind = _kind(document, str(path))
    if document["status"] == "failed" or document["exit_code"] != 0:
        raise UsageError(
            f"this result of bench {kind} is no answer: status {document['status']}, exit code {document['exit_code']}",
            where=str(path),
            why="it failed, or noise or time gave no answer",
            hint=f"hicachectl bench {kind} -o json --output-file {path}, with more --rounds on a quiet machine",
        )
    data = document["data"]
    setting = _made(Setting, {"reasons": {}, **_part(data, "setting", dict, path)}, "setting", path)
    measures = tuple(
        _made(Measure, value, f"measures[{at}]", path) for at, value in enumerate(_part(data, "measures", list, path))
    )
    for at, one in enumerate(measures):
        median = statistics.median(one.samples) if one.samples else None
        if median != one.p50:
            raise _wrong(path, f"measures[{at}].p50", f"{median}, the median of its samples", one.p50)
    costs = _made(Costs, _part(data, "costs", dict, path), "costs", path)
    require_digest(data, str(path))
    return BenchResult(
        str(path), kind, document["host"], document["boot_id"], document["collected_at"], setting, measures, costs, data
    )  # fmt: skip


def priors_of(result: BenchResult) -> dict[CostPath, LinearCost]:
    """Return what the cost model may start from: the measured costs by path, those that were measured. Pure."""
    from hicachectl.runtime.cost import LinearCost, Path

    found = {path: getattr(result.costs, path.value) for path in Path}
    return {path: LinearCost(cost.fixed_s, cost.per_byte_s) for path, cost in found.items() if cost is not None}


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read it: {error.strerror}", where=str(path), hint="name a file of bench -o json"
        ) from error
    except ValueError as error:
        raise UsageError(
            "it is no JSON document", where=str(path), why=str(error), hint="write it with: hicachectl bench ... -o json --output-file FILE"
        ) from error  # fmt: skip
    if not isinstance(document, dict):
        raise _wrong(path, "the document", "an object", document)
    for name, kind in (("schema", str), ("collected_at", str), ("status", str), ("exit_code", int)):
        if type(document.get(name)) is not kind:
            raise _wrong(path, name, kind.__name__, document.get(name))
    for name in ("host", "boot_id"):
        if not isinstance(document.get(name), (str, types.NoneType)):
            raise _wrong(path, name, "str or null", document.get(name))
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


def _part(data: Any, name: str, kind: type, path: str | Path) -> Any:
    found = data.get(name) if isinstance(data, dict) else None
    if not isinstance(found, kind):
        raise _wrong(path, f"data.{name}", "an object" if kind is dict else "a list", found)
    return found


def _made(wanted: Any, value: Any, place: str, path: str | Path) -> Any:
    """Turn plain JSON into `wanted`: a dataclass, a tuple of one kind, a mapping, X | None or a plain type."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        inner = next(kind for kind in get_args(wanted) if kind is not types.NoneType)
        return None if value is None else _made(inner, value, place, path)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(wanted, value, place, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, place, "a list", value)
        return tuple(_made(get_args(wanted)[0], item, f"{place}[{at}]", path) for at, item in enumerate(value))
    if origin is not None:
        if not isinstance(value, dict):
            raise _wrong(path, place, "an object", value)
        return value
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted or (wanted is float and not math.isfinite(value)):
        raise _wrong(path, place, wanted.__name__, value)
    return value


def _dataclass(wanted: type, value: Any, place: str, path: str | Path) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, place, "an object", value)
    hints = get_type_hints(wanted)
    given = {}
    for field in fields(wanted):
        if field.name in value:
            given[field.name] = _made(hints[field.name], value[field.name], f"{place}.{field.name}", path)
        elif field.default is MISSING:
            raise _wrong(path, f"{place}.{field.name}", hints[field.name], "nothing")
    return wanted(**given)


def _wrong(path: str | Path, place: str, wanted: Any, found: Any) -> UsageError:
    name = getattr(wanted, "__name__", str(wanted))
    return UsageError(
        f"{place} is {found!r}, {name} is expected there",
        where=str(path),
        why="the file was edited, cut short, or is no result of bench",
        hint="measure again: hicachectl bench ... -o json --output-file FILE",
    )

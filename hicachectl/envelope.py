"""What a command found, and the one document that carries it: `Result` -> envelope.

A command builds a `Result`; `envelope()` adds who, where and when. `status` and the exit code are derived here, from
the diagnostics, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

from hicachectl.errors import ExitCode, HicacheError
from hicachectl.exits import combine
from hicachectl.render.text import real_text

__all__ = [
    "Confidence",
    "Diagnostic",
    "Envelope",
    "Fact",
    "Origin",
    "Result",
    "Severity",
    "Status",
    "diagnostic_of",
    "envelope",
    "exit_code_of",
    "plain",
    "status_of",
    "unexplained_nulls",
    "with_facts",
]

Envelope = dict[str, Any]


class Severity(str, Enum):
    """How much a diagnostic weighs. FAILURE is what ended the command; the others are findings."""

    FAILURE = "failure"
    ERROR = "error"
    WARN = "warn"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """Position, heaviest first. Pure."""
        return list(Severity).index(self)


class Status(str, Enum):
    """The envelope's summary, for a reader that looks at one word."""

    OK = "ok"
    FINDINGS = "findings"
    FAILED = "failed"


class Confidence(str, Enum):
    """How a fact was come by."""

    READ = "read"
    DERIVED = "derived"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Fact:
    """Where a value in `data` comes from; for a null, why it is not known. At least one of source and reason is set."""

    source: str | None = None
    confidence: Confidence | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, or the failure that ended the command. `subject` is an address, a path or a file:line."""

    code: str
    severity: Severity
    message: str
    subject: str | None = None
    hint: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a command hands to `Context.emit`: one dataclass for machine output and screen.

    `schema` is "hicachectl.NAME/N". `data` is a mapping or a dataclass; keys carry their unit; an unknown is None and
    has an entry in `facts` (JSON pointer into data -> Fact) or a `reason` beside it. `exit_code` is the command's own
    cause besides the diagnostics. `fail_on` makes findings of that weight or more exit with DIFFERS. `rows` names the
    pointer of the list in `data` that `-o tsv` prints (default: every leaf as pointer and value). `private` makes
    `--output-file` write mode 0600. `draws_findings`: its screen says what the diagnostics say, so none follow it.
    """

    schema: str
    data: Any
    diagnostics: Sequence[Diagnostic] = ()
    exit_code: ExitCode = ExitCode.OK
    fail_on: Severity | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    rows: str | None = None
    private: bool = False
    draws_findings: bool = False

    def with_error(self, error: HicacheError) -> Result:
        """Return a copy that also carries `error` as its failure, keeping what was found so far. Pure."""
        return replace(
            self,
            diagnostics=(*self.diagnostics, diagnostic_of(error)),
            exit_code=combine([self.exit_code, error.exit_code]),
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Which host and moment a document speaks of."""

    tool_version: str
    host: str | None
    boot_id: str | None
    collected_at: str
    source: str = "live"
    unknown: Mapping[str, str] = field(default_factory=dict)


def diagnostic_of(error: HicacheError, *, source: str | None = None) -> Diagnostic:
    """Turn an error into the failure diagnostic of an envelope. Pure."""
    message = f"{error.what} ({error.why})" if error.why else error.what
    return Diagnostic(
        code=error.code, severity=Severity.FAILURE, message=message, subject=error.where, hint=error.hint, source=source
    )


def status_of(diagnostics: Sequence[Diagnostic]) -> Status:
    """Sum the diagnostics up in one word: FAILED when one is a failure, FINDINGS when there is any, else OK. Pure."""
    if any(d.severity is Severity.FAILURE for d in diagnostics):
        return Status.FAILED
    return Status.FINDINGS if diagnostics else Status.OK


def exit_code_of(result: Result) -> ExitCode:
    """Choose the exit code of a result: its own cause, a failure, and findings at or above `fail_on`. Pure."""
    causes = [result.exit_code]
    if result.fail_on is not None and any(d.severity.rank <= result.fail_on.rank for d in result.diagnostics):
        causes.append(ExitCode.DIFFERS)
    if status_of(result.diagnostics) is Status.FAILED and result.exit_code is ExitCode.OK:
        causes.append(ExitCode.BUG)  # a failure without a cause of its own may not look like success
    return combine(causes)


def plain(value: Any) -> Any:
    """Turn dataclasses, enums, paths, tuples and array scalars into what JSON and YAML hold. Pure.

    Raises TypeError for anything else, and ValueError for NaN and infinities (an unknown number is None).
    """
    kind = type(value)  # the plain kinds first: a topology holds a hundred thousand of them
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return value if value.isascii() else real_text(value)
    if kind is dict:
        return {key if type(key) is str and key.isascii() else str(plain(key)): plain(i) for key, i in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is not a number a document may carry; use None and a reason")
        return float(value)
    if isinstance(value, (int, str)):
        return int(value) if isinstance(value, int) else real_text(str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, PurePath):
        return real_text(str(value))
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a document: {value!r}")


def envelope(result: Result, origin: Origin) -> Envelope:
    """Wrap a result into the document every command prints. Pure."""
    data = with_facts(plain(result.data), result.facts)
    document: Envelope = {
        "schema": result.schema,
        "tool_version": origin.tool_version,
        "host": plain(origin.host),
        "boot_id": origin.boot_id,
        "collected_at": origin.collected_at,
        "source": plain(origin.source),
        "status": status_of(result.diagnostics).value,
        "exit_code": int(exit_code_of(result)),
        "data": data,
        "diagnostics": [plain(d) for d in result.diagnostics],
    }
    if origin.unknown:
        document["unknown"] = plain(origin.unknown)
    return document


def with_facts(data: Any, facts: Mapping[str, Fact]) -> Any:
    """Return plain data with these facts in `data["facts"]`, as a document holds them; unchanged without any. Pure."""
    if not facts:
        return data
    known = {pointer: {k: v for k, v in plain(fact).items() if v is not None} for pointer, fact in facts.items()}
    return {**data, "facts": {**data.get("facts", {}), **known}}


def unexplained_nulls(data: Any) -> list[str]:
    """List the JSON pointers of nulls in `data` that no reason explains. Pure.

    A null is explained by an entry in `data["facts"]`, by a key `reason` beside it, or by `NAME_reason` for `NAME`.
    """
    facts = data.get("facts", {}) if isinstance(data, Mapping) else {}

    def walk(value: Any, pointer: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                here = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
                if here == "/facts":
                    continue
                if item is None:
                    explained = facts.get(here, {}).get("reason") or value.get("reason") or value.get(f"{key}_reason")
                    if not explained and key not in ("reason", f"{key}_reason"):
                        yield here
                else:
                    yield from walk(item, here)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if item is None and not facts.get(f"{pointer}/{index}", {}).get("reason"):
                    yield f"{pointer}/{index}"
                else:
                    yield from walk(item, f"{pointer}/{index}")

    return list(walk(data, ""))

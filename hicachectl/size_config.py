"""Writes `hicache.yaml` of a sizing: every setting of `run` with its value and where it came from, ready for `run --config`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hicachectl.config import Setting
from hicachectl.errors import UsageError

__all__ = ["config_text", "digest_of", "refuse_existing", "write_config"]

_LEFT_OUT = {"run.report", "run.metrics_port"}


def config_text(settings: Sequence[Setting], changed: dict[str, tuple[object, str]], head: str) -> str:
    """Return the file: keys nested as the models are, origins behind them. Pure.

    `changed` are values that the sizing decided, each with its origin.
    """
    lines = [f"# {line}" for line in head.splitlines()]
    lines.append("run:")
    section = ""
    trace = changed.get("run.trace", (next(s.value for s in settings if s.key == "run.trace"), ""))[0]
    for setting in settings:
        key = setting.key
        workload = key == "run.synthetic" if trace is not None else key == "run.trace"
        if not key.startswith("run.") or key in _LEFT_OUT or workload:
            continue
        value, origin = changed.get(key, (setting.value, str(setting.origin)))
        words = key.split(".")[1:]
        if len(words) == 2 and words[0] != section:
            section = words[0]
            lines.append(f"  {section}:")
        indent = "    " if len(words) == 2 else "  "
        lines.append(f"{indent}{words[-1]}: {_scalar(value)}  # {' '.join(origin.split())}")
    return "\n".join(lines) + "\n"


def refuse_existing(path: Path, *, force: bool, resumed: Path | None = None) -> str | None:
    """Check before the long work that the file may be written. Raises UsageError, also for a journal that cannot be read.

    `resumed` is the state folder of the run that goes on: what that run wrote itself, and nobody changed, is replaced. Returns the
    digest of what is there, None for nothing, which `write_config` compares.
    """
    there = _digest_there(path)
    if os.path.exists(path) and not force and not (resumed is not None and _wrote(resumed, path, there)):
        other = "" if resumed is None else ", and what is there is not as the run that goes on wrote it"
        raise UsageError(
            "there is a configuration already",
            where=str(path),
            why=f"the size found is written there{other}",
            hint="--write FILE names another one, --force replaces it",
        )
    if not os.path.isdir(path.absolute().parent):
        raise UsageError(f"there is no folder {path.parent}", where=str(path), why="--write names a file in it")
    return there


def digest_of(content: bytes) -> str:
    """Return the digest that a run records of the configuration it writes. Pure."""
    return hashlib.sha256(content).hexdigest()


def write_config(path: Path, text: str, *, there: str | None, force: bool) -> None:
    """Write the file whole or not at all. Raises UsageError, also where `there` is not what is there now and `force` is not given."""
    if not force and _digest_there(path) != there:
        raise UsageError(
            "the configuration changed while the sizing ran", where=str(path), why="what is there now would be lost",
            hint="put it elsewhere, then --resume with the same options and --write FILE writes the size found to another file",
        )  # fmt: skip
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # the first error says more
            temporary.unlink()
        raise UsageError(
            f"cannot write the configuration: {error.strerror}", where=str(path), hint="--write FILE", code="HC-OUTPUT"
        ) from error


def _digest_there(path: Path) -> str | None:
    """The digest of the file as it is now; None where there is none, or none that can be read."""
    try:
        return digest_of(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None


def _wrote(state: Path, path: Path, there: str | None) -> bool:
    """Whether the newest run wrote this very file."""
    from hicachectl.tuning.sizing.size_journal import config_digests

    return there is not None and there in config_digests(state, path.absolute())


def _scalar(value: object) -> str:
    """YAML 1.1 as it is read back: a float needs a point before its exponent."""
    text = json.dumps(value, ensure_ascii=True)
    if isinstance(value, float) and "e" in text and "." not in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa}.0e{exponent}"
    return text

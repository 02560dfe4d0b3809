"""Where a sizing writes: looked at before the long work, so that no file of the user is lost and no answer has nowhere to go."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from hicachectl.errors import UsageError

__all__ = ["require_outputs", "require_seconds"]


def require_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, str | None]) -> None:
    """Check the files that flags name: each a file or none yet, in a folder that takes one, neither an input nor each other.

    Leaves nothing behind. Raises UsageError.
    """
    seen: dict[Path, str] = {Path(text).resolve(): flag for flag, text in inputs.items() if text is not None}
    for flag, path in outputs.items():
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), flag)
        if other != flag:
            raise UsageError(f"{flag} and {other} name the same file", where=f"{flag} {path}", hint="name another one")
        _require_writable(flag, path)


def _require_writable(flag: str, path: Path) -> None:
    probe = path.with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise UsageError(f"{path} is {kind}", where=flag, why="a file is written there", hint=f"{flag} FILE")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not path.parent.is_dir()
        raise UsageError(
            f"there is no folder {path.parent}" if missing else f"{path.parent} takes no file: {error.strerror}",
            where=f"{flag} {path}", hint=f"{flag} FILE, in a folder this user can write",
        ) from error  # fmt: skip


def require_seconds(flag: str, value: float | None) -> None:
    """Check a length of time. Pure. Raises UsageError for one that is negative or no number."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{value} seconds", where=flag, hint="give 0 or more seconds, such as 600")

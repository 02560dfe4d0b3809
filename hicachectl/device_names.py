"""How a device is named, wherever one may be: `auto`, or a type of torch's with or without an index. Needs no torch."""

from __future__ import annotations

import re
from difflib import get_close_matches

from hicachectl.errors import UsageError

__all__ = ["DEVICE_PATTERN", "DEVICE_WANTED", "DEVICE_WORDS", "nearest_device", "require_device_name"]

DEVICE_PATTERN = r"^[a-z][a-z0-9_]*(:(0|[1-9][0-9]?))?$"
"""No leading zero and two digits at most: torch refuses the one, and keeps an index in a byte, so cuda:256 would be cuda:0."""
DEVICE_WANTED = "auto, cpu, cuda, or another device of torch such as cuda:1"
DEVICE_WORDS = ("auto", "cpu", "cuda")


def require_device_name(name: str, *, where: str = "--device") -> None:
    """Refuse what cannot be the name of a device, whatever this host has. Pure. Raises UsageError, with the nearest name.

    >>> require_device_name("cuda:1")
    """
    if re.fullmatch(DEVICE_PATTERN, name, re.ASCII):
        kind, has_index, index = name.partition(":")
        if kind == "auto" and has_index:
            raise UsageError(
                f"{name!r} is no device: auto takes no index", where=where, hint=f"name the accelerator, such as cuda:{index}, or give auto"
            )  # fmt: skip
        return
    near = nearest_device(name)
    raise UsageError(
        f"{name!r} is not {DEVICE_WANTED}", where=where, hint=f"did you mean {near!r}?" if near else f"give {DEVICE_WANTED}"
    )  # fmt: skip


def nearest_device(name: str, more: tuple[str, ...] = ()) -> str | None:
    """Return the name most like this one among `auto`, `cpu`, `cuda` and `more`, or None when nothing is near. Pure.

    >>> nearest_device("CUDA:x"), nearest_device("foo")
    ('cuda', None)
    """
    found = get_close_matches(name.lower(), {*DEVICE_WORDS, *more}, n=1, cutoff=0.6)
    return found[0] if found else None

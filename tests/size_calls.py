"""Calls of `hicachectl tune size` on pages of 4 KiB, their records in `state`."""

from __future__ import annotations

from typing import Any

from cli_runner import Ran, call

__all__ = ["run", "size"]


def run(*argv: str) -> Ran:
    """`tune size` with small defaults and a JSON document."""
    return call(
        "tune", "size", "--geometry", "tiny-4k", "--state-dir", "state", "--progress", "none", "-o", "json", *argv
    )


def size(*argv: str) -> Any:
    """The data of a sizing that must end with 0."""
    ran = run(*argv)
    assert ran.code == 0, ran.err
    return ran.json["data"]

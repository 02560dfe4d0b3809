"""Advice for a recording: which commands to run where. Pure."""

from __future__ import annotations

__all__ = ["SNAPSHOT", "for_recording"]

SNAPSHOT = "SNAPSHOT"
"""Stands for the recording's name, which the reader knows: a file may move after it was judged."""


def for_recording(hint: str) -> str:
    """Turn one command of a live host's advice into that for its recording: read the recording, look at the host itself. Pure.

    >>> for_recording("hicachectl topo matrix"), for_recording("lscpu")
    ('hicachectl topo matrix --root SNAPSHOT', 'on that host: lscpu')
    """
    if hint.startswith(("hicachectl explain ", "take ")):
        return hint
    if not hint.startswith("hicachectl ") or "topo snapshot" in hint or hint.startswith("hicachectl bench "):
        return f"on that host: {hint}"
    command, pipe, rest = hint.partition(" | ")
    return f"{command} --root {SNAPSHOT}{pipe}{rest}"

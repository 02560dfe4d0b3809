"""A shared pool as processes without torch make it and attach to it: they start in a third of the time."""

from __future__ import annotations

import sys

from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.mapping import Mapping, attach_memory, map_memory
from hicachectl.runtime.memory.pool_label import pool_label
from hicachectl.runtime.memory.spec import MappingSpec

__all__ = ["GEOMETRY", "LAYOUT", "N_SLOTS", "attach", "own", "page", "say", "told"]

GEOMETRY = KVGeometry("pair", KVKind.GQA, n_layers=2, token_plane_bytes=64, page_tokens=16)
N_SLOTS = 40
LAYOUT = Layout.PAGE_FIRST_DIRECT
_LABEL = pool_label(GEOMETRY, N_SLOTS, LAYOUT)
_BYTES = N_SLOTS * GEOMETRY.page_bytes


def own(path: str) -> Mapping:
    """Make the pool in a file."""
    return map_memory(_BYTES, MappingSpec(kind=Kind.TMPFS, path=path, named=True, n_threads=1, label=_LABEL))


def attach(source: str | int) -> Mapping:
    """Map the pool of another process."""
    return attach_memory(source, _BYTES, MappingSpec(n_threads=1, label=_LABEL))


def page(mapping: Mapping, slot: int, fill: int | None = None) -> int:
    """Fill a page with a byte, or not, and return its first byte."""
    at = slot * GEOMETRY.page_bytes
    if fill is not None:
        mapping.buffer[at : at + GEOMETRY.page_bytes] = fill
    return int(mapping.buffer[at])


def say(word: object) -> None:
    """Tell the parent."""
    print(word, flush=True)


def told() -> str:
    """Hear from the parent."""
    return sys.stdin.readline().strip()

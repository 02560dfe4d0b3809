"""Files of lines that only grow: whole lines written, and told from one that a kill cut."""

from __future__ import annotations

import os

__all__ = ["whole_bytes", "write_all"]

_PIECE_BYTES = 1 << 16


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data`, however little the kernel takes at a time. Raises OSError where it takes no more."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def whole_bytes(handle: int) -> int:
    """Return the bytes of the whole lines of an open file: up to the end of its last one. Reads its end. Raises OSError."""
    end = os.fstat(handle).st_size
    while end:
        begin = max(0, end - _PIECE_BYTES)
        last = os.pread(handle, end - begin, begin).rfind(b"\n")
        if last >= 0:
            return begin + last + 1
        end = begin
    return 0

"""Small pages, known bytes, a clock that only moves when told; imported by name by the tests of this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.storage.file import FileStorage

PAGE_BYTES = 256
Page = npt.NDArray[np.uint8]
Open = Callable[..., FileStorage]


class FakeClock:
    """Seconds and nanoseconds that move when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        return int(self.now_s * 1e9)


def key_of(i: int) -> bytes:
    return hashlib.sha256(b"page %d" % i).digest()


def page_of(i: int, page_bytes: int = PAGE_BYTES) -> Page:
    return np.random.default_rng(i).integers(0, 256, page_bytes, dtype=np.uint8)


def keys_of(ids: Sequence[int]) -> list[bytes]:
    return [key_of(i) for i in ids]


def pages_of(ids: Sequence[int]) -> list[Page]:
    return [page_of(i) for i in ids]


def buffers(n: int, page_bytes: int = PAGE_BYTES) -> list[Page]:
    return [np.full(page_bytes, 0xEE, dtype=np.uint8) for _ in range(n)]


def stored_ids(storage: FileStorage, ids: Sequence[int]) -> list[int]:
    """Which of `ids` have a file, asked of the file system and not of the storage."""
    return [i for i in ids if storage.path_of(key_of(i)).exists()]


def corrupt(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))

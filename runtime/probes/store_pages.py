"""Pages of a probe in host memory: keys that no traffic has, content that follows from them, and the proof of every byte."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.keys import key64
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.host_pages import HostPages
from hicachectl.runtime.memory.host_pool import HostPool
from hicachectl.runtime.replay.content import PageContent
from hicachectl.runtime.replay.driver import PageMismatch
from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectNamespace, ObjectSpec, whole

__all__ = ["ProbePages", "failure_words", "page_namespace", "probe_keys"]

_POISON = 0xA5


def page_namespace(geometry: KVGeometry, layout: Layout) -> ObjectNamespace:
    """Return the namespace of whole pages of a geometry, as `hicachectl run` names them. Pure."""
    spec = ObjectSpec(
        model=geometry.name, dtype=geometry.dtype, kind=geometry.kind.value, page_tokens=geometry.page_tokens,
        object_layout=layout.object_layout.value, n_layers=geometry.n_layers,
    )  # fmt: skip
    return whole(spec, geometry.page_bytes)


def probe_keys(n: int, seed: int = 0) -> list[bytes]:
    """Return `n` page keys that no traffic has. Pure."""
    return [hashlib.sha256(f"hicachectl probe {seed} {i}".encode()).digest() for i in range(n)]


def failure_words(storage: FileStorage) -> str:
    """Say how often the store failed, by reason. Pure."""
    failures = storage.stats().failures
    return ", ".join(f"{n} {reason}" for reason, n in sorted(failures.items())) or "no reason was counted"


class ProbePages:
    """`n_pages` pages in a host pool of as many slots, in scattered order: written from some slots, read into others.

    Takes the pool's memory; `close` gives it back.
    """

    def __init__(self, geometry: KVGeometry, layout: Layout, n_pages: int) -> None:
        self.geometry = geometry
        self.keys = probe_keys(n_pages)
        self._pool = HostPool(geometry, n_pages, layout)
        self._content = PageContent(geometry.n_planes, geometry.chunk_bytes)
        self._words = self._content.mixed(key64(b"".join(self.keys)))
        self._from = np.random.default_rng(0).permutation(n_pages).astype(np.int32)
        self._into = np.roll(self._from, 1)
        self.fill()

    def sources(self, part: slice) -> HostPages:
        """Return the pages to write."""
        return HostPages(self._pool, self._from[part])

    def targets(self, part: slice) -> HostPages:
        """Return the pages to read into; they are the sources of other pages, so `poison` and `fill` around a read."""
        return HostPages(self._pool, self._into[part])

    def fill(self) -> None:
        """Make the content of every source."""
        for at, slot in enumerate(self._from.tolist()):
            self._pool.write_page(slot, self._page(at))

    def poison(self) -> None:
        """Overwrite everything, so that a page that is not read cannot look right."""
        self._pool.array[...] = _POISON

    def prove(self, where: str) -> int:
        """Compare every byte of every target with what was written; return how many pages. Raises PageMismatch."""
        for at, slot in enumerate(self._into.tolist()):
            got, want = self._pool.read_page(slot).reshape(-1), self._page(at)
            if not np.array_equal(got, want):
                byte = int(np.argmax(got != want))
                raise PageMismatch(
                    f"page {at} of {len(self.keys)} holds {int(got[byte]):#04x} at byte {byte}, not {int(want[byte]):#04x}",
                    where=where,
                    why="what was written under this key is not what came back",
                    hint="check the disk (dmesg, smartctl) before using it as a storage tier",
                )
        return len(self.keys)

    def close(self) -> None:
        """Give the memory back."""
        self._pool.close()

    def _page(self, at: int) -> npt.NDArray[np.uint8]:
        words = self._content.base_words ^ self._words[at]
        page: npt.NDArray[np.uint8] = words.view(np.uint8)[: self.geometry.page_bytes]
        return page

"""A process that writes pages for ever and is killed in the middle: `python crash_child.py ROOT SEED CAPACITY_PAGES FSYNC`.

Prints "open" once the folder is scanned, then a dot a run of pages. Reads some pages back and exits 3 on a wrong byte.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from storage_samples import buffers, keys_of, page_of

from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectSpec, whole

PAGE_BYTES = 1 << 18
SPEC = ObjectSpec("crash", "bfloat16", "gqa", 4, "plane-major", n_layers=2, n_heads=2)


def main(root: str, seed: str, n_pages: str, fsync: str) -> int:
    rng = np.random.default_rng(int(seed))
    capacity_bytes = int(n_pages) * (PAGE_BYTES + 4096)
    storage = FileStorage(Path(root), capacity_bytes, whole(SPEC, PAGE_BYTES), fsync=fsync == "1", metadata_ttl_s=0.01)
    pages = {i: page_of(i, PAGE_BYTES) for i in range(24)}
    print("open", flush=True)
    while True:
        start = int(rng.integers(0, 20))
        ids = list(range(start, start + 4))
        storage.write(keys_of(ids), [pages[i] for i in ids])
        back = buffers(4, PAGE_BYTES)
        for i, page in zip(ids[: storage.read(keys_of(ids), back)], back, strict=False):
            if not np.array_equal(page, pages[i]):
                return 3
        if storage.stats().corrupt_removed:
            return 4
        print(".", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

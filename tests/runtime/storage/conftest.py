"""Fixtures of the storage tests; `storage_samples` beside this file is importable by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hicachectl.runtime.storage.file import FileStorage
from hicachectl.runtime.storage.object_keys import ObjectNamespace, ObjectSpec, whole

sys.path.insert(0, str(Path(__file__).parent))  # import mode importlib puts nothing there

from storage_samples import PAGE_BYTES, FakeClock, Open


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def spec() -> ObjectSpec:
    return ObjectSpec("tiny", "bfloat16", "gqa", 4, "plane-major", n_layers=2, n_heads=2)


@pytest.fixture
def namespace(spec: ObjectSpec) -> ObjectNamespace:
    return whole(spec, PAGE_BYTES)


@pytest.fixture
def open_storage(tmp_path: Path, clock: FakeClock, namespace: ObjectNamespace) -> Iterator[Open]:
    """Open the folder of this test; `n_pages` is the capacity in objects."""
    with ExitStack() as stack:

        def open_it(n_pages: int = 64, root: Path | None = None, **options: object) -> FileStorage:
            arguments = {"clock": clock, "wall_ns": clock.wall_ns, **options}
            used_namespace = arguments.pop("namespace", namespace)
            storage = FileStorage(root or tmp_path / "l3", n_pages * 4096, used_namespace, **arguments)  # type: ignore[arg-type]
            stack.callback(storage.check)
            return stack.enter_context(storage)

        yield open_it

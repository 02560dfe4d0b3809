"""What a request pays for having storage below: next to nothing in the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from memory_storage import MemoryStorage
from small_cache import GEOMETRY, PAGE_TOKENS, SmallCache, tokens_of

from hicachectl.runtime.keys import KeyRun, page_keys


def test_a_match_looks_at_no_more_keys_than_storage_asks_for() -> None:
    class Asked(MemoryStorage):
        keys: Sequence[bytes] = ()

        def exists_prefix(self, keys: Sequence[bytes]) -> int:
            self.keys = keys
            return super().exists_prefix(keys)

    storage = Asked(GEOMETRY.page_bytes, 10)
    with SmallCache(4, 4, storage) as small:
        small.serve([1, 2])
        assert isinstance(storage.keys, KeyRun), "a list of every key would cost the caller milliseconds"


def test_storage_hears_once_a_request_and_in_its_own_thread_that_a_path_was_used() -> None:
    class Touched(MemoryStorage):
        def __init__(self) -> None:
            super().__init__(GEOMETRY.page_bytes, 10)
            self.paths: list[tuple[str, int]] = []

        def touch(self, keys: Sequence[bytes]) -> None:
            self.paths.append((threading.current_thread().name, len(keys)))

    storage = Touched()
    with SmallCache(4, 4, storage) as small:
        tokens = tokens_of([1, 2, 3])
        request = small.cache.match(tokens, page_keys(tokens, PAGE_TOKENS))
        small.cache.restore(request)
        small.cache.wait_restored(request)
        for _ in range(3):  # chunked prefill
            assert small.cache.allocate(request, 1) is not None
            small.cache.publish(request)
        small.cache.release(request)
    assert storage.paths == [("hicache-backup", 3)]

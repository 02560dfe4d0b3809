from __future__ import annotations

from dataclasses import replace

import numpy as np

from hicachectl.tuning.sizing.window import Window

WINDOW = Window(
    np.array([0, 1, 2, 0, 1, 3], np.int32), np.array([0, 3, 6]), np.array([16, 16]), np.array([0, 1]), 16, 4
)  # fmt: skip


def test_the_digest_is_that_of_the_requests_whatever_their_ids_are_called() -> None:
    other = replace(WINDOW, ids=np.array([3, 0, 2, 3, 0, 1], np.int32), session=np.array([1, 0]))
    assert other.sha256() == WINDOW.sha256()


def test_the_digest_tells_other_requests() -> None:
    found = {
        WINDOW.sha256(),
        replace(WINDOW, ids=np.array([0, 1, 2, 0, 2, 3], np.int32)).sha256(),
        replace(WINDOW, starts=np.array([0, 2, 6])).sha256(),
        replace(WINDOW, last_tokens=np.array([16, 15])).sha256(),
        replace(WINDOW, session=np.array([0, 0])).sha256(),
    }
    assert len(found) == 5

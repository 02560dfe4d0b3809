from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes.cuda_runtime import launched_on_processor
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.runtime.transfer import triton_kernels
from hicachectl.runtime.transfer.movers import Side, TorchMover, TritonMover, make_mover, tile_of, word_bytes


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_both_kernels_move_the_same_rows(data: st.DataObject) -> None:
    pages, planes, tokens = (data.draw(st.integers(1, 5)) for _ in range(3))
    row_bytes = data.draw(st.sampled_from([1, 2, 6, 8, 24, 1000, 8 * 1024, 8 * 1536]))
    first = data.draw(st.integers(0, 2))
    width, dtype = word_bytes(row_bytes)
    n_slots = pages + first + 3
    slots = torch.from_numpy(np.array(data.draw(st.permutations(range(n_slots))), dtype=np.int32))
    results = []
    for mover in (TorchMover(), launched_on_processor()):
        rng = np.random.default_rng(1)
        pool = torch.from_numpy(rng.integers(0, 256, n_slots * planes * tokens * row_bytes, dtype=np.uint8))
        near = torch.from_numpy(rng.integers(0, 256, pages * planes * tokens * row_bytes, dtype=np.uint8))
        of_pool = Side(pool.view(dtype), 0, tokens, n_slots * tokens, 1, slots, n_slots)
        of_near = Side(near.view(dtype), 0, planes * tokens, 1, planes)
        for sides in ((of_pool, of_near), (of_near, of_pool)):
            mover.move(
                *sides, row_bytes=row_bytes, first_page=first, n_pages=pages, n_planes=planes, n_tokens=tokens,
                programs=data.draw(st.sampled_from([None, 1, 3])) if mover.kind == "triton" else None,
            )  # fmt: skip
            near += 1
        results.append((pool.numpy().copy(), near.numpy().copy()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert width == dtype.itemsize


@given(st.integers(1, 100_000))
def test_a_tile_is_two_powers_of_two(row_words: int) -> None:
    rows, cols = tile_of(row_words)
    assert rows & (rows - 1) == cols & (cols - 1) == 0
    assert rows >= 1
    assert cols < 2 * row_words


def test_a_kernel_is_chosen_by_name_and_never_replaced() -> None:
    assert make_mover("torch")[0].kind == "torch"
    mover, why = make_mover()
    if triton_kernels.MISSING is None:
        assert isinstance(mover, TritonMover)
    else:
        assert mover.kind == "torch"
        assert "triton" in why
        with pytest.raises(UsageError, match="triton is not there"):
            make_mover("triton")
    with pytest.raises(UsageError, match="'cuda'"):
        make_mover("cuda")

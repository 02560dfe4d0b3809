from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicachectl.errors import CapacityError, UsageError
from hicachectl.runtime.transfer.groups import even_parts, layer_groups, load_groups, merged, planes_that_fit
from hicachectl.runtime.transfer.options import StagingOptions


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "privateuseone"])
def test_loads_have_an_early_first_layer_on_every_accelerator_and_are_whole_on_the_processor(device_type: str) -> None:
    assert load_groups(78, device_type) == layer_groups(78)
    assert load_groups(78, "cpu") == (78,)


@given(st.integers(1, 200), st.integers(1, 10), st.integers(1, 50))
def test_groups_add_up_to_the_layers_and_the_first_is_as_small_as_asked(n: int, first: int, others: int) -> None:
    for groups in (layer_groups(n, first), layer_groups(n, first, others)):
        assert sum(groups) == n
        assert all(size > 0 for size in groups)
        assert groups[0] == min(first, n)
    assert max(layer_groups(n, first, others)[1:], default=0) <= others


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 50), st.integers(0, 2000))
def test_widened_groups_are_large_enough_and_take_no_more_layers_than_they_lack(
    sizes: list[int], layer: int, least: int
) -> None:
    joined = merged(sizes, layer, least)
    assert sum(joined) == sum(sizes)
    if sum(sizes) * layer >= least:
        assert all(size * layer >= least for size in joined)
    if least <= layer:
        assert joined == tuple(sizes)
    ends = {sum(sizes[: i + 1]) for i in range(len(sizes))}
    start = 0
    for size in joined[:-1]:
        assert start + size in ends or (size - 1) * layer < least
        start += size


@given(st.integers(0, 500), st.integers(1, 60))
def test_parts_cover_everything_once_and_differ_by_one_at_most(n: int, most: int) -> None:
    parts = list(even_parts(n, most))
    assert [i for start, end in parts for i in range(start, end)] == list(range(n))
    lengths = {end - start for start, end in parts}
    assert max(lengths, default=0) <= most
    assert max(lengths, default=0) - min(lengths, default=0) <= 1


def test_planes_are_cut_until_a_page_of_them_fits_and_a_chunk_that_does_not_is_refused() -> None:
    assert list(planes_that_fit(range(10), 8, 1000)) == [range(10)]
    assert list(planes_that_fit(range(3, 6), 8, 8)) == [range(3, 4), range(4, 5), range(5, 6)]
    with pytest.raises(CapacityError, match="less than one chunk"):
        list(planes_that_fit(range(3), 9, 8))


def test_options_that_cannot_work_are_refused() -> None:
    assert StagingOptions().buffer_bytes * 2 * 2 == 256 << 20
    for wrong in (
        {"n_buffers": 1},
        {"staging_bytes": 3},
        {"load_programs": 0},
        {"scatter_programs": 0},
        {"beside_programs": 0},
    ):
        with pytest.raises(UsageError):
            StagingOptions(**wrong)

from __future__ import annotations

import pytest

from hicachectl.errors import CapacityError
from hicachectl.runtime.memory.mapping import reserve


def test_a_reserved_range_is_zeroed_writable_and_starts_on_a_huge_page() -> None:
    mapping = reserve(3_000_000)
    assert mapping.buffer.size == 3_000_000
    assert mapping.buffer.ctypes.data % (2 << 20) == 0
    assert not mapping.buffer.any()
    mapping.buffer[-1] = 7
    assert mapping.buffer[-1] == 7


def test_every_step_says_what_it_got_and_a_refused_one_says_why() -> None:
    steps = reserve(4096).steps
    assert [step.name for step in steps] == ["reserve", "advise"]
    assert all(step.ok or step.reason for step in steps)


def test_a_range_the_kernel_refuses_is_a_capacity_error_with_its_terms() -> None:
    with pytest.raises(CapacityError) as caught:
        reserve(1 << 60)
    assert caught.value.terms == (("pool bytes", 1 << 60),)

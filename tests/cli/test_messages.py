"""What an error suggests can be typed as it stands."""

from __future__ import annotations

import pytest
from cli_runner import call


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("run", "--host-memory-chunk-bytes", "4KiB"), "give a size from 1MiB to 64GiB"),
        (("run", "--storage-bytes", "4Gi"), "'4Gi' is not a size, 4GiB is"),
        (("run", "--storage-bytes", "4Pi"), "'4Pi' is not a size, 4PiB is"),
        (("bench", "pool", "--size", "1EiB"), "KiB, MiB, GiB, TiB, PiB (1024) or kB, MB, GB, TB, PB (1000)"),
        (("run", "--geometry", "qwen9"), "presets: qwen3-8b, qwen3-235b-a22b, llama-3.1-8b"),
        (
            ("bench", "model", "--geometry", "tiny-4k", "--prefill-file", "none.csv"),
            "next: name a CSV or JSON file of (tokens, seconds)",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_value_is_told_with_what_would_do(line: tuple[str, ...], words: str) -> None:
    ran = call(*line)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_a_page_size_in_powers_of_ten_is_told_the_power_of_two() -> None:
    ran = call("run", "--limit", "1", "--host-memory-kind", "hugetlb", "--host-memory-hugetlb-bytes", "1GB", "--check")
    assert ran.code == 10
    assert "such as 1.0 GiB (1GB is 10^9 bytes, 1GiB 2^30)" in " ".join(ran.err.split())

from __future__ import annotations

import numpy as np

from hicachectl.runtime.replay.latency import EDGES_S, LatencyHistogram, latency_histogram


def test_every_sample_is_in_the_bin_that_its_edges_name() -> None:
    samples = np.array([0.0, 1e-6, 3e-3, 5e-3, 0.2, 1e9])
    histogram = latency_histogram(samples)
    assert sum(histogram.counts) == len(samples)
    assert len(histogram.edges_s) == len(histogram.counts) + 1
    at = histogram.edges_s.index
    assert histogram.counts[0] == 2  # zero and one microsecond
    assert histogram.counts[at(2e-3)] == 1  # 3 ms
    assert histogram.counts[at(5e-3)] == 1  # an edge belongs to the bin it starts
    assert histogram.counts[-1] == 1
    assert histogram.edges_s[-1] == EDGES_S[-1]


def test_without_samples_there_are_no_bins() -> None:
    assert latency_histogram(np.array([])) == LatencyHistogram((), ())

"""Run a transfer's steps in a row, for callers that need no groups."""

from __future__ import annotations

from hicachectl.runtime.transfer.backends import Submitted, Work

__all__ = ["copy_all"]


def copy_all(work: Work) -> Submitted:
    """Submit every step and close the work; the current stream is then behind all of it."""
    n_submissions = n_segments = 0
    try:
        for step in work.steps:
            took = work.copy(step)
            n_submissions += took.n_submissions
            n_segments += took.n_segments
        work.seal()
    finally:
        work.close()
    return Submitted(n_submissions, n_segments)

"""Laws of the guard that decides whether a refusing disk is tried again."""

from __future__ import annotations

from hicachectl.runtime.storage.disk_full import FIRST_WAIT_S, LONGEST_WAIT_S, DiskGuard, DiskState


def test_a_full_disk_shrinks_once_then_pauses_then_reopens() -> None:
    guard = DiskGuard()
    assert guard.at(0.0) is DiskState.OPEN
    assert guard.refused(0.0, can_shrink=True) is DiskState.SHRUNK
    assert guard.refused(0.1, can_shrink=True) is DiskState.PAUSED
    assert guard.at(guard.retry_at_s - 0.01) is DiskState.PAUSED
    assert guard.at(guard.retry_at_s) is DiskState.OPEN


def test_an_unwritable_disk_pauses_at_once() -> None:
    assert DiskGuard().refused(0.0, can_shrink=False) is DiskState.PAUSED


def test_waits_double_up_to_the_longest_and_a_success_when_open_resets_them() -> None:
    guard, now_s, waits = DiskGuard(), 0.0, []
    for _ in range(9):
        guard.refused(now_s, can_shrink=False)
        waits.append(guard.retry_at_s - now_s)
        now_s = guard.retry_at_s
    assert waits[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S
    guard.succeeded(now_s)
    guard.refused(now_s, can_shrink=False)
    assert guard.retry_at_s - now_s == FIRST_WAIT_S


def test_a_success_inside_the_shrunk_space_does_not_end_the_episode() -> None:
    guard = DiskGuard()
    guard.refused(0.0, can_shrink=True)
    guard.succeeded(0.5)
    assert guard.at(0.9) is DiskState.SHRUNK
    assert guard.refused(0.9, can_shrink=True) is DiskState.PAUSED
    assert guard.retry_at_s - 0.9 == 2 * FIRST_WAIT_S


def test_after_the_wait_a_full_disk_shrinks_anew() -> None:
    guard = DiskGuard()
    guard.refused(0.0, can_shrink=True)
    assert guard.refused(1.5, can_shrink=True) is DiskState.SHRUNK

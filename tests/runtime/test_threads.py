"""Threads whose memory goes next: none is left when the call returns or raises."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hicachectl.runtime.threads import run_threads

LONG_S = 30.0


class Crew:
    """Targets that end when they are stopped, and how many have."""

    def __init__(self) -> None:
        self.stopped, self.n_ended = threading.Event(), 0

    def target(self) -> None:
        assert self.stopped.wait(LONG_S)
        self.n_ended += 1


def fails() -> None:
    raise ValueError("here")


def test_every_target_has_run_when_it_returns_beside_what_this_thread_does() -> None:
    both, seen = threading.Barrier(3), []

    def target() -> None:
        both.wait(LONG_S)
        seen.append(threading.current_thread().name)

    run_threads([target, target], "crew", stop=lambda: seen.append("stop"), meanwhile=lambda: both.wait(LONG_S))
    assert sorted(seen) == ["crew-0", "crew-1"]
    run_threads([], "crew", stop=lambda: seen.append("stop"))
    assert len(seen) == 2


def test_ctrl_c_stops_the_targets_and_comes_through_behind_the_last_of_them_however_often() -> None:
    assert threading.current_thread() is threading.main_thread()
    stopped, inside, stops = threading.Event(), [0], []

    def target() -> None:
        inside[0] += 1
        if not stops:
            os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(LONG_S)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        inside[0] -= 1

    def stop() -> None:
        stops.append(inside[0])
        stopped.set()

    with pytest.raises(KeyboardInterrupt):
        run_threads([target], "crew", stop=stop)
    assert (inside, stops) == ([0], [1])


def test_what_this_thread_raises_stops_the_targets_too() -> None:
    crew = Crew()
    with pytest.raises(ValueError, match="here"):
        run_threads([crew.target, crew.target], "crew", stop=crew.stopped.set, meanwhile=fails)
    assert crew.n_ended == 2


def test_a_thread_that_cannot_be_started_stops_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, start, started = Crew(), threading.Thread.start, []

    def refused(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        run_threads([crew.target, crew.target], "crew", stop=crew.stopped.set)
    assert crew.n_ended == 1


def test_ctrl_c_inside_stop_does_not_keep_the_targets_from_hearing_of_it() -> None:
    crew = Crew()

    def stop() -> None:
        signal.raise_signal(signal.SIGINT)
        crew.stopped.set()

    with pytest.raises(KeyboardInterrupt) as raised:
        run_threads([crew.target], "crew", stop=stop, meanwhile=fails)
    assert crew.n_ended == 1
    assert isinstance(raised.value.__context__, ValueError)

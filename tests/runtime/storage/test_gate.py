"""Laws of the gate between loads and writes."""

from __future__ import annotations

import threading

from hicachectl.runtime.storage.gate import LoadGate


def test_a_writer_passes_when_nothing_loads() -> None:
    assert LoadGate().wait_until_idle(0.0)


def test_a_writer_waits_for_the_last_load() -> None:
    gate, passed = LoadGate(), threading.Event()
    first, second = object(), object()
    gate.load_begins(first)
    gate.load_begins(second)
    assert gate.n_loads == 2
    writer = threading.Thread(target=lambda: gate.wait_until_idle(60.0) and passed.set())
    writer.start()
    gate.load_ends(second)
    assert gate.n_loads == 1
    assert not passed.is_set()
    gate.load_ends(first)
    assert passed.wait(10)
    writer.join()


def test_a_writer_is_not_starved_for_ever() -> None:
    gate = LoadGate()
    gate.load_begins("load")
    assert not gate.wait_until_idle(0.001)


def test_a_load_counts_once_however_often_it_begins_and_ends() -> None:
    gate, load, other = LoadGate(), object(), object()
    gate.load_begins(load)
    gate.load_begins(load)
    gate.load_begins(other)
    gate.load_ends(load)
    gate.load_ends(load)
    assert gate.n_loads == 1

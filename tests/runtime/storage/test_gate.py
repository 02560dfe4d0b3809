"""Laws of the gate between loads and writes."""

from __future__ import annotations

import threading

from hicachectl.runtime.storage.gate import LoadGate


def test_a_writer_passes_when_nothing_loads() -> None:
    assert LoadGate().wait_until_idle(0.0)


def test_a_writer_waits_for_the_last_load() -> None:
    gate, passed = LoadGate(), threading.Event()
    with gate.loading():
        with gate.loading():
            assert gate.n_loads == 2
            writer = threading.Thread(target=lambda: gate.wait_until_idle(60.0) and passed.set())
            writer.start()
        assert gate.n_loads == 1
        assert not passed.is_set()
    assert passed.wait(10)
    writer.join()


def test_a_writer_is_not_starved_for_ever() -> None:
    gate = LoadGate()
    gate.load_begins()
    assert not gate.wait_until_idle(0.001)


def test_the_gate_opens_when_a_load_raises() -> None:
    gate = LoadGate()
    try:
        with gate.loading():
            raise RuntimeError
    except RuntimeError:
        pass
    assert gate.n_loads == 0

"""No registration outlives its process: at exit, on SIGTERM and SIGINT, and after an error nobody caught."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_memory import FakeDriver

from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.register import Registration

CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from fake_memory import FakeDriver
from hicachectl.runtime.memory.mapping import map_memory
from hicachectl.runtime.memory.spec import MappingSpec
class Told(FakeDriver):
    def _ask(self, call, address):
        os.write(1, (call + "\\n").encode())
        return super()._ask(call, address)
{before}
mapping = map_memory(6 << 20, MappingSpec(n_threads=1, largest_registration_bytes=2 << 20), registrar=Told())
view = mapping.buffer
{after}
"""


def ran(tmp_path: Path, after: str, before: str = "") -> tuple[int, list[str], str]:
    program = CHILD.format(tests=str(Path(__file__).parents[2]), before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ("", 0),
        ("mapping.close()", 0),
        ("del mapping, view", 0),
        ("sys.exit(3)", 3),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT),
    ],
)
def test_everything_registered_is_taken_back_once_however_the_process_ends(
    tmp_path: Path, after: str, code: int
) -> None:
    left, told, error = ran(tmp_path, after)
    assert left == code, error
    assert told == ["prepare", "register", "register", "register", "unregister", "unregister", "unregister"]


def test_a_programs_own_handler_is_not_replaced_and_its_way_out_takes_everything_back(tmp_path: Path) -> None:
    own = "def own(*_): print('own', flush=True); sys.exit(7)\nsignal.signal(signal.SIGTERM, own)"
    left, told, error = ran(tmp_path, "os.kill(os.getpid(), signal.SIGTERM); signal.pause()", own)
    assert left == 7, error
    assert told.count("unregister") == 3
    assert "own" in told


def test_signals_mean_again_what_they_did_when_the_last_registration_is_gone() -> None:
    old = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        live, held = LiveRegistrations(at_exit=False), [Registration(FakeDriver(), at) for at in (0, 1)]
        for registration in held:
            live.hold(registration)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        live.drop(held[0])
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        live.drop(held[1])
        live.drop(held[1])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, old)


def test_closing_all_takes_the_last_registration_back_first_and_may_be_repeated() -> None:
    live, driver = LiveRegistrations(at_exit=False), FakeDriver()
    for at in (0, 4096):
        registration = Registration(driver, at)
        registration.add(0, 4096)
        live.hold(registration)
    live.close_all()
    live.close_all()
    assert [at for call, at in driver.log if call == "unregister"] == [4096, 0]

"""Test helpers beside this file (`shared_data`) are importable by name from every test folder."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hypothesis import settings

# Import mode importlib puts nothing on sys.path; the repository root must stay off it (`import runtime` would work).
_HERE = str(Path(__file__).resolve().parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

# A script's background job ignores SIGINT, one under nohup SIGHUP, and what is started here would inherit that: many tests send them.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

settings.register_profile("suite", deadline=None)  # a machine that pauses is no slow program
settings.load_profile("suite")

"""What is left of an unexpected exception: a trace file that the error names."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

from hicachectl import __version__

__all__ = ["write_trace"]


def write_trace(error: BaseException, argv: Sequence[str], folder: str | None = None) -> str | None:
    """Write the traceback of `error` to a new file, mode 0600, and return its path; None where no file can be made.

    The file holds the command line, versions and the traceback; no environment and no local values.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    head = (
        f"hicachectl {__version__}  python {sys.version.split()[0]}  {' '.join(os.uname())}\nargv: {list(argv)!r}\n\n"
    )
    try:
        descriptor, path = tempfile.mkstemp(prefix="hicachectl-trace-", suffix=".txt", dir=folder)
    except OSError:
        return None
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(head + text)
    return path

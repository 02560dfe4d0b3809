"""Log lines on stderr, as text or one JSON object a line, each with the plan or run id when there is one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from hicachectl.render.screen import Screen
from hicachectl.render.text import printable

__all__ = ["LogHandler", "configure"]

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class LogHandler(logging.Handler):
    """Writes records to a screen. `subject` is asked at each record for the current plan or run id."""

    def __init__(self, screen: Screen, *, as_json: bool, subject: Callable[[], str | None]) -> None:
        super().__init__()
        self.screen = screen
        self.as_json = as_json
        self.subject = subject

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record on one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        level, text, subject = record.levelname.lower(), record.getMessage(), self.subject()
        if record.exc_info:
            text += ": " + logging.Formatter().formatException(record.exc_info)
        if self.as_json:
            line = {"time": stamp, "level": level, "logger": record.name, "id": subject, "message": text}
            self.screen.write(json.dumps(line, ensure_ascii=not self.screen.is_unicode) + "\n")
        else:
            self.screen.print(f"{stamp} {level} {subject + ' ' if subject else ''}{record.name}: {printable(text)}")


def configure(screen: Screen, *, verbose: int, as_json: bool, subject: Callable[[], str | None]) -> None:
    """Send the records of the "hicachectl" loggers to `screen`: warnings, with -v info, with -vv debug.

    Replaces the handler of an earlier call; other libraries' loggers stay as they are.
    """
    logger = logging.getLogger("hicachectl")
    for handler in [h for h in logger.handlers if isinstance(h, LogHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(LogHandler(screen, as_json=as_json, subject=subject))
    logger.setLevel(_LEVELS[min(verbose, 2)])
    logger.propagate = False

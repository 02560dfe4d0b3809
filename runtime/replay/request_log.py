"""Requests from an engine's own log: lines that carry the prompt's token ids. No text is kept.

    vLLM     --enable-log-requests, at DEBUG since 0.11:  Request ID details: ... prompt_token_ids: [1, 2, ...]
             before:                                      Received request ID: ... prompt_token_ids: [1, 2, ...]
             (vllm/entrypoints/logger.py)
    SGLang   --log-requests --log-requests-level 3:       Receive: obj=GenerateReqInput(... input_ids=[1, 2, ...] ...)
             (sglang/srt/managers/tokenizer_manager.py)

A block is 64 tokens and is named by its tokens and all before it. Lines whose ids were cut short by the engine are counted
and left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.lines import open_bytes
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import Blocks, TraceRequest

__all__ = ["HOW_TO_LOG", "LOG_BLOCK_TOKENS", "LoggedRequests", "has_logged_requests", "read_request_log"]

LOG_BLOCK_TOKENS = 64
HOW_TO_LOG = "vLLM: --enable-log-requests at DEBUG; SGLang: --log-requests --log-requests-level 3"
_LOOKED_AT_LINES = 20_000
_REQUEST = (
    (re.compile(r"(?:Received request|Request) \S+(?: details)?: "), "prompt_token_ids: ["),
    (re.compile(r"Receive: obj=GenerateReqInput\("), "input_ids=["),
)
_IDS = re.compile(r"\d+(?:, ?\d+)*\]", re.ASCII)
_TIME = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)", re.ASCII)


def has_logged_requests(path: Path) -> bool:
    """Say whether one of the first lines logs a request with its token ids. Reads that part of the file."""
    with open_bytes(path) as file:
        for _ in range(_LOOKED_AT_LINES):
            raw = file.readline()
            if not raw:
                return False
            if _ids_in(raw.decode("utf-8", errors="replace")) is not None:
                return True
    return False


def read_request_log(path: Path, notes: Notes) -> Iterator[TraceRequest]:
    """Read the requests in the order of the log. Keeps one entry a block. Raises UsageError where none has its ids."""
    numbers: dict[tuple[int, bytes], int] = {}
    logged = LoggedRequests(notes, lambda tokens: _blocks(tokens, numbers))
    with open_bytes(path) as file:
        for n, raw in enumerate(file, start=1):
            request = logged.take(raw.decode("utf-8", errors="replace"), f"{path}:{n}")
            if request is not None:
                yield request
    if not logged.n_requests:
        raise UsageError("no logged request has its token ids", where=str(path), hint=HOW_TO_LOG)


class LoggedRequests:
    """Takes the lines of a log one by one; `blocks` names the blocks of a prompt's token ids."""

    def __init__(self, notes: Notes, blocks: Callable[[list[int]], Blocks]) -> None:
        self.n_requests = 0
        self._notes = notes
        self._blocks = blocks
        self._first_s: float | None = None
        self._now_s = 0.0

    def take(self, line: str, where: str) -> TraceRequest | None:
        """Return the request of a line, None where it logs none. Notes one whose ids are cut short."""
        found = _ids_in(line)
        if found is None:
            return None
        if not found:
            self._notes.count("requests were logged with their token ids cut short or missing, and are left out", where)
            return None
        at = _seconds(line)
        if at is not None:
            self._first_s = at if self._first_s is None else self._first_s
            self._now_s = max(self._now_s, at - self._first_s)
        self.n_requests += 1
        return TraceRequest(self.n_requests - 1, self._now_s, len(found), 0, self._blocks(found))


def _ids_in(line: str) -> list[int] | None:
    """The token ids of a logged request, [] where they are cut short, None where the line logs none.

    The last occurrence counts: the prompt, which comes before the ids, may say anything.
    """
    for start, key in _REQUEST:
        begins = start.search(line)
        if begins is None:
            continue
        at = line.rfind(key)
        if at < begins.end():
            return [] if key.rstrip(" [") in line else None
        ids = _IDS.match(line, at + len(key))
        return [int(word) for word in ids[0][:-1].split(",")] if ids else []
    return None


def _blocks(tokens: list[int], numbers: dict[tuple[int, bytes], int]) -> Blocks:
    packed = np.array(tokens, "<u8").tobytes()
    found, before, step = [], -1, 8 * LOG_BLOCK_TOKENS
    for at in range(0, len(packed), step):
        before = numbers.setdefault((before, packed[at : at + step]), len(numbers))
        found.append(before)
    return np.array(found, np.int64)


def _seconds(line: str) -> float | None:
    match = _TIME.search(line)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    try:
        return (datetime(2000, month, day, hour, minute, second) - datetime(2000, 1, 1)).total_seconds()
    except ValueError:
        return None

"""Line-by-line trace formats of others: one object a line becomes one request, in file order.

    mooncake      timestamp (ms), input_length, output_length, hash_ids            512-token blocks, ids global
                  kvcache-ai/Mooncake FAST25-release/traces; ids are prefix-chained
    qwen-bailian  chat_id, parent_chat_id (-1: none), timestamp (s), input_length,
                  output_length, type, turn, hash_ids                              16-token blocks, ids global
                  alibaba-edu/qwen-bailian-usagetraces-anon; ids name the content of a block, not its prefix

Both name the incomplete last block: ceil(input_length / block) ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hicachectl.runtime.replay.lines import Fields
from hicachectl.runtime.replay.notes import Notes
from hicachectl.runtime.replay.request import Blocks, TraceRequest

__all__ = [
    "MOONCAKE_BLOCK_TOKENS",
    "MOONCAKE_KEYS",
    "QWEN_BLOCK_TOKENS",
    "QWEN_KEYS",
    "read_mooncake",
    "read_qwen",
]

MOONCAKE_BLOCK_TOKENS = 512  # kvcache-ai/Mooncake, FAST'25 trace description
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
QWEN_BLOCK_TOKENS = 16  # alibaba-edu/qwen-bailian-usagetraces-anon README, "16 tokens per block"
QWEN_KEYS = ("chat_id", "parent_chat_id", *MOONCAKE_KEYS, "type", "turn")


def read_mooncake(lines: Iterable[Fields]) -> Iterator[TraceRequest]:
    """Read Mooncake's JSON lines. Raises UsageError (file:line) also where an id comes twice in a request."""
    for index, line in enumerate(lines):
        line.check_keys(MOONCAKE_KEYS)
        n_input = line.count("input_length")
        yield TraceRequest(
            index=index,
            time_s=line.seconds("timestamp", unit_s=1e-3),
            input_tokens=n_input,
            output_tokens=line.count("output_length"),
            blocks=_blocks(line, n_input, MOONCAKE_BLOCK_TOKENS, repeats=False),
        )


def read_qwen(lines: Iterable[Fields], notes: Notes) -> Iterator[TraceRequest]:
    """Read Qwen-Bailian's JSON lines; the session is the first chat of the chain of parents.

    A block's id may come twice in a request: its page keys still differ, because they are chained. Keeps one entry a
    chat. Notes requests whose parent is not in the file before them (they start a session) and ids that come twice.
    """
    root_of: dict[int, int] = {}
    for index, line in enumerate(lines):
        line.check_keys(QWEN_KEYS)
        n_input = line.count("input_length")
        chat, parent = line.count("chat_id"), line.count("parent_chat_id", least=-1)
        root = chat
        if parent != -1:
            root = root_of.get(parent, chat)
            if parent not in root_of:
                notes.count("requests name a parent chat that is not before them", line.where)
        root_of[chat] = root
        blocks = _blocks(line, n_input, QWEN_BLOCK_TOKENS, repeats=True)
        if len(set(blocks.tolist())) != len(blocks):
            notes.count("requests hold a block id twice: ids name a block's content, not its prefix", line.where)
        yield TraceRequest(
            index=index,
            time_s=line.seconds("timestamp"),
            input_tokens=n_input,
            output_tokens=line.count("output_length"),
            blocks=blocks,
            session=str(root),
            turn=line.count("turn"),
            kind=line.text("type"),
        )


def _blocks(line: Fields, n_input: int, block_tokens: int, *, repeats: bool) -> Blocks:
    rule = f"input_length {n_input} in blocks of {block_tokens}"
    return line.ids("hash_ids", n_blocks=-(-n_input // block_tokens), count_rule=rule, repeats=repeats)

"""Line-by-line trace formats: one object a line becomes one request, in file order.

mooncake      timestamp (ms), input_length, output_length, hash_ids       512-token blocks, ids global
              kvcache-ai/Mooncake FAST25-release/traces; the last id is the incomplete last block
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hicachectl.runtime.replay.lines import Fields
from hicachectl.runtime.replay.request import Blocks, TraceRequest

__all__ = ["MOONCAKE_BLOCK_TOKENS", "MOONCAKE_KEYS", "read_mooncake"]

MOONCAKE_BLOCK_TOKENS = 512  # kvcache-ai/Mooncake, FAST'25 trace description
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_mooncake(lines: Iterable[Fields]) -> Iterator[TraceRequest]:
    """Read Mooncake's JSON lines: ceil(input_length / 512) ids, prefix-chained, so an id never comes twice."""
    for index, line in enumerate(lines):
        line.check_keys(MOONCAKE_KEYS)
        n_input = line.count("input_length")
        yield TraceRequest(
            index=index,
            time_s=line.seconds("timestamp", unit_s=1e-3),
            input_tokens=n_input,
            output_tokens=line.count("output_length"),
            blocks=_whole_and_tail(line, "hash_ids", n_input, MOONCAKE_BLOCK_TOKENS, "input_length"),
        )


def _whole_and_tail(
    line: Fields, key: str, n_input: int, block_tokens: int, length_key: str, *, repeats: bool = False
) -> Blocks:
    rule = f"{length_key} {n_input} in blocks of {block_tokens}"
    return line.ids(key, n_blocks=-(-n_input // block_tokens), count_rule=rule, repeats=repeats)

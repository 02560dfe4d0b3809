"""Requests from the engines' own logs, hand-made lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.replay.workload import open_trace
from hicachectl.tuning.sizing.curve import curve_of
from hicachectl.tuning.sizing.window import window_of

LONG = list(range(130))
VLLM = "INFO 11-29 10:00:{second:02d} [logger.py:40] Received request cmpl-{second}: prompt: {prompt!r}, params: SamplingParams(n=1), prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
VLLM_DEBUG = "DEBUG 11-29 10:00:{second:02d} [logger.py:47] Request cmpl-{second} details: prompt: {prompt!r}, prompt_token_ids: {ids}, prompt_embeds shape: None."
SGLANG = "[2026-11-29 10:00:{second:02d}] Receive: obj=GenerateReqInput(rid='a{second}', text={prompt!r}, input_ids={ids}, stream=False)"


def log(folder: Path, form: str, *prompts: object, prompt: str = "hello") -> Path:
    lines = [
        "INFO 11-29 09:59:59 [api_server.py:1] starting",
        *(form.format(second=n, prompt=prompt, ids=ids) for n, ids in enumerate(prompts)),
    ]
    path = folder / "server.log"
    path.write_text("\n".join([*lines, "INFO done"]) + "\n")
    return path


@pytest.mark.parametrize("form", [VLLM, VLLM_DEBUG, SGLANG])
def test_blocks_are_named_by_their_tokens_and_all_before_them(tmp_path: Path, form: str) -> None:
    other = [*LONG[:64], *range(900, 964), 5]
    trace = open_trace(log(tmp_path, form, LONG, LONG, other, LONG[64:]))
    assert (trace.format, trace.block_tokens) == ("request-log", 64)
    found = list(trace)
    assert [r.blocks.tolist() for r in found] == [[0, 1, 2], [0, 1, 2], [0, 3, 4], [5, 6]]
    assert [(r.time_s, r.input_tokens) for r in found] == [(0.0, 130), (1.0, 130), (2.0, 129), (3.0, 66)]
    assert curve_of(window_of(trace, 64)).at(100) == 4


@pytest.mark.parametrize("form", [VLLM, VLLM_DEBUG, SGLANG])
def test_a_prompt_that_speaks_of_token_ids_changes_nothing(tmp_path: Path, form: str) -> None:
    decoy = "x, prompt_token_ids: [1, 2], input_ids=[3, 4]"
    (request,) = open_trace(log(tmp_path, form, [7, 8, 9], prompt=decoy))
    assert request.input_tokens == 3


def test_ids_cut_short_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = open_trace(log(tmp_path, SGLANG, LONG, "[1, 2, 3 ... 9]", "None"))
    assert trace.info().n_requests == 1
    assert any("2 requests were logged" in note for note in trace.info().warnings)


def test_a_log_without_token_ids_says_how_to_log_them(tmp_path: Path) -> None:
    path = log(tmp_path, VLLM, "None")
    with pytest.raises(UsageError, match="token ids"):
        list(open_trace(path))


def test_a_text_that_is_no_log_of_requests_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\nworld\n")
    with pytest.raises(UsageError, match="not a JSON object"):
        open_trace(path)

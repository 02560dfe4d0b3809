"""What the choices of `hicachectl run` change in its numbers, and what they must not change."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET
from run_calls import conversation_trace, counts, replay, run
from shared_data import shared_path
from small_traces import conversations, write_trace


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(QUIET, "HICACHECTL_RUN_PREFETCH_POLICY", "wait_complete")  # counts with no deadline in them


def mixed_trace(folder: Path) -> str:
    """120 requests over 24 growing conversations that share a first block, in a fixed random order."""
    rng, requests, turns = random.Random(5), [], [0] * 24
    for _ in range(120):
        one = rng.randrange(24)
        turns[one] = min(turns[one] + 1, 9)
        requests.append([0, *range(1 + 10 * one, 1 + 10 * one + turns[one])])
    return str(write_trace(folder / "mixed.jsonl", requests))


TIERS = ("--device-slots", "10", "--host-slots", "60", "--storage-path", "auto", "--storage-bytes", "512KiB")


def test_the_same_run_twice_gives_the_same_counts_in_every_tier(tmp_path: Path) -> None:
    argv = ("--trace", mixed_trace(tmp_path), *TIERS)
    first, second = counts(replay(*argv)), counts(replay(*argv))
    assert first == second
    assert all(first["pages_hit_by_tier"].values())
    assert first["evicted_pages"]["storage"] > 0


def test_the_same_seed_gives_the_same_counts_and_another_seed_others() -> None:
    argv = ("--synthetic", "multi-turn", "--limit", "40", "--host-slots", "300", "--storage-path", "auto")
    one, again, other = (counts(replay(*argv, "--seed", seed)) for seed in ("1", "1", "2"))
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    ("synthetic", "page_tokens"), [("agent", "64"), ("multi-turn", "512"), ("shared-system", "64"), ("one-shot", "64")]
)
def test_every_synthetic_class_runs(synthetic: str, page_tokens: str) -> None:
    argv = ("--synthetic", synthetic, "--page-tokens", page_tokens, "--limit", "20", "--host-slots", "300")
    assert replay(*argv)["requests"] == 20


def test_layout_and_backend_change_no_hit_and_no_byte(tmp_path: Path) -> None:
    """L3 too: a page leaves and enters the host pool through every layout."""
    argv = ("--trace", mixed_trace(tmp_path), *TIERS)
    seen = [
        counts(replay(*argv, "--layout", layout, "--backend", backend))
        for layout in ("layer_first", "page_first", "page_first_direct")
        for backend in ("cpu", "torch")
    ]
    assert seen[1:] == seen[:1] * 5
    assert seen[0]["pages_restored"] > 0


@pytest.mark.parametrize("page_tokens", ["64", "128", "512"])
def test_any_page_that_divides_the_block_restores_right_bytes(tmp_path: Path, page_tokens: str) -> None:
    data = replay("--trace", conversation_trace(tmp_path), "--page-tokens", page_tokens, "--host-slots", "800")
    assert data["pages_hit"] == data["pages_restored"] == 96 * 512 // int(page_tokens)


@pytest.mark.parametrize("eviction", ["lru", "fifo", "lfu", "slru", "priority"])
@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_every_eviction_order_runs_with_every_write_policy(tmp_path: Path, eviction: str, write_policy: str) -> None:
    data = replay("--trace", mixed_trace(tmp_path), *TIERS, "--eviction", eviction, "--write-policy", write_policy)
    assert data["policies"]["eviction"] == eviction
    assert data["pages_hit_by_tier"]["host"] + data["pages_hit_by_tier"]["storage"] > 0


@pytest.mark.parametrize(("order", "hits"), [("lru", 2), ("fifo", 1), ("lfu", 2)])
def test_fifo_forgets_what_was_just_used(tmp_path: Path, order: str, hits: int) -> None:
    a_b_a_c_a = str(write_trace(tmp_path / "one.jsonl", [[1], [2], [1], [3], [1]]))
    assert alone(a_b_a_c_a, order) == hits


@pytest.mark.parametrize(("order", "hits"), [("lru", 2), ("fifo", 2), ("lfu", 1)])
def test_lfu_keeps_what_was_used_twice(tmp_path: Path, order: str, hits: int) -> None:
    a_a_b_c_b = str(write_trace(tmp_path / "two.jsonl", [[1], [1], [2], [3], [2]]))
    assert alone(a_a_b_c_b, order) == hits


def alone(trace: str, order: str) -> int:
    """Hits of a device tier of two pages with nothing below it."""
    hits: int = replay("--trace", trace, "--device-slots", "2", "--host-slots", "0", "--eviction", order)["pages_hit"]
    return hits


def test_the_free_list_changes_no_hit(tmp_path: Path) -> None:
    argv = ("--trace", mixed_trace(tmp_path), *TIERS)
    assert counts(replay(*argv, "--free-list", "fifo")) == counts(replay(*argv, "--free-list", "lifo"))


@pytest.mark.shared
def test_the_write_policies_give_other_hits_at_some_capacity() -> None:
    trace = str(shared_path("traces/mooncake-fast25/conversation_trace.jsonl.gz"))
    argv = ("--trace", trace, "--limit", "800", "--host-slots", "2000")
    hits = {
        p: replay(*argv, "--write-policy", p)["pages_hit"]
        for p in ("write_through", "write_through_selective", "write_back")
    }
    assert len(set(hits.values())) == 3
    assert hits["write_back"] > hits["write_through"] > hits["write_through_selective"]


def test_selective_copies_down_what_was_used_twice_and_the_ghost_list_what_came_back(tmp_path: Path) -> None:
    """Each conversation leaves the device before its second use: hits alone never copy it down, the ghost list does."""
    trace = str(write_trace(tmp_path / "thrice.jsonl", conversations(12, rounds=3)))
    argv = ("--trace", trace, "--host-slots", "200", "--write-policy", "write_through_selective")
    plain, ghost = replay(*argv), replay(*argv, "--ghost", "1000")
    assert backups(plain) == 0
    assert plain["missed_tokens_by_reason"]["not_backed_up"] == 2 * 96 * 512
    assert backups(ghost) == 96
    assert ghost["pages_hit_by_tier"]["host"] == 96


def test_selective_hits_of_one_is_write_through(tmp_path: Path) -> None:
    argv = ("--trace", mixed_trace(tmp_path), *TIERS)
    one = replay(*argv, "--write-policy", "write_through_selective", "--selective-hits", "1")
    assert counts(one) == counts(replay(*argv, "--write-policy", "write_through"))


def backups(data: Any) -> int:
    pages: int = data["paths"]["device_to_host"]["pages"]
    return pages


def test_a_dear_path_is_recomputed_and_named_restore_dearer(tmp_path: Path) -> None:
    argv = ("--trace", conversation_trace(tmp_path), "--host-slots", "200")
    cheap = replay(*argv, "--restore", "cost")
    dear = replay(*argv, "--restore", "cost", "--restore-margin", "1e9")
    assert cheap["pages_restored"] == 96
    assert dear["pages_hit_by_tier"]["host"] == 96
    assert (dear["pages_restored"], dear["pages_used"]) == (0, 0)
    assert dear["missed_tokens_by_reason"]["restore_dearer"] == 96 * 512


def test_free_prefill_makes_every_restore_dearer_but_not_under_always(tmp_path: Path) -> None:
    Path("hicache.yaml").write_text("run:\n  compute: {a_s: 0, b_s: 0, c_s: 0}\n")
    argv = ("--trace", conversation_trace(tmp_path), "--host-slots", "200")
    assert replay(*argv, "--restore", "cost")["missed_tokens_by_reason"]["restore_dearer"] == 96 * 512
    data = replay(*argv, "--restore", "always")
    assert data["pages_restored"] == 96
    assert data["gain"]["net_s"] < 0


@pytest.mark.parametrize(("verify", "share"), [("all", 1), ("sample:4", 4), ("off", 0)])
def test_verify_says_how_much_it_compared(tmp_path: Path, verify: str, share: int) -> None:
    data = run("--trace", conversation_trace(tmp_path), "--host-slots", "200", "--verify", verify).json["data"]
    assert data["pages_restored"] == 96
    assert data["pages_verified"] == (96 // share if share else 0)
    assert data["verify"] == verify

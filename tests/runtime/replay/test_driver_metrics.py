"""A replay that is looked at while it runs: the numbers are its own, and only this machine can ask for them."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from hicachectl.runtime.cache import CacheConfig
from hicachectl.runtime.cache_events import CacheEvents
from hicachectl.runtime.cost import CostModel, RecomputeCost
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.layout import Backend, Layout
from hicachectl.runtime.metrics import Metrics, serve
from hicachectl.runtime.replay.driver import PageMismatch, Replay, ReplayConfig, Stop
from hicachectl.runtime.replay.record import Recorder
from hicachectl.runtime.replay.synthetic import synthetic
from hicachectl.runtime.tiers import Tier

BLOCK = 512


def config(storage: Path, **more: object) -> ReplayConfig:
    return ReplayConfig(
        geometry=preset("tiny-4k", BLOCK),
        cache=CacheConfig(restore="always", strict=True, seen_keys=10_000),
        layout=Layout.PAGE_FIRST_DIRECT,
        backend=Backend.CPU,
        device_slots=None,
        host_slots=250,
        costs=CostModel(RecomputeCost(0.01, 3e-5, 4e-10)),
        storage_path=storage,
        storage_bytes=64 << 20,
        **more,  # type: ignore[arg-type]
    )


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def summed(got: dict[str, float], name: str) -> float:
    return sum(value for series, value in got.items() if series.partition("{")[0] == name)


def listening() -> set[str]:
    """Local addresses (hex, as the kernel writes them) this process listens on."""
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1])
    return found


def test_a_scrape_during_a_replay_shows_its_requests_and_balances(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    metrics, seen = Metrics(), []

    def look(recorder: Recorder) -> None:
        if recorder.n_requests % 20 == 0:
            got = scrape(server.port)
            assert got["hicache_requests_total"] == recorder.n_requests
            assert got["hicache_verified_pages_total"] == recorder.pages_verified
            assert summed(got, "hicache_prompt_tokens_total") == recorder.column("input_tokens").sum()
            missed = summed(got, "hicache_missed_tokens_total")
            assert missed + recorder.column("used").sum() * BLOCK == recorder.column("input_tokens").sum()
            assert got['hicache_used_tokens{tier="host"}'] == got["sglang:hicache_host_used_tokens"]
            seen.append(got)

    before = listening()
    trace = synthetic("multi-turn", n_requests=100)
    with serve(metrics, 0) as server:
        with Replay(trace, config(tmp_path / "l3"), metrics=metrics) as replay:
            assert replay.run(look) is Stop.COMPLETE
            assert listening() - before == {f"0100007F:{server.port:04X}"}
        end, recorder = scrape(server.port), replay.recorder
    assert len(seen) == 5
    for tier in ("device", "host", "storage"):
        assert end[f'hicache_prompt_tokens_total{{source="{tier}"}}'] > 0
    assert end["hicache_verified_pages_total"] == recorder.pages_verified > 0
    assert end["hicache_mismatched_pages_total"] == 0
    lower = end['hicache_saved_seconds_total{tier="host"}'] + end['hicache_saved_seconds_total{tier="storage"}']
    assert lower == pytest.approx(recorder.column("saved_s").sum())
    assert end["hicache_moved_seconds_total"] == pytest.approx(recorder.moved_s())
    assert listening() == before


def test_a_wrong_page_is_counted_before_the_replay_stops(tmp_path: Path) -> None:
    metrics = Metrics()
    with Replay(synthetic("multi-turn", n_requests=100), config(tmp_path / "l3"), metrics=metrics) as replay:

        def spoil(recorder: Recorder) -> None:
            assert replay.host_pool is not None
            replay.cache.drain(30)
            for slot in range(replay.host_pool.n_slots):
                replay.host_pool.page_bytes_view(slot)[0] ^= 1

        with pytest.raises(PageMismatch):
            replay.run(spoil)
    values = {s.spec.name: s.value for s in metrics.samples()}
    assert values["hicache_mismatched_pages_total"] == 1


def test_a_replay_tells_its_events_and_the_last_belief_is_what_it_holds(tmp_path: Path) -> None:
    events, held = CacheEvents(BLOCK), {"GPU": 0, "CPU_PINNED": 0}

    def take(recorder: Recorder) -> None:
        batch = events.take()
        for event in batch.events if batch is not None else ():
            n = len(event.block_hashes)  # type: ignore[union-attr]
            held[event.medium] += n if type(event).__name__ == "BlockStored" else -n  # type: ignore[union-attr]

    with Replay(synthetic("multi-turn", n_requests=60), config(tmp_path / "l3"), observer=events) as replay:
        replay.run(take)
        take(replay.recorder)
        assert held == {"GPU": replay.cache.tree.n_pages[0], "CPU_PINNED": replay.cache.tree.n_pages[1]}
        assert events.held(Tier.HOST) == held["CPU_PINNED"] > 0
    assert events.orphan_removals == 0

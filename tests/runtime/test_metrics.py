"""Metrics: what is counted is what is exported, here and under SGLang's names."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.metric_catalog import CATALOG, MetricKind
from hicachectl.runtime.metrics import Metrics, prometheus_collector, serve
from hicachectl.runtime.reasons import MissReason


def exported(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    pytest.importorskip("prometheus_client")
    result = {}
    for family in prometheus_collector(metrics).collect():
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in result, "a series exported twice"
            result[key] = sample.value
    return result


def test_a_counter_grows_by_what_it_is_given() -> None:
    metrics = Metrics()
    metrics.counter("hicache_requests_total").inc()
    metrics.counter("hicache_requests_total").inc(4)
    assert [(s.spec.name, s.value) for s in metrics.samples()] == [("hicache_requests_total", 5)]


def test_a_counter_never_shrinks() -> None:
    counter = Metrics().counter("hicache_requests_total")
    with pytest.raises(InvariantBroken):
        counter.inc(-1)
    assert counter.value == 0


def test_threads_lose_no_count() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(5000):
            metrics.counter("hicache_moved_bytes_total", "host_read").inc(2)
            metrics.histogram("hicache_match_seconds").observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counter("hicache_moved_bytes_total", "host_read").value == 40_000
    counts, total = metrics.histogram("hicache_match_seconds").read()
    assert sum(counts) == 20_000
    assert total == 10_000


def test_an_observation_falls_into_the_first_bucket_not_below_it() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("hicache_match_seconds")
    for value in (0.0, 1e-5, 2e-5, 11.0):
        histogram.observe(value)
    counts, _ = histogram.read()
    assert (counts[0], counts[1], counts[-1]) == (2, 1, 1)
    got = exported(metrics)
    assert got["hicache_match_seconds_bucket", (("le", "1e-05"),)] == 2
    assert got["hicache_match_seconds_bucket", (("le", "3e-05"),)] == 3
    assert got["hicache_match_seconds_bucket", (("le", "+Inf"),)] == got["hicache_match_seconds_count", ()] == 4
    assert got["hicache_match_seconds_sum", ()] == pytest.approx(11.00003)


@pytest.mark.parametrize(
    ("kind", "name", "label"),
    [
        ("counter", "hicache_no_such_total", None),
        ("gauge", "hicache_requests_total", None),
        ("counter", "hicache_missed_tokens_total", None),
        ("counter", "hicache_requests_total", "host"),
    ],
)
def test_what_the_catalog_lacks_cannot_be_touched(kind: str, name: str, label: str | None) -> None:
    metrics = Metrics()
    with pytest.raises(InvariantBroken, match=name):
        getattr(metrics, kind)(name, label)
    assert metrics.samples() == []


def test_prompt_tokens_are_exported_as_the_effective_prefill_tokens_of_sglang() -> None:
    metrics = Metrics()
    for source, n_tokens in (("computed", 70), ("device", 10), ("host", 15), ("storage", 5)):
        metrics.counter("hicache_prompt_tokens_total", source).inc(n_tokens)
    got = exported(metrics)
    modes = {"input": 70, "device_hit": 10, "host_hit": 15, "storage_hit": 5}
    assert {m: got["sglang:prefill_effective_tokens_total", (("mode", m),)] for m in modes} == modes
    assert got["hicache_prompt_tokens_total", (("source", "host"),)] == 15


def test_each_path_has_its_own_sglang_name() -> None:
    metrics = Metrics()
    for n, path in enumerate(("host_read", "host_write", "storage_read", "storage_write"), start=1):
        metrics.counter("hicache_moved_tokens_total", path).inc(n)
        metrics.histogram("hicache_transfer_seconds", path).observe(n)
    got = exported(metrics)
    kv = (("pool", "kv"),)
    assert got["sglang:load_back_tokens_total", kv] == 1
    assert got["sglang:hicache_backup_tokens_total", kv] == 2
    assert got["sglang:prefetched_tokens_total", ()] == 3
    assert got["sglang:backuped_tokens_total", ()] == 4
    assert got["sglang:load_back_duration_seconds_sum", ()] == 1
    assert got["sglang:hicache_backup_duration_seconds_count", ()] == 1


def test_only_the_device_counts_as_evicted_for_sglang() -> None:
    metrics = Metrics()
    metrics.counter("hicache_evicted_tokens_total", "host").inc(9)
    assert not any(name.startswith("sglang:") for name, _ in exported(metrics))
    metrics.counter("hicache_evicted_tokens_total", "device").inc(2)
    assert exported(metrics)["sglang:evicted_tokens_total", ()] == 2


def test_a_gauge_shows_the_last_value() -> None:
    metrics = Metrics()
    metrics.gauge("hicache_used_tokens", "host").set(7)
    metrics.gauge("hicache_used_tokens", "host").set(3)
    assert exported(metrics)["sglang:hicache_host_used_tokens", ()] == 3


def test_the_catalog_is_fit_for_prometheus() -> None:
    names = [spec.name for spec in CATALOG]
    assert len(set(names)) == len(names)
    shapes: dict[str, tuple[MetricKind, tuple[str, ...]]] = {}
    for spec in CATALOG:
        assert spec.name.startswith("hicache_")
        assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER)
        assert list(spec.buckets) == sorted(spec.buckets)
        for alias in spec.aliases.values():
            assert alias.name.startswith("sglang:")
            shape = (spec.kind, tuple(key for key, _ in alias.labels))
            assert shapes.setdefault(alias.name, shape) == shape, "one name, two kinds or label sets"


def test_every_miss_reason_can_be_counted() -> None:
    metrics = Metrics()
    for reason in MissReason:
        metrics.counter("hicache_missed_tokens_total", reason.value).inc()
    assert len(exported(metrics)) == len(MissReason)


def test_a_scrape_over_loopback_shows_the_counts_and_closing_frees_the_port() -> None:
    pytest.importorskip("prometheus_client")
    metrics = Metrics()
    metrics.counter("hicache_requests_total").inc(3)
    with serve(metrics, 0) as server:
        address = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(address, timeout=5) as reply:
            assert b"hicache_requests_total 3.0" in reply.read()
        metrics.counter("hicache_requests_total").inc()
        with urllib.request.urlopen(address, timeout=5) as reply:
            assert b"hicache_requests_total 4.0" in reply.read()
    server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


def test_a_taken_port_is_a_clear_error() -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}") as caught:
            serve(Metrics(), port)
    assert caught.value.hint is not None
    with pytest.raises(UsageError):
        serve(Metrics(), 70_000)


def test_without_prometheus_client_counting_works_and_serving_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("prometheus_client", "prometheus_client.exposition", "prometheus_client.metrics_core"):
        monkeypatch.setitem(sys.modules, module, None)
    metrics = Metrics()
    metrics.counter("hicache_requests_total").inc()
    with pytest.raises(UsageError) as caught:
        serve(metrics, 0)
    assert caught.value.hint == "pip install prometheus-client"

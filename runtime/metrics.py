"""Counters, gauges and histograms of the runtime: one registry, cheap to touch, served to Prometheus on demand.

Every metric the runtime may touch stands in `metric_catalog.CATALOG`, with the table of names shared with SGLang; `Metrics`
refuses any other name. Touching one needs the standard library only; `prometheus_collector` and `serve` import
prometheus_client when they are called.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock, RLock
from types import TracebackType
from typing import Any

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.runtime.metric_catalog import CATALOG, MetricKind, MetricSpec

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Metrics",
    "MetricsServer",
    "Sample",
    "prometheus_collector",
    "serve",
]


class Counter:
    """A number that only grows; safe for any thread."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = Lock()
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add `amount` >= 0; raises InvariantBroken below 0."""
        if amount < 0:
            raise InvariantBroken(f"a counter was to grow by {amount}")
        with self._lock:
            self.value += amount


class Gauge:
    """A number that is set; safe for any thread."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """Set the present value."""
        self.value = value


class Histogram:
    """Observations counted by upper bound; safe for any thread."""

    __slots__ = ("_counts", "_lock", "_sum", "bounds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._lock = Lock()
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation in the first bucket whose upper bound is not below it."""
        index = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def read(self) -> tuple[tuple[int, ...], float]:
        """Return the count of each bucket, the one above all bounds last, and the sum, of one moment."""
        with self._lock:
            return tuple(self._counts), self._sum


@dataclass(frozen=True, slots=True)
class Sample:
    """The present state of one series. `counts` are per bucket and only of a histogram, whose `value` is the sum."""

    spec: MetricSpec
    label_value: str | None
    value: float
    counts: tuple[int, ...] = ()


class Metrics:
    """The registry: every series of `CATALOG` that was touched, created at its first use.

    Keep what `counter`, `gauge` and `histogram` return where it is used often: `inc` on it is all the cost.

    >>> metrics = Metrics()
    >>> metrics.counter("hicache_prompt_tokens_total", "host").inc(512)
    >>> [(s.spec.name, s.label_value, s.value) for s in metrics.samples()]
    [('hicache_prompt_tokens_total', 'host', 512)]
    """

    __slots__ = ("_lock", "_moment", "_refreshers", "_series", "_specs")

    def __init__(self, catalog: tuple[MetricSpec, ...] = CATALOG) -> None:
        self._lock = Lock()
        self._moment = RLock()
        self._refreshers: list[Callable[[], None]] = []
        self._specs = {spec.name: spec for spec in catalog}
        self._series: dict[str, dict[str | None, Counter | Gauge | Histogram]] = {spec.name: {} for spec in catalog}

    def counter(self, name: str, label_value: str | None = None) -> Counter:
        """Return the counter of a name and label value; raises InvariantBroken when the catalog has none such."""
        series = self._one(name, MetricKind.COUNTER, label_value)
        assert isinstance(series, Counter)
        return series

    def gauge(self, name: str, label_value: str | None = None) -> Gauge:
        """Return the gauge of a name and label value; raises InvariantBroken when the catalog has none such."""
        series = self._one(name, MetricKind.GAUGE, label_value)
        assert isinstance(series, Gauge)
        return series

    def histogram(self, name: str, label_value: str | None = None) -> Histogram:
        """Return the histogram of a name and label value; raises InvariantBroken when the catalog has none such."""
        series = self._one(name, MetricKind.HISTOGRAM, label_value)
        assert isinstance(series, Histogram)
        return series

    def together(self) -> AbstractContextManager[object]:
        """Return the lock to hold while series that belong together change: a reader sees all of it or nothing."""
        return self._moment

    def refresh_with(self, refresher: Callable[[], None]) -> None:
        """Call `refresher` before each reading, in the reader's thread and inside `together`: for what is cheaper to look up than to count."""
        with self._moment:
            self._refreshers.append(refresher)

    def forget_refresher(self, refresher: Callable[[], None]) -> None:
        """Call `refresher` no more; once this returns it is not running either. Raises ValueError when it was not given."""
        with self._moment:
            self._refreshers.remove(refresher)

    def samples(self) -> list[Sample]:
        """Refresh, and return the state of every touched series at one moment, in catalog order."""
        with self._moment:
            for refresher in self._refreshers:
                refresher()
            with self._lock:
                flat = [
                    (self._specs[n], label, one) for n, group in self._series.items() for label, one in group.items()
                ]
            return [_sample(spec, label, one) for spec, label, one in flat]

    def _one(self, name: str, kind: MetricKind, label_value: str | None) -> Counter | Gauge | Histogram:
        spec = self._specs.get(name)
        if spec is None or spec.kind is not kind or (spec.label is None) != (label_value is None):
            raise InvariantBroken(
                f"no {kind.value} {name!r} with label value {label_value!r} in the catalog of metrics"
            )
        with self._lock:
            group = self._series[name]
            if label_value not in group:
                group[label_value] = _new(spec)
            return group[label_value]


def prometheus_collector(metrics: Metrics) -> Any:
    """Return a collector for a prometheus_client registry; it reads `metrics` at each scrape.

    Raises UsageError when prometheus_client is not installed.
    """
    core = _prometheus("metrics_core")

    class Collector:
        def collect(self) -> Iterator[Any]:
            samples = metrics.samples()
            families: dict[str, Any] = {}
            for sample in samples:
                spec = sample.spec
                own = {} if spec.label is None else {spec.label: str(sample.label_value)}
                _fill(core, families, spec.name, own, sample)
            for sample in samples:
                alias = sample.spec.aliases.get(sample.label_value)
                if alias is not None:
                    _fill(core, families, alias.name, dict(alias.labels), sample)
            yield from families.values()

    return Collector()


class MetricsServer:
    """A running metrics endpoint; `close` ends it and frees the port. A context manager."""

    __slots__ = ("_server", "_thread", "port")

    def __init__(self, server: Any, thread: Any) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop serving, close the socket and wait for the thread; a second call does nothing."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(metrics: Metrics, port: int) -> MetricsServer:
    """Serve `metrics` at http://127.0.0.1:port/metrics from a daemon thread; port 0 picks a free one.

    Only this machine can reach it. Raises UsageError when the port is taken or prometheus_client is not installed.
    """
    client = _prometheus("exposition")
    registry = _prometheus("registry").CollectorRegistry()
    registry.register(prometheus_collector(metrics))
    try:
        server, thread = client.start_http_server(port, addr="127.0.0.1", registry=registry)
    except (OSError, OverflowError) as error:
        why = f"cannot serve metrics at 127.0.0.1:{port}"
        raise UsageError(why, why=str(error), hint="give another --metrics-port, or 0 for a free one") from error
    return MetricsServer(server, thread)


def _prometheus(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"prometheus_client.{module}")
    except ImportError as error:
        what = "cannot export metrics"
        raise UsageError(
            what, why="prometheus_client is not installed", hint="pip install prometheus-client"
        ) from error


def _new(spec: MetricSpec) -> Counter | Gauge | Histogram:
    if spec.kind is MetricKind.COUNTER:
        return Counter()
    return Gauge() if spec.kind is MetricKind.GAUGE else Histogram(spec.buckets)


def _sample(spec: MetricSpec, label_value: str | None, series: Counter | Gauge | Histogram) -> Sample:
    if isinstance(series, Histogram):
        counts, total = series.read()
        return Sample(spec, label_value, total, counts)
    return Sample(spec, label_value, series.value)


def _fill(core: Any, families: dict[str, Any], name: str, labels: dict[str, str], sample: Sample) -> None:
    """Add one series to the family of its name, making the family at its first series."""
    kind = sample.spec.kind
    if name not in families:
        make = {
            MetricKind.COUNTER: core.CounterMetricFamily,
            MetricKind.GAUGE: core.GaugeMetricFamily,
            MetricKind.HISTOGRAM: core.HistogramMetricFamily,
        }[kind]
        families[name] = make(name, sample.spec.help, labels=list(labels))
    family, values = families[name], list(labels.values())
    if kind is not MetricKind.HISTOGRAM:
        family.add_metric(values, sample.value)
        return
    running, buckets = 0, []
    for bound, count in zip((*(str(b) for b in sample.spec.buckets), "+Inf"), sample.counts, strict=True):
        running += count
        buckets.append((bound, running))
    family.add_metric(values, buckets, sample.value)

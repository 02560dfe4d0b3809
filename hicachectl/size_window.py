"""Collects the window of a sizing on live traffic, or takes up the one of a run that was killed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from hicachectl.context import Context
from hicachectl.errors import HicacheError, UsageError
from hicachectl.interrupt import first_interrupt_asks
from hicachectl.progress import PLAIN_INTERVAL_S, Progress
from hicachectl.size_asked import name_run, refuse_other

if TYPE_CHECKING:
    from hicachectl.runtime.replay.key_numbers import KeyNumbers
    from hicachectl.runtime.replay.request import TraceRequest
    from hicachectl.tuning.sizing.live_collect import Collector
    from hicachectl.tuning.sizing.live_journal import LiveRecords
    from hicachectl.tuning.sizing.live_source import LiveSource
    from hicachectl.tuning.sizing.size_journal import SizeJournal

__all__ = ["Collected", "LiveOptions", "collect_window", "refuse_with_live"]

WINDOW = "window.jsonl"
_BAR_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What was asked: the source, how long a window, the publisher's replay endpoint."""

    source: str
    window: str | None
    replay: str | None


@dataclass(frozen=True, slots=True)
class Collected:
    """A complete window: its file, its numbers, its record, and the source that still gives new requests (None: gone)."""

    options: LiveOptions
    path: Path
    numbers: KeyNumbers
    journal: SizeJournal
    records: LiveRecords
    source: LiveSource | None
    seconds: float
    """Of this process, for the time budget."""
    waiting: tuple[TraceRequest, ...] = ()
    """Read from the source already, and not of the window any more."""

    def close(self) -> None:
        """Close the source, and give the run's lock back."""
        self.journal.close()
        if self.source is not None:
            self.source.close()


def refuse_with_live(
    live: str | None, window: str | None, replay: str | None, others: dict[str, object]
) -> LiveOptions | None:
    """Return what was asked of live traffic, None without --live. Raises UsageError for options that do not go together."""
    if live is None:
        alone = [name for name, value in (("--window", window), ("--replay-endpoint", replay)) if value is not None]
        if alone:
            raise UsageError(f"{alone[0]} without --live", where=alone[0], hint="--live SOURCE names what to follow")
        return None
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"--live and {given[0]}", where=given[0], why="a window of live traffic is its own workload",
            hint="--window says how much of it",
        )  # fmt: skip
    return LiveOptions(live, window, replay)


def collect_window(
    cli: Context,
    options: LiveOptions,
    page_tokens: int,
    state: Path,
    *,
    resume: bool,
    budget_s: float | None,
    points: float,
) -> Collected:
    """Collect until the window is long enough (`parse_window`), `budget_s` is over, the source ends, or Ctrl-C.

    Changes `state`: a run's folder with its record and the window's file, which go on with `resume` after a kill. Raises
    UsageError for a source or input that cannot be read, Unsupported without pyzmq, HC-LIVE-EMPTY (exit 9) without a request.
    """
    from hicachectl.tuning.sizing.live_collect import Collector, nothing_came, parse_window
    from hicachectl.tuning.sizing.live_source import open_live
    from hicachectl.tuning.sizing.window_file import seal_of

    limit = replace(parse_window(options.window), budget_s=budget_s)
    asked = {"live": options.source, "window": options.window, "page_tokens": page_tokens}
    if resume:
        journal, records = _records(cli, state, asked)
        if records.window is not None:
            try:
                return _taken_up(cli, options, page_tokens, journal, records)
            except BaseException:
                journal.close()
                raise
        position = (records.collected or {}).get("position")
    else:
        journal, records, position = None, None, None
    try:
        source = open_live(
            options.source, page_tokens, stdin=_stdin(cli, options), replay=options.replay, position=position
        )
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    if journal is None:
        journal, records = _begun(state, asked)
    assert records is not None
    name_run(cli, journal.id)
    collector = Collector(source, journal.folder / WINDOW, page_tokens)
    earlier_s = 0.0
    if records.collected is not None:
        collector.go_on(records.collected["window_bytes"] if position is not None else None)
        earlier_s = float(records.collected["elapsed_s"])
        limit = limit.after(earlier_s)
        cli.note(f"going on with {journal.id}: its window has {collector.n_requests} requests")
    try:
        ended = _collect(cli, collector, limit, journal, earlier_s, points)
        if not collector.n_requests:
            raise nothing_came(source, ended)
        if collector.file is not None:
            collector.file.close()
    except BaseException:
        journal.close()
        source.close()
        raise
    assert collector.window is not None
    record = {
        "file": WINDOW, "requests": collector.n_requests, "seconds": earlier_s + collector.elapsed_s, "ended": ended,
        "distinct_pages": collector.window.distinct_pages, "reads": source.kind, "transport": source.transport,
        "block_tokens": source.block_tokens, "partial": source.partial, "seen": source.seen(),
        "notes": list(source.notes.sentences()), **seal_of(collector.path),
    }  # fmt: skip
    journal.append("window", **record)
    records.window = record
    return Collected(
        options,
        collector.path,
        collector.window.numbers,
        journal,
        records,
        source,
        collector.elapsed_s,
        tuple(collector.waiting),
    )


def _collect(
    cli: Context, collector: Collector, limit: Any, journal: SizeJournal, earlier_s: float, points: float
) -> str:
    def checkpoint(done: Collector) -> None:
        journal.append(
            "collected", window_bytes=0 if done.file is None else done.file.n_bytes, requests=done.n_requests,
            elapsed_s=earlier_s + done.elapsed_s, position=done.source.position(),
        )  # fmt: skip

    until = (
        "Ctrl-C" if limit.seconds is None and limit.requests is None and limit.budget_s is None else "it is long enough"
    )
    cli.note(
        f"{journal.id}: following {collector.source.name} until {until}; Ctrl-C goes on with what came, a second one aborts"
    )
    with (
        first_interrupt_asks() as asked,
        cli.progress("window", total=limit.requests, unit="requests") as progress,
    ):
        telling = _Telling(progress, points)
        ended = collector.collect(limit, asked=asked, checkpoint=checkpoint, tell=telling.tell)
        telling.show(collector, 0.0)
        return ended


class _Telling:
    """Says from time to time what the window holds; seldom enough that saying so costs little."""

    def __init__(self, progress: Progress, points: float) -> None:
        self._progress, self._points = progress, points
        self._next_s = monotonic()

    def tell(self, collector: Collector, quiet_s: float) -> None:
        self._progress.update(collector.n_requests)
        if monotonic() >= self._next_s and self._progress.kind != "none":
            self.show(collector, quiet_s)

    def show(self, collector: Collector, quiet_s: float) -> None:
        began = monotonic()
        self._progress.update(collector.n_requests)
        self._progress.enter(_words(collector, quiet_s, self._points))
        interval = _BAR_INTERVAL_S if self._progress.kind == "bar" else PLAIN_INTERVAL_S
        now = monotonic()
        self._next_s = now + max(interval, 20 * (now - began))


def _words(collector: Collector, quiet_s: float, points: float) -> str:
    """What the window holds, in words. Pure."""
    from hicachectl.tuning.sizing.confidence import Confidence
    from hicachectl.units import format_count

    window = collector.window
    quiet = f", nothing new for {quiet_s:.0f} s" if quiet_s >= PLAIN_INTERVAL_S else ""
    if window is None or window.ceiling is None:
        return f"no request yet{quiet}" if window is None else f"no full page yet{quiet}"
    growth = window.growth(points)
    sure = Confidence(growth, None, None)
    moved = "" if sure.moved is None else f", {100 * sure.moved:+.0f} % over the last quarter"
    short = " (lower bound, window too short)" if sure.too_short else ""
    return (
        f"{format_count(window.distinct_pages)} distinct pages, unlimited hit rate {100 * window.ceiling:.1f} %, "
        f"plateau {format_count(growth[-1].plateau_pages)}{moved}{short}{quiet}"
    )


def _records(cli: Context, state: Path, asked: dict[str, Any]) -> tuple[SizeJournal, LiveRecords]:
    from hicachectl.tuning.sizing.live_journal import read_live_records
    from hicachectl.tuning.sizing.size_journal import SizeJournal

    journal, found = SizeJournal.go_on(state)
    try:
        records = read_live_records(journal)
        refuse_other(found.id, found.folder, records.asked, asked)
    except BaseException:
        journal.close()
        raise
    name_run(cli, found.id)
    return journal, records


def _begun(state: Path, asked: dict[str, Any]) -> tuple[SizeJournal, LiveRecords]:
    from hicachectl.tuning.sizing.live_journal import LiveRecords
    from hicachectl.tuning.sizing.size_journal import SizeJournal

    return SizeJournal.begin(state, asked), LiveRecords(asked)


def _taken_up(
    cli: Context, options: LiveOptions, page_tokens: int, journal: SizeJournal, records: LiveRecords
) -> Collected:
    """A window that was complete; the source is opened again for the steps, and does without where it is gone."""
    from hicachectl.runtime.replay.key_numbers import KeyNumbers
    from hicachectl.runtime.replay.stored_paths import MOST_BLOCKS
    from hicachectl.tuning.sizing.live_source import open_live
    from hicachectl.tuning.sizing.window_file import check_seal

    now = records.drift or records.window
    assert now is not None
    check_seal(journal.folder / now["file"], now)
    source: LiveSource | None = None
    try:
        source = open_live(options.source, page_tokens, stdin=_stdin(cli, options), replay=options.replay)
    except HicacheError as error:
        cli.note(f"the source is gone, steps replay the saved window: {error}")
    meanwhile = "" if source is None else "; requests that came since it stopped are not seen"
    cli.note(f"going on with {journal.id}: its window is complete, {len(records.done)} steps are done{meanwhile}")
    return Collected(options, journal.folder / now["file"], KeyNumbers(MOST_BLOCKS), journal, records, source, 0.0)


def _stdin(cli: Context, options: LiveOptions) -> int:
    """The descriptor of standard input, where it is the source. Raises UsageError for a terminal."""
    if options.source != "-":
        return 0
    if cli.stdin.isatty():
        raise UsageError(
            "standard input is a terminal",
            where="--live",
            hint="pipe a trace into it: ... | hicachectl tune size --live -",
        )
    return cli.stdin.fileno()

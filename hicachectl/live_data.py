"""What a sizing on live traffic adds to its document, with the reason of every null, and its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicachectl.envelope import Diagnostic, Fact, Severity, plain

if TYPE_CHECKING:
    from hicachectl.size_live import LiveSizing

__all__ = ["TOLD_FROM", "live_data", "live_findings"]

TOLD_FROM = {
    "request-log": "prompts that were asked",
    "trace/1": "requests of a trace",
    "kv-events": "blocks that were stored",
}
"""What a source says of requests, by its kind."""
_GAPS = {
    "missed_batches": "batches of events were missed",
    "broken": "lines or batches were broken",
    "cut": "times the file was cut, so that what was not read yet was lost",
    "publisher_restarts": "times the publisher was restarted",
}


def live_data(run: LiveSizing) -> tuple[dict[str, Any], dict[str, Fact]]:
    """Return the part of the document under /live, and its facts. Pure."""
    collected = run.collected
    window = collected.records.window
    assert window is not None
    facts: dict[str, Fact] = {}
    steps = []
    for index, step in enumerate(run.live_steps):
        steps.append(
            {
                "pages": step.pages,
                "replayed": step.replayed.value,
                "requests": step.requests,
                "total_pages": step.total_pages,
                "measured_hit_rate": step.rate,
                "exact_hit_rate": step.exact_rate,
                "predicted_hit_rate": step.predicted_rate,
                "slack": step.slack,
                "gain": step.gain,
                "gain_over_pages": step.gain_over,
                "verdict": step.verdict.value,
                "reason": step.reason,
            }
        )
        for name, value in (("predicted_hit_rate", step.predicted_rate), ("slack", step.slack)):
            if value is None:
                facts[f"/live/steps/{index}/{name}"] = Fact(reason=step.reason)
        if step.gain is None:
            for name in ("gain", "gain_over_pages"):
                facts[f"/live/steps/{index}/{name}"] = Fact(
                    reason="not compared: no larger than the size chosen then, or another was chosen since"
                )
    if run.drift is None:
        facts["/live/drift"] = Fact(reason="no step said that the traffic drifted")
    events = window["reads"] == "kv-events"
    data = {
        "source": collected.options.source,
        "transport": window["transport"],
        "reads": window["reads"],
        "told_from": TOLD_FROM[window["reads"]],
        "sees_requests_that_hit_entirely": not events,
        "block_tokens": window["block_tokens"],
        "window": {
            "file": str(collected.journal.folder / window["file"]),
            "requests": window["requests"],
            "distinct_pages": window["distinct_pages"],
            "seconds": window["seconds"],
            "ended": window["ended"],
        },
        "seen": window["seen"],
        "notes": window["notes"],
        "too_long_requests": run.too_long_requests,
        "steps": steps,
        "drift": None if run.drift is None else plain(run.drift),
    }
    return data, facts


def live_findings(live: dict[str, Any]) -> list[Diagnostic]:
    """Say what the source could not tell, what was lost, and whether the traffic drifted. Pure."""
    found = []
    if not live["sees_requests_that_hit_entirely"]:
        found.append(
            Diagnostic(
                "HC-LIVE-STORED", Severity.NOTE,
                "KV events say which blocks were stored, not which were looked up: requests that hit entirely are not in the "
                "window, so hit rate and plateau are estimates, and reuse is a lower bound",
                subject="live", hint="follow the engine's request log for every request",
            )
        )  # fmt: skip
    lost = [f"{live['seen'][name]} {words}" for name, words in _GAPS.items() if live["seen"].get(name)]
    if lost:
        found.append(
            Diagnostic(
                "HC-LIVE-GAP", Severity.WARN, f"the window has gaps: {'; '.join(lost)}", subject="live",
                hint="--replay-endpoint fetches missed batches; see the notes for the first of each",
            )
        )  # fmt: skip
    if live["drift"] is not None:
        drift = live["drift"]
        found.append(
            Diagnostic(
                "HC-LIVE-DRIFT", Severity.WARN,
                f"{drift['reason']}; the curve was made anew from the newest {drift['requests']} requests, "
                f"{drift['new_requests']} of them new (before: {drift['chosen_before_pages']} pages)",
                subject="live/drift", hint="collect a longer window, over the hours that the pool must serve",
            )
        )  # fmt: skip
    return found

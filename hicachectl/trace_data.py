"""The documents of `hicachectl trace` as plain data, with the reason of every null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicachectl.envelope import Fact, plain
from hicachectl.errors import UsageError

if TYPE_CHECKING:
    from hicachectl.runtime.replay.request import Trace
    from hicachectl.tuning.sizing.measure import Measured

__all__ = ["curve_data", "info_data"]

QUANTILES = (10, 50, 90, 99)


def curve_data(
    measured: Measured, format_name: str, path: str, page_bytes: int | None
) -> tuple[dict[str, Any], dict[str, Fact]]:
    """Return the document of `trace curve` and its facts. Pure. `page_bytes` adds sizes in bytes."""
    data: dict[str, Any] = {"path": path, "format": format_name, "page_bytes": page_bytes, **plain(measured)}
    reasons = data.pop("reasons")
    why = "no --geometry was given"
    facts = {f"/{name}": Fact(reason=text) for name, text in reasons.items() if name in data}
    data["ceiling_error_reason"] = reasons.get("ceiling_error")
    if data["ceiling_error_reason"] is None:
        facts["/ceiling_error_reason"] = Fact(reason="the interval is known")
    if page_bytes is None:
        facts["/page_bytes"] = Fact(reason=why)
    for index, row in enumerate(data["curve"]):
        row["capacity_bytes"] = None if page_bytes is None else row["capacity_pages"] * page_bytes
        if page_bytes is None:
            facts[f"/curve/{index}/capacity_bytes"] = Fact(reason=why)
        if row["hit_rate_error"] is None:
            facts[f"/curve/{index}/hit_rate_error"] = Fact(reason=reasons["hit_rate_error"])
    return data, facts


def info_data(trace: Trace, path: str) -> tuple[dict[str, Any], dict[str, Fact]]:
    """Return the document of `trace info` and its facts. Reads the trace twice, streaming.

    Raises UsageError for a broken line.
    """
    import numpy as np

    from hicachectl.tuning.sizing.numbering import Numbering

    found = trace.info()
    lengths, sessions, longest = [], set(), 0
    numbering, not_prefixes = Numbering(), None
    for request in trace:
        lengths.append(request.input_tokens)
        sessions.add(request.session)
        longest = max(longest, len(request.blocks))
        if not_prefixes is None:
            try:
                numbering.add_one(request.scope, request.blocks)
            except UsageError as error:  # ids that name contents: everything else can still be told
                not_prefixes = error.what
    named = None not in sessions
    data = {
        "path": path,
        "format": found.format,
        "block_tokens": found.block_tokens,
        "requests": found.n_requests,
        "sessions": len(sessions) if named else None,
        "input_tokens": found.total_input_tokens,
        "output_tokens": found.total_output_tokens,
        "blocks": found.total_blocks,
        "distinct_blocks": numbering.n_distinct if not_prefixes is None else None,
        "longest_request_blocks": longest,
        "longest_request_tokens": found.max_input_tokens,
        "names_partial_blocks": found.names_partial_blocks,
        "id_scopes": found.scopes,
        "span_s": found.span_s,
        "input_tokens_quantiles": {str(q): int(np.percentile(lengths, q, method="nearest")) for q in QUANTILES},
        "notes": list(found.warnings),
    }
    facts = {}
    if not named:
        facts["/sessions"] = Fact(reason="the format names no sessions")
    if not_prefixes is not None:
        facts["/distinct_blocks"] = Fact(reason=not_prefixes)
    return data, facts

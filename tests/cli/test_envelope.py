"""Values, facts, status, exit code."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from cli_runner import call

from hicachectl.context import read_origin
from hicachectl.envelope import (
    Confidence,
    Diagnostic,
    Fact,
    Origin,
    Result,
    Severity,
    Status,
    envelope,
    exit_code_of,
    plain,
    status_of,
    unexplained_nulls,
)
from hicachectl.errors import ExitCode, StorageError, StorageFault

ORIGIN = Origin("0.1.0", "c12-07", "5d1e", "2026-11-29T14:02:11Z")


def finding(severity: Severity) -> Diagnostic:
    return Diagnostic("HC-IDO-OFF", severity, "IDO off; others on")


def test_numbers_stay_numbers_and_not_a_number_is_refused() -> None:
    assert plain({"a": np.int64(3), "b": np.float32(0.5), "c": np.arange(2), "d": Path("/x"), "e": (Severity.NOTE,)}) == {
        "a": 3, "b": 0.5, "c": [0, 1], "d": "/x", "e": ["note"],
    }  # fmt: skip
    for value in (float("nan"), float("inf"), np.float64("nan")):
        with pytest.raises(ValueError, match="None and a reason"):
            plain({"rate": value})
    with pytest.raises(TypeError, match="no place in a document"):
        plain(object())


def test_a_list_keeps_its_order_and_a_truth_value_stays_one() -> None:
    assert plain([3, True, "a", None, 1]) == [3, True, "a", None, 1]


def test_facts_are_merged_into_data_under_their_pointers() -> None:
    facts = {"/uplinks/0/cap": Fact("/sys/x", Confidence.READ), "/node": Fact(reason="no numa_node file")}
    document = envelope(
        Result("hicachectl.topo/1", {"node": None, "facts": {"/a": {"source": "s"}}}, facts=facts), ORIGIN
    )
    assert document["data"]["facts"] == {
        "/a": {"source": "s"},
        "/uplinks/0/cap": {"source": "/sys/x", "confidence": "read"},
        "/node": {"reason": "no numa_node file"},
    }
    assert unexplained_nulls(document["data"]) == []


def test_a_null_without_a_reason_is_found() -> None:
    data = {"a": None, "b": [{"c": None}, {"c": None, "reason": "x"}], "d": None, "d_reason": "y", "e": [None]}
    assert unexplained_nulls(data) == ["/a", "/b/0/c", "/e/0"]


def test_the_envelope_has_exactly_its_fields_in_order() -> None:
    document = envelope(Result("hicachectl.topo/1", {}), ORIGIN)
    assert list(document) == [
        "schema", "tool_version", "host", "boot_id", "collected_at", "source", "status", "exit_code", "data", "diagnostics",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ([], Status.OK),
        ([Severity.NOTE], Status.FINDINGS),
        ([Severity.ERROR, Severity.WARN], Status.FINDINGS),
        ([Severity.NOTE, Severity.FAILURE], Status.FAILED),
    ],
)
def test_status_follows_from_the_diagnostics_alone(severities: list[Severity], status: Status) -> None:
    assert status_of([finding(s) for s in severities]) is status


def test_findings_exit_zero_unless_fail_on_is_given() -> None:
    found = (finding(Severity.WARN),)
    assert exit_code_of(Result("s/1", {}, found)) is ExitCode.OK
    assert exit_code_of(Result("s/1", {}, found, fail_on=Severity.ERROR)) is ExitCode.OK
    assert exit_code_of(Result("s/1", {}, found, fail_on=Severity.WARN)) is ExitCode.DIFFERS
    assert exit_code_of(Result("s/1", {}, found, fail_on=Severity.NOTE)) is ExitCode.DIFFERS


def test_a_failure_never_exits_zero() -> None:
    assert exit_code_of(Result("s/1", {}, (finding(Severity.FAILURE),))) is ExitCode.BUG


def test_with_error_keeps_data_and_takes_the_exit_code() -> None:
    broken = Result("s/1", {"n": 1}).with_error(StorageError("x", fault=StorageFault.FULL))
    assert (broken.data, exit_code_of(broken)) == ({"n": 1}, ExitCode.DEGRADED)
    assert status_of(broken.diagnostics) is Status.FAILED


def test_a_snapshot_names_its_host_and_an_unread_boot_id_is_null_with_a_reason(tmp_path: Path) -> None:
    root = tmp_path / "8n8x-4up16"
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/hostname").write_text("机房-7\n")
    origin = read_origin(root, now=datetime(2026, 11, 29, 14, 2, 11, tzinfo=timezone.utc))
    assert (origin.host, origin.source, origin.collected_at) == ("机房-7", "8n8x-4up16", "2026-11-29T14:02:11Z")
    assert origin.boot_id is None
    assert "boot_id" in origin.unknown["boot_id"]


def test_the_live_host_is_called_live() -> None:
    assert call("fake", "-o", "json").json["source"] == "live"

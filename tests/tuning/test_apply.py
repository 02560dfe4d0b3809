"""Apply: all changes and verified, or none, or what is left is named."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fakes.kernel import Temper
from hosts.spec import CAPABILITIES
from tuned_host import (
    CARDS,
    IDO,
    KNOBS,
    THP,
    WANTED,
    TunedHost,
    choose,
    file_knob,
    ido_knob,
    make_host,
    open_host,
    small_spec,
)

from hicachectl.errors import ExitCode, HicacheError, HostError, PermissionDenied, PlanStale, Unsupported, UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.item import ItemKind
from hicachectl.tuning.journal import RecordKind, read_journal
from hicachectl.tuning.lock import hold_lock
from hicachectl.tuning.outcome import ApplyReport, ItemOutcome, ItemResult, RunOutcome


def applied(host: TunedHost, wanted: dict[str, str] | None = None, **options: Any) -> ApplyReport:
    return host.session.apply(host.session.plan(choose(wanted)), ApplyOptions(**options))


def results(report: ApplyReport) -> dict[str, str]:
    return {outcome.item.id: outcome.result.value for outcome in report.items}


def test_every_change_is_written_once_read_back_and_recorded(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    report = applied(host)
    assert report.outcome is RunOutcome.APPLIED
    assert set(results(report).values()) == {"ok"}
    assert [path for path, _ in host.kernel.log if path.endswith("config")] == [
        f"/sys/bus/pci/devices/{card}/config" for card in CARDS
    ]
    assert [what for path, what in host.kernel.log if path.endswith("config")] == ["0x88=0003"] * 3
    assert len(host.kernel.log) == len(report.items) == 7
    kinds = [record.kind for record in read_journal(host.state.folder(report.run_id)).records]
    assert kinds == [RecordKind.BEGIN, *[RecordKind.INTENT, RecordKind.DONE] * 7, RecordKind.END]


def test_a_plan_applied_twice_is_stale_the_second_time_for_its_values_are_there(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.session.apply(plan, ApplyOptions())
    writes = len(host.kernel.log)
    report = host.session.apply(plan, ApplyOptions())
    assert report.outcome is RunOutcome.NOTHING
    assert set(results(report).values()) == {"already"}
    assert len(host.kernel.log) == writes


def test_until_stops_after_the_named_change(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    report = applied(host, until="thp.defrag")
    assert results(report) == {"thp.enabled": "ok", "thp.defrag": "ok"}
    with pytest.raises(UsageError, match="not a change of this plan"):
        applied(host, until="thp.colour")


# -- a device that does not do as it is told --------------------------------------------------------------------------


def test_a_function_that_keeps_the_old_value_is_unsupported_and_the_others_stay(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[1]] = Temper.REFUSES
    report = applied(host)
    assert report.outcome is RunOutcome.APPLIED
    assert results(report)[f"pcie.ido@{CARDS[1]}"] == "unsupported"
    assert [host.word(card) & IDO for card in CARDS] == [IDO, 0, IDO]
    assert host.session.rollback().outcome is RunOutcome.ROLLED_BACK
    assert [host.word(card) & IDO for card in CARDS] == [0, 0, 0]


def test_a_recipe_that_must_be_implemented_fails_the_run_when_it_is_not(tmp_path: Path) -> None:
    host = make_host(tmp_path, knobs=(*KNOBS[:4], ido_knob(on_not_implemented="fail")))
    host.kernel.tempers[CARDS[2]] = Temper.REFUSES
    before = host.everything()
    report = applied(host)
    assert report.outcome is RunOutcome.UNDONE
    assert host.everything() == before


@pytest.mark.parametrize("temper", [Temper.REVERTS, Temper.GARBLES])
@pytest.mark.parametrize("at", range(3))
def test_a_value_that_does_not_stay_puts_everything_back(tmp_path: Path, temper: Temper, at: int) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[at]] = temper
    before = host.everything()
    told: list[ItemOutcome] = []
    report = host.session.apply(host.session.plan(choose()), ApplyOptions(), on_item=told.append)
    error = report.error()
    assert error is not None
    assert error.exit_code is ExitCode.UNDONE
    assert results(report)[f"pcie.ido@{CARDS[at]}"] == "failed"
    assert {results(report)[name] for name in ("thp.enabled", "tmpfs.huge", "numa.balancing")} == {"restored"}
    assert host.everything() == before
    assert [outcome.item.id for outcome in told if outcome.result is ItemResult.FAILED] == [f"pcie.ido@{CARDS[at]}"]


def test_a_device_that_falls_off_is_named_and_the_rest_is_put_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[1]] = Temper.FALLS_OFF
    before = host.everything()
    report = applied(host)
    error = report.error()
    assert error is not None
    assert error.exit_code is ExitCode.PARTIAL
    assert error.left == (f"pcie.ido@{CARDS[1]}",)
    changed = [name for name, data in host.everything().items() if before[name] != data]
    assert len(changed) == 1
    assert changed[0].endswith(f"{CARDS[1]}/config")


def test_a_value_that_cannot_be_put_back_is_named(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[0]] = Temper.STICKS
    host.kernel.tempers[CARDS[2]] = Temper.REVERTS
    error = applied(host).error()
    assert error is not None
    assert error.exit_code is ExitCode.PARTIAL
    assert error.left == (f"pcie.ido@{CARDS[0]}",)
    assert host.word(CARDS[0]) & IDO == IDO
    assert host.session.states()[-1].outcome is RunOutcome.PARTIAL


def test_a_refused_write_in_the_middle_puts_everything_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    kernel = host.kernel
    write = kernel.write_at

    class Tired(type(kernel)):  # type: ignore[misc]
        def write_at(self, path: str, offset: int, data: bytes) -> None:
            if CARDS[1] in path and data != b"\0\0":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            write(path, offset, data)

    host = replace_kernel(host, Tired(kernel.root))
    report = applied(host)
    assert report.outcome is RunOutcome.UNDONE
    assert "the write was refused: Input/output error" in str(report.failure)
    assert host.everything() == before


def replace_kernel(host: TunedHost, kernel: Any) -> TunedHost:
    return TunedHost(host.root, kernel, replace(host.session, kernel=kernel))


def test_a_signal_between_two_changes_puts_everything_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    signals = iter([None, None, "SIGTERM"])
    report = host.session.apply(host.session.plan(choose()), ApplyOptions(), stop=lambda: next(signals, None))
    assert (report.outcome, report.stopped_by) == (RunOutcome.UNDONE, "SIGTERM")
    assert host.everything() == before
    assert list(results(report).values()) == ["restored", "restored", *["not-tried"] * 5]


def test_a_bug_in_the_middle_puts_everything_back_and_is_raised_on(tmp_path: Path) -> None:
    def bug(item: Any) -> None:
        raise ZeroDivisionError("a bug")

    host = make_host(tmp_path, knobs=(file_knob("thp.enabled", f"{THP}/enabled", proof="thp"), *KNOBS[1:]), observe=bug)
    before = host.everything()
    with pytest.raises(ZeroDivisionError):
        applied(host)
    assert host.everything() == before
    assert host.session.states()[-1].outcome is RunOutcome.UNDONE


# -- effects ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sight:
    held: bool | None
    text: str = "0 of 64 MiB"


@pytest.mark.parametrize(("held", "outcome"), [(True, "applied"), (None, "applied"), (False, "undone")])
def test_success_is_an_observed_effect(tmp_path: Path, held: bool | None, outcome: str) -> None:
    knobs = (file_knob("thp.enabled", f"{THP}/enabled", proof="thp"), *KNOBS[1:])
    host = make_host(tmp_path, knobs=knobs, observe=lambda item: Sight(held))
    report = applied(host)
    assert report.outcome.value == outcome
    (first,) = (one for one in report.items if one.item.id == "thp.enabled")
    if held is not False:
        assert first.proof == "0 of 64 MiB"
    else:
        assert "has no effect" in str(first.reason)


@dataclass(frozen=True)
class Gain:
    keep: bool
    text: str = "1.02x, noise 0.05"


@pytest.mark.parametrize("keep", [True, False])
def test_under_prove_a_change_without_gain_is_taken_back_and_the_others_stay(tmp_path: Path, keep: bool) -> None:
    seen: list[list[int]] = []
    host = make_host(tmp_path)

    def measure(items: Any, set_on: Any, set_off: Any, stop: Any) -> Gain:
        for switch in (set_off, set_on, set_off):
            switch()
            seen.append([host.word(card) & IDO for card in CARDS])
        return Gain(keep)

    knobs = (*KNOBS[:4], ido_knob(probe="load"))
    host = open_host(tmp_path / "host", knobs=knobs, measure=measure)
    report = applied(host, prove=True)
    assert report.outcome is RunOutcome.APPLIED
    assert seen == [[0, 0, 0], [IDO] * 3, [0, 0, 0]]
    assert [host.word(card) & IDO for card in CARDS] == ([IDO] * 3 if keep else [0, 0, 0])
    assert {results(report)[f"pcie.ido@{card}"] for card in CARDS} == {"ok" if keep else "no-gain"}
    assert results(report)["thp.enabled"] == "ok"


def test_under_prove_without_its_probe_a_change_is_not_made(tmp_path: Path) -> None:
    host = make_host(tmp_path, knobs=(*KNOBS[:4], ido_knob(probe="load")))
    report = applied(host, prove=True)
    assert results(report)[f"pcie.ido@{CARDS[0]}"] == "not-tried"
    assert not [path for path, _ in host.kernel.log if path.endswith("config")]


# -- refused before anything is written ------------------------------------------------------------------------------


def refusal(host: TunedHost, error: type[HicacheError], plan: Any = None) -> HicacheError:
    """The error of an apply that must write nothing and leave no run behind."""
    before = host.everything()
    with pytest.raises(error) as caught:
        host.session.apply(plan or host.session.plan(choose()), ApplyOptions())
    assert host.kernel.log == []
    assert host.everything() == before
    assert host.session.states() == ()
    return caught.value


def test_without_cap_sys_admin_config_space_is_not_written(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    status = host.root.at("/proc/self/status")
    full = f"{CAPABILITIES['all']:016x}"
    assert full in status.read_text()
    status.write_text(status.read_text().replace(full, f"{CAPABILITIES['docker']:016x}"))
    error = refusal(host, PermissionDenied, plan)
    assert error.exit_code is ExitCode.DENIED
    assert "CAP_SYS_ADMIN" in str(error)


def test_under_lockdown_config_space_is_not_written(tmp_path: Path) -> None:
    host = make_host(tmp_path, small_spec(lockdown="none [integrity] confidentiality"))
    assert "lockdown is 'integrity'" in str(refusal(host, Unsupported))


@pytest.mark.parametrize(
    ("path", "before", "after", "error"),
    [
        ("/proc/self/status", CAPABILITIES["all"], CAPABILITIES["docker"], PermissionDenied),
        ("/sys/kernel/security/lockdown", "[none] integrity", "none [integrity]", Unsupported),
    ],
)
def test_a_missing_right_is_told_as_such_although_it_also_changes_what_would_be_planned(
    tmp_path: Path, path: str, before: str | int, after: str | int, error: type[HicacheError]
) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    words = [word if isinstance(word, str) else f"{word:016x}" for word in (before, after)]
    at = host.root.at(path)
    assert words[0] in at.read_text()
    at.write_text(at.read_text().replace(*words))
    for card in CARDS:  # what such a process sees of config space, or what its plan makes of it
        config = host.root.at(f"/sys/bus/pci/devices/{card}/config")
        config.write_bytes(config.read_bytes()[:64])
    refusal(host, error, plan)


def test_a_read_only_sys_is_not_written(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    table = host.root.at("/proc/self/mountinfo")
    lines = [
        line.replace(" rw,", " ro,").replace(" rw ", " ro ") if " /sys " in line else line
        for line in table.read_text().splitlines()
    ]
    table.write_text("\n".join(lines) + "\n")
    assert "/sys is mounted read-only" in str(refusal(host, Unsupported, plan))


@pytest.mark.parametrize(("number", "error"), [(errno.EACCES, PermissionDenied), (errno.EROFS, Unsupported)])
def test_a_file_that_does_not_open_for_writing_stops_the_run_before_it_begins(
    tmp_path: Path, number: int, error: type[HicacheError]
) -> None:
    host = make_host(tmp_path)
    host.kernel.refused[f"{THP}/defrag"] = number
    refusal(host, error)


def test_a_device_in_use_waits(tmp_path: Path) -> None:
    host = make_host(tmp_path, refuse=lambda item: "pid 42 (engine) holds /dev/xpu0" if item.ordering else None)
    error = refusal(host, PlanStale)
    assert (error.code, error.exit_code) == ("HC-IN-USE", ExitCode.STALE)
    assert "pid 42" in str(error)


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("/proc/sys/kernel/random/boot_id", "aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n", "boot id"),
        ("/proc/sys/kernel/osrelease", "6.9.0-1-generic\n", "kernel"),
        (f"{THP}/defrag", "always [defer] defer+madvise madvise never\n", "thp.defrag"),
        (f"{THP}/enabled", "always madvise [never]\n", "thp.enabled"),
    ],
)
def test_a_host_that_moved_since_the_plan_is_not_written(tmp_path: Path, path: str, text: str, named: str) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.root.at(path).write_text(text)
    if named == "thp.defrag":  # what it wanted is there now: that is no reason to stop
        assert host.session.apply(plan, ApplyOptions()).outcome is RunOutcome.APPLIED
        return
    assert named in str(refusal(host, PlanStale, plan))


def test_a_plan_of_another_boot_is_applied_when_told_so_and_all_else_fits(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.root.at("/proc/sys/kernel/random/boot_id").write_text("aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n")
    assert host.session.apply(plan, ApplyOptions(another_boot=True)).outcome is RunOutcome.APPLIED


def test_a_plan_whose_file_was_edited_writes_nothing(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    items = []
    for item in plan.items:
        if item.kind is ItemKind.CHANGE and item.target is not None and item.target.register is not None:
            register = replace(item.target.register, offset=0x04, mask=0xFFFF)
            item = replace(item, target=replace(item.target, register=register), wanted=(0,))
        items.append(item)
    refusal(host, PlanStale, replace(plan, items=tuple(items)))


def test_a_card_that_went_away_makes_the_plan_stale(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.root.at(f"/sys/bus/pci/devices/{CARDS[0]}/config").write_bytes(b"\xff" * 4096)
    assert CARDS[0] in str(refusal(host, PlanStale, plan))


def test_two_applies_at_once_exclude_each_other(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.state.prepare()
    with hold_lock(host.state, host.root, who="another", pid=1, clock_text="now", sleep=lambda seconds: None):
        with pytest.raises(PlanStale) as caught:
            open_host(tmp_path / "host").session.apply(plan, ApplyOptions())
        assert caught.value.code == "HC-LOCKED"
        assert "another" in str(caught.value)
        with pytest.raises(PlanStale):
            open_host(tmp_path / "host").session.apply(plan, ApplyOptions())
    assert host.kernel.log == []
    assert host.session.apply(plan, ApplyOptions()).outcome is RunOutcome.APPLIED


def test_the_host_lock_holds_across_state_folders(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.root.at("/run").mkdir(exist_ok=True)
    plan = host.session.plan(choose())
    host.state.prepare()
    with (
        hold_lock(host.state, host.root, who="another", pid=1, clock_text="now", sleep=lambda seconds: None),
        pytest.raises(PlanStale, match="another apply"),
    ):
        open_host(tmp_path / "host", state=tmp_path / "elsewhere").session.apply(plan, ApplyOptions())


# -- the state folder ------------------------------------------------------------------------------------------------


def test_a_state_folder_that_cannot_be_written_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    host = make_host(tmp_path, state=tmp_path / "file")
    (tmp_path / "file").write_text("")
    before = host.everything()
    with pytest.raises((HostError, UsageError)):
        applied(host)
    assert host.everything() == before


def test_a_full_state_folder_stops_the_run_before_anything_is_written(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan, before = host.session.plan(choose()), host.everything()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (65536, hard)
    )  # room for the plan's copy, not for the records of seven changes
    try:
        with pytest.raises(HostError, match="File too large") as caught:
            host.session.apply(plan, ApplyOptions())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.code, caught.value.exit_code) == ("HC-STATE", ExitCode.NOT_READY)
    assert host.kernel.log == []
    assert host.everything() == before
    assert host.session.states()[0].reason == "it ended before its first record: nothing was written"


@pytest.mark.parametrize("left", range(1, 16, 2))
def test_a_record_that_cannot_be_made_in_the_middle_puts_everything_back(tmp_path: Path, left: int) -> None:
    host = make_host(tmp_path)
    plan, before = host.session.plan(choose()), host.everything()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step: str) -> None:
        if step == f"before record {left + 1}":
            folder = host.state.folder("j-0001")
            (folder / "reserve").unlink(missing_ok=True)  # what another program took
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "records.jsonl").stat().st_size + 10, hard))

    try:
        report = open_host(tmp_path / "host", checkpoint=fill).session.apply(plan, ApplyOptions())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert report.outcome is RunOutcome.UNDONE
    assert "the journal cannot be written" in str(report.failure)
    assert host.everything() == before
    again = host.session.rollback("j-0001")
    assert {undo.result.value for undo in again.items} <= {"already"}
    assert host.everything() == before


def test_a_state_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.state.path.mkdir(mode=0o700)
    host.state.path.chmod(0o777)
    with pytest.raises(UsageError, match="others could write a journal there"):
        applied(host)
    assert host.kernel.log == []


def test_only_what_was_chosen_is_planned_and_written(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose(WANTED, only=(f"pcie@{CARDS[0]}", "thp.defrag")))
    report = host.session.apply(plan, ApplyOptions())
    assert list(results(report)) == ["thp.defrag", f"pcie.ido@{CARDS[0]}"]
    assert len(host.kernel.log) == 2

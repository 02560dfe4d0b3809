"""Nothing that went wrong is forgotten: what a run left is told, counted, refused over, and put back by the next rollback."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.kernel import FakeKernel, Temper
from tuned_host import CARDS, CONTROL_2, IDO, KNOBS, THP, PlainKnob, TunedHost, choose, file_knob, make_host, open_host

from hicachectl.errors import ApplyFailed, ExitCode, HicacheError, HostError, PlanStale, Unsupported, UsageError
from hicachectl.tuning.apply import ApplyOptions
from hicachectl.tuning.item import ItemKind, ReadBack
from hicachectl.tuning.outcome import ItemOutcome, RunOutcome, Undo, UndoResult, Verdict
from hicachectl.tuning.plan import plan_id
from hicachectl.tuning.rehearsal import rehearse_rollback
from hicachectl.tuning.status import last_in_place
from hicachectl.tuning.target import Method, Register, Target

ONLY_IDO = {"pcie.ido": "0x0300"}


def cut(host: TunedHost, step: str, wanted: dict[str, str] | None = None) -> None:
    """Apply, and end at a step as SIGKILL would: nothing is put back or recorded after it."""
    plan = host.session.plan(choose(wanted))
    folder = host.root.path
    child = os.fork()
    if child == 0:

        def die(now: str) -> None:
            if now == step:
                os._exit(9)

        killed = open_host(folder, checkpoint=die)
        killed.kernel.tempers.update(host.kernel.tempers)
        killed.session.apply(plan, ApplyOptions())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("step", ["before record 3", "after record 3"])
def test_a_failed_write_that_was_cut_before_its_undo_is_told_refused_over_and_put_back(
    tmp_path: Path, step: str
) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    host.kernel.tempers[CARDS[0]] = Temper.TAKES_PART
    cut(host, step, ONLY_IDO)
    assert host.word(CARDS[0]) == 0x0100  # of 0x0300 one bit was taken
    host = open_host(tmp_path / "host")
    (state,) = host.session.states()
    assert (state.between, state.n_unsettled) == (True, 1)
    assert last_in_place((state,)) == state
    (checked,) = host.session.verify().items
    assert checked.verdict is Verdict.DIFFERS
    with pytest.raises(PlanStale) as caught:
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert caught.value.code == "HC-OPEN-RUN"
    report = host.session.rollback()
    assert [undo.result for undo in report.items] == [UndoResult.UNDONE]
    assert host.everything() == before
    assert not host.session.states()[0].between


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bits_of_others_that_our_write_changed_go_back_after_a_crash_too(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    host.kernel.tempers[CARDS[0]] = Temper.GARBLES
    cut(host, "after record 3", ONLY_IDO)
    host = open_host(tmp_path / "host")
    host.session.rollback()
    assert host.everything() == before


def test_a_run_with_something_left_blocks_the_next_until_it_is_put_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers.update({CARDS[0]: Temper.STICKS, CARDS[2]: Temper.REVERTS})
    report = host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert report.outcome is RunOutcome.PARTIAL
    with pytest.raises(PlanStale, match=r"not put back: pcie\.ido@"):
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.kernel.tempers.clear()
    assert [undo.result for undo in host.session.rollback().items] == [UndoResult.UNDONE]
    assert host.session.apply(host.session.plan(choose()), ApplyOptions()).outcome is RunOutcome.APPLIED


# -- whatever happens beside it, everything is put back ------------------------------------------------------------------


class Closed(BaseException):
    """A screen that went away."""


def test_a_screen_that_goes_away_stops_neither_apply_nor_rollback(tmp_path: Path) -> None:
    def gone(line: ItemOutcome | Undo) -> None:
        raise Closed

    host = make_host(tmp_path)
    before = host.everything()
    report = host.session.apply(host.session.plan(choose()), ApplyOptions(), on_item=gone)
    assert report.outcome is RunOutcome.APPLIED
    assert "could not be shown" in " ".join(report.notes)
    undone = host.session.rollback(on_undo=gone)
    assert {undo.result for undo in undone.items} == {UndoResult.UNDONE}
    assert host.everything() == before


class Clumsy(FakeKernel):
    """Raises what no kernel raises, for one path."""

    def write_text(self, path: str, text: str) -> None:
        if path.endswith("defrag") and text != "defer":
            raise ValueError("a flag nobody knows")
        super().write_text(path, text)


def test_an_odd_error_in_one_undo_leaves_the_others_put_back(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    clumsy = open_host(tmp_path / "host")
    clumsy = TunedHost(clumsy.root, clumsy.kernel, replace(clumsy.session, kernel=Clumsy(clumsy.root)))
    results = {undo.id: undo.result for undo in clumsy.session.rollback().items}
    assert results.pop("thp.defrag") is UndoResult.LEFT
    assert set(results.values()) == {UndoResult.UNDONE}


def test_a_bug_that_leaves_something_is_7_and_names_it(tmp_path: Path) -> None:
    def bug(item: Any) -> None:
        raise MemoryError("no room")

    host = make_host(tmp_path, knobs=(file_knob("thp.enabled", f"{THP}/enabled", proof="thp"), *KNOBS[1:]), observe=bug)
    host.kernel.tempers[CARDS[0]] = Temper.STICKS
    with pytest.raises(ApplyFailed) as caught:
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert caught.value.exit_code is ExitCode.PARTIAL
    assert caught.value.left == (f"pcie.ido@{CARDS[0]}",)


def test_rollback_puts_back_even_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    before = host.everything()
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    records = host.state.folder("j-0001") / "records.jsonl"
    resource.setrlimit(resource.RLIMIT_FSIZE, (records.stat().st_size, hard))
    try:
        report = host.session.rollback()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert report.outcome is RunOutcome.ROLLED_BACK
    assert "not recorded" in " ".join(report.notes)
    assert host.everything() == before


def test_a_value_somebody_set_in_between_is_theirs_and_named(tmp_path: Path) -> None:
    host = make_host(tmp_path)

    def meddle(item: Any) -> None:
        host.root.at(f"{THP}/defrag").write_text("always defer defer+madvise madvise [never]\n")
        raise ZeroDivisionError

    host = open_host(
        tmp_path / "host", observe=meddle, knobs=(file_knob("thp.enabled", f"{THP}/enabled", proof="x"), *KNOBS[1:])
    )
    with pytest.raises(ApplyFailed) as caught:
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert caught.value.left == ("thp.defrag",)
    assert "[never]" in host.text(f"{THP}/defrag")


def test_bits_of_others_that_change_during_a_run_stay(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    config = host.root.at(f"/sys/bus/pci/devices/{CARDS[0]}/config")

    def driver(outcome: ItemOutcome) -> None:
        if outcome.item.id.endswith(CARDS[0]):
            raw = bytearray(config.read_bytes())
            raw[CONTROL_2] |= 0x40
            config.write_bytes(raw)

    host.kernel.tempers[CARDS[2]] = Temper.REVERTS
    report = host.session.apply(host.session.plan(choose()), ApplyOptions(), on_item=driver)
    assert report.outcome is RunOutcome.UNDONE
    assert host.word(CARDS[0]) & (IDO | 0x40) == 0x40


# -- whose value is it ---------------------------------------------------------------------------------------------------


def test_what_a_run_found_unsupported_is_not_its_own_to_take_back_later(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[1]] = Temper.REFUSES
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.kernel.tempers.clear()
    config = host.root.at(f"/sys/bus/pci/devices/{CARDS[1]}/config")
    raw = bytearray(config.read_bytes())
    raw[CONTROL_2 + 1] |= 0x03  # the vendor's tool, later
    config.write_bytes(raw)
    host.session.rollback()
    assert [host.word(card) & IDO for card in CARDS] == [0, IDO, 0]


def test_an_older_run_does_not_take_back_what_a_newer_one_set(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose({"thp.defrag": "defer"})), ApplyOptions())
    host.root.at(f"{THP}/defrag").write_text("always defer [defer+madvise] madvise never\n")
    host.session.apply(host.session.plan(choose({"thp.defrag": "defer"})), ApplyOptions())
    (foreseen,) = rehearse_rollback(host.session, "j-0001").items
    (undo,) = host.session.rollback("j-0001").items
    assert undo.result is foreseen.result is UndoResult.CHANGED_SINCE
    assert "j-0002 set it since" in str(undo.reason)
    assert "[defer]" in host.text(f"{THP}/defrag")


# -- plans that were edited, boots that changed ---------------------------------------------------------------------------


def test_how_often_a_write_is_read_back_is_never_what_a_file_says(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[0]] = Temper.REVERTS
    plan = host.session.plan(choose())
    items = tuple(replace(item, read_back=ReadBack(0, -1.0), proof="", probe=None) for item in plan.items)
    report = host.session.apply(replace(plan, items=items), ApplyOptions())
    assert report.outcome is RunOutcome.UNDONE


def test_an_edited_plan_has_another_id(tmp_path: Path) -> None:
    plan = make_host(tmp_path).session.plan(choose())
    assert plan_id(plan) == plan.id
    assert plan_id(replace(plan, about=replace(plan.about, made_at="later"))) == plan.id
    assert plan_id(replace(plan, items=plan.items[1:])) != plan.id
    assert plan_id(replace(plan, items=(replace(plan.items[0], why="because"), *plan.items[1:]))) != plan.id


def test_after_a_boot_what_was_the_same_is_written_again_and_the_old_value_need_not_be(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    plan = host.session.plan(choose())
    assert {item.kind for item in plan.items} == {ItemKind.SAME}
    host.root.at("/proc/sys/kernel/random/boot_id").write_text("aaaaaaaa-2b1f-4c6e-9d8a-0123456789ab\n")
    host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    report = host.session.apply(plan, ApplyOptions(another_boot=True))
    assert [(o.item.id, o.result.value) for o in report.items if o.result.value != "already"] == [("thp.enabled", "ok")]
    assert "[always]" in host.text(f"{THP}/enabled")


def test_an_unreadable_boot_id_is_no_base_for_a_run(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    plan = host.session.plan(choose())
    host.root.at("/proc/sys/kernel/random/boot_id").unlink()
    with pytest.raises(Unsupported, match="boot id"):
        host.session.apply(plan, ApplyOptions(another_boot=True))
    assert host.kernel.log == []


# -- the state folder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "garbage", '{"n": 4, "at": "", "kind": "done", "item": "thp.enabled"}', '{"n": 4, "at": "", "kind": "end", "item": null}',
        '{"n": 4, "at": "", "kind": "done", "item": null, "result": "ok"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_journal_somebody_changed_blocks_the_next_run_and_hides_nothing(tmp_path: Path, line: str) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    records = host.state.folder("j-0001") / "records.jsonl"
    lines = records.read_text().splitlines()
    lines[3] = line
    records.write_text("\n".join(lines) + "\n")
    (state,) = host.session.states()
    assert (state.readable, state.between, state.holds) == (False, True, True)
    with pytest.raises(PlanStale, match=r"records\.jsonl:4"):
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    with pytest.raises(HicacheError, match=r"records\.jsonl:4"):
        host.session.rollback()


def test_records_that_others_may_write_are_not_followed(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    (host.state.folder("j-0001") / "records.jsonl").chmod(0o666)
    assert not host.session.states()[0].readable
    with pytest.raises(UsageError, match="others could write"):
        host.session.rollback()


def test_a_state_folder_below_one_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    host = make_host(tmp_path, state=tmp_path / "open" / "state")
    with pytest.raises(UsageError, match="others could write"):
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert host.kernel.log == []


def test_a_lock_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.state.prepare()
    (host.state.path / "lock").mkdir()
    with pytest.raises(HostError) as caught:
        host.session.apply(host.session.plan(choose()), ApplyOptions())
    assert str(caught.value.where).endswith("lock")


def test_a_closed_reserve_that_cannot_be_removed_changes_no_outcome(tmp_path: Path) -> None:
    host = make_host(tmp_path)

    def freeze(step: str) -> None:
        if step == "after record 16":
            folder = host.state.folder("j-0001")
            (folder / "reserve").unlink()
            (folder / "reserve").mkdir()
            (folder / "reserve" / "kept").write_text("")

    report = open_host(tmp_path / "host", checkpoint=freeze).session.apply(host.session.plan(choose()), ApplyOptions())
    assert report.outcome is RunOutcome.APPLIED
    assert "the reserve of the journal stays" in " ".join(report.notes)


# -- second looks --------------------------------------------------------------------------------------------------------


def test_what_a_rollback_left_as_somebody_elses_stays_theirs_at_the_next_one(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.session.apply(host.session.plan(choose()), ApplyOptions())
    host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    config = host.root.at(f"/sys/bus/pci/devices/{CARDS[0]}/config")
    raw = bytearray(config.read_bytes())
    raw[CONTROL_2 : CONTROL_2 + 2] = (0x0140).to_bytes(2, "little")
    config.write_bytes(raw)
    for _ in range(2):
        report = host.session.rollback("j-0001")
        left = {undo.id: undo.result for undo in report.items if undo.result is not UndoResult.UNDONE}
        assert left == {"thp.enabled": UndoResult.CHANGED_SINCE, f"pcie.ido@{CARDS[0]}": UndoResult.CHANGED_SINCE}
    assert "[never]" in host.text(f"{THP}/enabled")
    assert host.word(CARDS[0]) == 0x0140
    assert not host.session.states()[0].between


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_word_somebody_set_after_a_crash_is_theirs(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    cut(host, "before record 3", {"thp.enabled": "always"})
    host = open_host(tmp_path / "host")
    host.root.at(f"{THP}/enabled").write_text("always madvise [never]\n")
    (undo,) = host.session.rollback().items
    assert undo.result is UndoResult.CHANGED_SINCE
    assert "[never]" in host.text(f"{THP}/enabled")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bits_nobody_can_account_for_are_told_after_a_crash_in_mid_write(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.kernel.tempers[CARDS[0]] = Temper.GARBLES
    cut(host, "before record 3", ONLY_IDO)
    (undo,) = open_host(tmp_path / "host").session.rollback().items
    assert undo.result is UndoResult.UNDONE
    assert "bits that are not ours differ" in str(undo.reason)


def test_an_undo_that_does_not_last_is_left_in_the_journal_too(tmp_path: Path) -> None:
    host = make_host(tmp_path)

    class Flips(FakeKernel):
        def write_text(self, path: str, text: str) -> None:
            super().write_text(path, text)
            if path.endswith("enabled") and text == "madvise":  # the last undo
                self.root.at(f"{THP}/defrag").write_text("always [defer] defer+madvise madvise never\n")

    kernel = Flips(host.root)
    kernel.tempers[CARDS[2]] = Temper.REVERTS
    session = replace(host.session, kernel=kernel)
    report = session.apply(session.plan(choose()), ApplyOptions())
    assert report.outcome is RunOutcome.PARTIAL
    (state,) = session.states()
    assert (state.between, state.n_unsettled) == (True, 1)
    assert [undo.id for undo in host.session.rollback().items] == ["thp.defrag"]
    assert "[defer+madvise]" in host.text(f"{THP}/defrag")


def test_a_later_run_on_some_of_the_same_bits_is_seen_and_one_plan_never_sets_bits_twice(tmp_path: Path) -> None:
    def knob(name: str, mask: int) -> PlainKnob:
        path = f"/sys/bus/pci/devices/{CARDS[0]}/config"
        return PlainKnob(
            name, lambda machine: [(CARDS[0], Target(Method.PCI_CONFIG, path, Register(CONTROL_2, 16, mask)))]
        )

    knobs = (knob("a.one", 0x0100), knob("b.two", 0x0300))
    host = make_host(tmp_path, knobs=knobs)
    host.session.apply(host.session.plan(choose({"a.one": "0x0100"})), ApplyOptions())
    host.session.apply(host.session.plan(choose({"b.two": "0x0300"})), ApplyOptions())
    (undo,) = host.session.rollback("j-0001").items
    assert undo.result is UndoResult.CHANGED_SINCE
    assert host.word(CARDS[0]) == 0x0300
    with pytest.raises(UsageError, match="set the same bits"):
        host.session.plan(choose({"a.one": "0x0000", "b.two": "0x0300"}))

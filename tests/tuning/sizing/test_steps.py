from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from hicachectl.errors import CapacityError, UsageError
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.sizing.pool_made import MadeStep, PoolMade
from hicachectl.tuning.sizing.pool_memory import PoolMemory, pool_memory, read_pool_memory
from hicachectl.tuning.sizing.size_journal import SizeJournal, read_size_journal
from hicachectl.tuning.sizing.step_rules import Ended, Reach, Tried, confirmed, ended, missing_sizes, sizes_to_try
from hicachectl.tuning.sizing.steps import Climbed, climb
from hicachectl.tuning.sizing.trial import Trial

TOTAL = 1000
HITS = {0: 40, 50: 300, 100: 500, 200: 505, 400: 700}


def trial(pages: int, hits: int | None = None, **changed: object) -> Trial:
    made = Trial(
        host_pages=pages, n_bytes=pages * 4096, total_pages=TOTAL, device_hit_pages=0,
        host_hit_pages=HITS[pages] if hits is None else hits, restored_pages=1, verified_pages=1, dropped_pages=0,
        failures={}, device="cpu", layout="page_first_direct", backend="cpu", backend_reason="made up", fill_s=0.1, register_s=None,
        made=PoolMade("anonymous", None, pages * 4096, 2 << 20, 0.0, pages * 4096, {"0": 1}, None, 0, 0, (MadeStep("register", "skipped", 0.0, "skipped: no driver"),)),
        memory=PoolMemory(pages * 4096, 0), process_bytes=pages * 4096, restore_bytes_per_s=1.0, restore_s_per_token=1e-6,
        restore_p50_s=0.01, restore_p99_s=0.01, ttft_mean_s=0.5, ttft_device_only_mean_s=0.6, net_gain_s=1.0, replay_s=1.0,
        counters={"compact_stall": 0}, reasons={},
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


def run(tmp_path: Path, sizes: tuple[int, ...] = (50, 100, 200), chosen: int = 100, **options: object) -> Climbed:
    given = {
        "try_size": trial, "predict": HITS.__getitem__, "total_pages": TOTAL, "assume": lambda pages: None,
        "journal": SizeJournal.begin(tmp_path / "size", {"trace": "t"}), **options,
    }  # fmt: skip
    return climb(sizes, chosen, **given)  # type: ignore[arg-type]


def test_sizes_go_from_half_to_twice_within_the_limits() -> None:
    assert sizes_to_try(100, least=10, most=None) == (50, 100, 200)
    assert sizes_to_try(100, least=80, most=150) == (80, 100, 150)
    assert sizes_to_try(100, least=10, most=100) == (50, 100)
    assert sizes_to_try(0, least=10, most=100) == ()


def test_steps_from_small_to_large_confirm_the_plateau_at_twice_its_size(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert [step.pages for step in found.steps] == [50, 100, 200]
    assert found.ended is Ended.CONFIRMED
    assert all(step.holds and step.difference == 0 for step in found.steps)


def test_a_small_gain_of_one_step_ends_nothing_while_larger_sizes_are_left(tmp_path: Path) -> None:
    found = run(tmp_path, (100, 200, 400), 200)
    assert [step.pages for step in found.steps] == [100, 200, 400]
    assert found.ended is Ended.NOT_CONFIRMED


def test_a_step_that_is_not_as_predicted_ends_the_search_as_unstable(tmp_path: Path) -> None:
    found = run(tmp_path, try_size=lambda pages: trial(pages, HITS[pages] - 1))
    assert (found.ended, len(found.steps)) == (Ended.UNSTABLE, 1)
    assert (found.steps[0].difference, found.steps[0].holds) == (-1, False)


def test_where_an_assumption_is_broken_the_slack_counts_and_the_assumption_is_named(tmp_path: Path) -> None:
    found = run(
        tmp_path, try_size=lambda pages: trial(pages, HITS[pages] - 8), assume=lambda pages: "write policy write_back",
        slack_pages=8,
    )  # fmt: skip
    assert found.ended is Ended.CONFIRMED
    assert {step.assumption for step in found.steps} == {"write policy write_back"}


def test_a_pool_that_is_not_resident_does_not_count(tmp_path: Path) -> None:
    found = run(tmp_path, try_size=lambda pages: trial(pages, memory=PoolMemory(int(0.98 * pages * 4096), 0)))
    assert found.ended is Ended.UNSTABLE
    assert not found.steps[0].holds
    assert trial(100, memory=PoolMemory(None, None, "no /proc")).is_resident


def test_a_step_that_fails_ends_the_search_with_the_last_good_one(tmp_path: Path) -> None:
    def short(pages: int) -> Trial:
        if pages > 50:
            raise CapacityError("no memory left", terms=(("pool", pages),))
        return trial(pages)

    found = run(tmp_path, try_size=short)
    assert (found.ended, [step.trial is None for step in found.steps]) == (Ended.FAILED, [False, True])
    assert found.steps[1].reason == "no memory left"
    text = (tmp_path / "size" / "s-0001" / "steps.jsonl").read_text()
    assert [json.loads(line)["kind"] for line in text.splitlines()] == [
        "begin",
        "step",
        "done",
        "step",
        "failed",
        "end",
    ]


def test_the_time_budget_is_looked_at_between_steps(tmp_path: Path) -> None:
    found = run(tmp_path, clock=Clock(), time_budget_s=15.0)
    assert (found.ended, len(found.steps)) == (Ended.TIME, 1)


def test_no_sizes_are_no_steps(tmp_path: Path) -> None:
    assert run(tmp_path, ()).ended is Ended.NO_STEPS


def test_a_run_cut_short_is_continued_without_making_its_steps_again(tmp_path: Path) -> None:
    made: list[int] = []

    def killed(pages: int) -> Trial:
        made.append(pages)
        if pages == 100:
            raise KeyboardInterrupt
        return trial(pages)

    first = SizeJournal.begin(tmp_path / "size", {"trace": "t"})
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, try_size=killed, journal=first)
    first.close()
    path = tmp_path / "size" / "s-0001" / "steps.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "do')  # a line that a kill cut
    journal, records = SizeJournal.go_on(tmp_path / "size", "s-0001")
    assert (list(records.done), records.cut, records.ended, records.asked) == ([50], 100, None, {"trace": "t"})
    again = run(
        tmp_path, try_size=lambda pages: made.append(pages) or trial(pages), done=records.done,
        journal=journal,
    )  # fmt: skip
    assert made == [50, 100, 100, 200]
    assert [step.resumed for step in again.steps] == [True, False, False]
    assert again.steps[0].trial == trial(50)
    after = read_size_journal(tmp_path / "size", records.id)
    assert (list(after.done), after.cut, after.ended) == ([50, 100, 200], None, "plateau confirmed")


def test_runs_are_numbered_and_an_unknown_one_names_those_there_are(tmp_path: Path) -> None:
    assert [SizeJournal.begin(tmp_path, {}).id for _ in range(3)] == ["s-0001", "s-0002", "s-0003"]
    assert read_size_journal(tmp_path).id == "s-0003"
    with pytest.raises(UsageError, match="s-0009"):
        read_size_journal(tmp_path, "s-0009")
    with pytest.raises(UsageError):
        read_size_journal(tmp_path / "none")


def test_confirmed_takes_points_below_at_and_above() -> None:
    def why(*steps: tuple[int, float]) -> Ended | None:
        return ended([Tried(p, r, True) for p, r in steps], [], 100, points=1.0, elapsed_s=0.0, budget_s=None)

    assert why((50, 0.3), (100, 0.50), (200, 0.51)) is Ended.CONFIRMED
    assert why((50, 0.3), (100, 0.50), (200, 0.52)) is Ended.NOT_CONFIRMED
    assert why((100, 0.50), (200, 0.50)) is Ended.NOT_CONFIRMED
    assert why((50, 0.3), (100, 0.50)) is Ended.NOT_CONFIRMED


def why(*steps: tuple[int, float], chosen: int = 100, reach: Reach | None = None) -> Ended | None:
    tried = [Tried(pages, rate, True) for pages, rate in steps]
    return ended(tried, [], chosen, points=1.0, elapsed_s=0.0, budget_s=None, reach=reach or Reach())


def test_a_size_hardly_larger_than_the_chosen_one_confirms_nothing_unless_the_curve_ends_there() -> None:
    assert why((50, 0.3), (100, 0.50), (101, 0.50)) is Ended.NOT_CONFIRMED
    assert why((50, 0.3), (100, 0.50), (199, 0.50)) is Ended.NOT_CONFIRMED
    assert why((50, 0.3), (100, 0.50), (150, 0.50), reach=Reach(all_pages=150)) is Ended.CONFIRMED
    # one between gains more: the one above does not hide it
    assert why((50, 0.3), (100, 0.50), (150, 0.60), (200, 0.50)) is Ended.NOT_CONFIRMED


def test_l1_alone_is_no_smaller_pool_unless_no_smaller_one_is_of_use() -> None:
    assert why((0, 0.1), (100, 0.50), (200, 0.50)) is Ended.NOT_CONFIRMED
    assert why((0, 0.1), (100, 0.50), (200, 0.50), reach=Reach(least_pages=100)) is Ended.CONFIRMED


def test_memory_that_ends_before_a_size_large_enough_is_named() -> None:
    assert why((50, 0.3), (100, 0.50), reach=Reach(most_pages=150)) is Ended.NO_ROOM
    assert why((50, 0.3), (100, 0.50), (150, 0.50), reach=Reach(most_pages=150)) is Ended.NO_ROOM
    assert why((50, 0.3), (100, 0.50), reach=Reach(most_pages=200)) is Ended.NOT_CONFIRMED
    assert why((50, 0.3), (60, 0.50), reach=Reach(most_pages=150)) is Ended.NOT_CONFIRMED


def test_a_size_that_was_not_tried_is_not_confirmed_by_its_neighbours() -> None:
    assert why((84, 0.3), (168, 0.50), (336, 0.50), chosen=165) is Ended.NOT_CONFIRMED
    found = confirmed({84: 3.0, 165: 9.0, 336: 9.1}, 165, Reach(), slack=0.2, if_so=Ended.NET_CONFIRMED)
    assert found is Ended.NET_CONFIRMED
    assert confirmed({84: 3.0, 165: 9.0, 336: 9.3}, 165, Reach(), slack=0.2, if_so=found) is Ended.NOT_CONFIRMED
    assert confirmed({0: 0.0, 100: -1.0}, 0, Reach(), slack=0.0, if_so=Ended.NET_CONFIRMED) is Ended.NET_CONFIRMED
    assert confirmed({0: 0.0, 100: 1.0}, 0, Reach(), slack=0.0, if_so=Ended.NET_CONFIRMED) is Ended.NOT_CONFIRMED


def test_only_what_is_missing_to_confirm_a_size_is_tried_further() -> None:
    assert missing_sizes((0, 120, 240, 480), 240, Reach(6, 1000)) == ()
    assert missing_sizes((0, 120, 240, 480), 100, Reach(6, 1000)) == (50, 100)
    assert missing_sizes((0, 120, 240, 480), 400, Reach(6, 1000, all_pages=450)) == (400,)
    assert missing_sizes((0, 120), 0, Reach()) == ()


def test_steps_that_were_made_are_taken_whatever_the_time_that_is_left(tmp_path: Path) -> None:
    done = {pages: json.loads(json.dumps(asdict(trial(pages)))) for pages in (50, 200)}
    found = run(tmp_path, done=done, time_budget_s=0.0)
    assert [step.pages for step in found.steps] == [50]  # 100 is not begun
    assert found.ended is Ended.TIME
    done[100] = json.loads(json.dumps(asdict(trial(100))))
    assert run(tmp_path, done=done, time_budget_s=0.0).ended is Ended.CONFIRMED


SMAPS = """7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                2048 kB
AnonHugePages:      2048 kB
7f0000400000-7f0001000000 rw-p 00000000 00:00 0
Size:              12288 kB
Rss:               10240 kB
AnonHugePages:         0 kB
"""


def test_what_a_pool_holds_is_read_from_its_mapping_and_never_guessed_where_a_neighbour_joined_it() -> None:
    base, mib = 0x7F0000000000, 1 << 20
    assert pool_memory(SMAPS, base, 2 * mib) == PoolMemory(2 * mib, 2 * mib)
    assert pool_memory(SMAPS, base, 4 * mib) == PoolMemory(2 * mib, 2 * mib)
    joined = pool_memory(SMAPS, base + 4 * mib, 4 * mib)
    assert joined.resident_bytes is None  # 10 MiB are resident, 8 of them may be the neighbour's
    assert "8388608 bytes of others" in str(joined.reason)
    assert pool_memory(SMAPS, base + 64 * mib, mib).resident_bytes is None


PAGE = os.sysconf("SC_PAGE_SIZE")


def hiding(top: Path, *, n_present: int, n_shown: int, n_swapped: int = 0, n_pages: int = 4) -> HostRoot:
    """Return a root whose pagemap has `n_present` of the pages from address 16 pages on, and whose smaps shows `n_shown`."""
    (top / "proc/self").mkdir(parents=True)
    here, absent = (1 << 63).to_bytes(8, "little"), bytes(8)
    (top / "proc/self/pagemap").write_bytes(16 * absent + n_present * here + (n_pages - n_present) * absent)
    kb = n_shown * PAGE >> 10
    head = f"{16 * PAGE:x}-{(16 + n_pages) * PAGE:x} rw-p 00000000 00:00 0"
    swap = n_swapped * PAGE >> 10
    (top / "proc/self/smaps").write_text(f"{head}\nRss: {kb} kB\nAnonHugePages: {kb} kB\nSwap: {swap} kB\n")
    return HostRoot(top)


def test_pages_swapped_out_between_those_sampled_are_not_taken_for_hidden(tmp_path: Path) -> None:
    found = read_pool_memory(hiding(tmp_path, n_present=4, n_shown=3, n_swapped=1), 16 * PAGE, 4 * PAGE)
    assert found == PoolMemory(3 * PAGE, 3 * PAGE)
    (tmp_path / "two").mkdir()
    found = read_pool_memory(hiding(tmp_path / "two", n_present=4, n_shown=1, n_swapped=1), 16 * PAGE, 4 * PAGE)
    assert (found.resident_bytes, found.huge_bytes) == (3 * PAGE, None)


def test_pages_that_smaps_hides_count_as_resident_and_how_many_are_huge_is_not_known(tmp_path: Path) -> None:
    found = read_pool_memory(hiding(tmp_path, n_present=4, n_shown=1), 16 * PAGE, 4 * PAGE)
    assert (found.resident_bytes, found.huge_bytes) == (4 * PAGE, None)
    assert "leaves out pages that are present" in str(found.reason)


@pytest.mark.parametrize(("n_present", "n_shown"), [(3, 3), (4, 4)])
def test_what_smaps_has_of_a_pool_counts_where_it_hides_nothing(n_present: int, n_shown: int, tmp_path: Path) -> None:
    found = read_pool_memory(hiding(tmp_path, n_present=n_present, n_shown=n_shown), 16 * PAGE, 4 * PAGE)
    assert found == PoolMemory(n_shown * PAGE, n_shown * PAGE)


def test_a_joined_mapping_is_looked_up_page_by_page_of_this_process() -> None:
    pool = np.ones(3 << 20, np.uint8)
    found = read_pool_memory(HostRoot("/"), pool.ctypes.data, pool.nbytes)
    assert found.resident_bytes == pool.nbytes
    far = read_pool_memory(HostRoot("/"), 1 << 46, 1 << 20)
    assert far.resident_bytes in (0, None)

"""Golden screens of a sizing, from the document of a real one. UPDATE_SCREENS=1 rewrites the texts; read them."""

from __future__ import annotations

import copy
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hicachectl.render.screen import Screen
from hicachectl.render.size_report import size_page
from hicachectl.render.size_tiers import columns_words, tiers_words
from hicachectl.render.trace_curve import growth_words
from hicachectl.render.tune_size import draw_size, steps_table

FOLDER = Path(__file__).parent
DOCUMENT = json.loads((FOLDER / "tune-size.json").read_text())


def failed() -> Any:
    """The same with a last step that found no memory, and another policy."""
    data = copy.deepcopy(DOCUMENT)
    last = data["steps"][-1]
    last |= {
        "state": "failed",
        "trial": None,
        "measured_hits": None,
        "measured_hit_rate": None,
        "difference_pages": None,
    }
    last["reason"] = "no address range of 410353664 bytes for a pool"
    data["steps"][0] |= {"state": "differs", "resumed": True}
    data["choice"]["pages"] = last["pages"]
    data |= {"ended": "a step failed", "waterfall": data["waterfall"][:1]}
    data["policies"] = [
        {"policy": "lru, write_through", "hit_rate": 0.3719, "backed_up_pages": 170_899},
        {"policy": "lru, write_back", "hit_rate": 0.3712, "backed_up_pages": 1200},
    ]
    return data


def tiers() -> Any:
    """The same for exclusive tiers, two ranks, requests that run, storage below, and costs that were measured."""
    data = copy.deepcopy(DOCUMENT)
    data["tiers"] |= {
        "l2": "exclusive", "concurrency": 4, "device_pages_free": 142, "device_hit_rate": 0.0436, "storage": True,
        "storage_pages": None, "bounce_pages": 96, "least_pages": 342,
    }  # fmt: skip
    data |= {"device_pages_held_by_running": 104, "config_host_pages": 49_950, "costs_reason": None}
    data["ended"] = "not confirmed: no room above"
    data["choice"] |= {
        "pages": 49_950, "rule": "economics", "bound": "economics", "storage_hit_rate": 0.01, "inclusive_pages": 50_092,
        "served_by_storage_anyway": 0.3282,
    }  # fmt: skip
    data["choice"]["reason"] = (
        "the smallest whose net gain is the largest within its slack: 195 of 198 s/h, less than 4.01 s/h cannot be told apart, "
        "over what storage would serve anyway"
    )
    data["pool"] |= {"pages": 49_950, "n_ranks": 2, "host_bytes": 49_950 * 4096, "rank_bytes": 49_950 * 2048}
    data["costs"] = {
        "prefill_s": 2.84e-5, "restore_s": 3.1e-6, "make_s_per_gib": 0.25, "tokens_per_h": 1.47e8, "lives_h": 24.0,
        "carry_s_per_gib_h": 0.0, "crossover_tokens": 2968, "storage_restore_s": 1.2e-5, "source": "the step of 100184 pages",
    }  # fmt: skip
    for step in data["steps"]:
        step |= {"predicted_storage_hits": 2_765, "measured_storage_hits": 2_761}
        step |= {"must_be_exact": False, "assumption": "L2 is to exclude L1; the runtime keeps in L2 what L1 holds too"}
    for row in data["curve"]["rows"]:
        saved, spent = 1000 * row["hit_rate"], row["capacity_bytes"] / 2**30 * 0.25 / 24
        row |= {"saved_s_per_h": saved, "spent_s_per_h": spent, "net_s_per_h": saved - spent, "payback_h": 0.21}
        row["storage_hit_rate"] = data["curve"]["ceiling"] - row["hit_rate"]
    return data


def live() -> Any:
    """The same, of live traffic that drifted once."""
    data = copy.deepcopy(DOCUMENT)
    data["live"] = {
        "source": "tcp://127.0.0.1:5557", "transport": "zmq", "reads": "kv-events", "told_from": "blocks that were stored",
        "sees_requests_that_hit_entirely": False, "block_tokens": 512,
        "window": {"file": "state/size/s-0001/window.jsonl", "requests": 12031, "distinct_pages": 170899, "seconds": 3540.0, "ended": "Ctrl-C"},
        "seen": {"bytes": 1_234_567, "batches": 20_011, "broken": 0, "missed_batches": 12, "fetched_again": 10, "publisher_restarts": 0, "connected": 1},
        "notes": ["1 gaps in the publisher's numbers, the last of 2 batches (first: tcp://127.0.0.1:5557)"],
        "too_long_requests": 2,
        "steps": [
            {"pages": 0, "replayed": "new requests", "requests": 412, "total_pages": 9001, "measured_hit_rate": 0.012, "exact_hit_rate": 0.012,
             "predicted_hit_rate": 0.0131, "slack": 0.024, "gain": None, "verdict": "holds", "reason": ""},
            {"pages": 25046, "replayed": "saved requests", "requests": 12031, "total_pages": 276491, "measured_hit_rate": 0.328,
             "exact_hit_rate": 0.328, "predicted_hit_rate": None, "slack": None, "gain": None, "verdict": "holds", "reason": "no new request came"},
        ],
        "drift": {"at_pages": 20000, "reason": "the traffic drifted: new requests hit 12.00 % by their own exact curve, the window said 33.10 +- 2.40 %",
                  "requests": 12031, "new_requests": 800, "plateau_before_pages": 40000, "chosen_before_pages": 40000, "file": "window-2.jsonl"},
    }  # fmt: skip
    return data


DRAWN = {
    "tune-size": lambda: DOCUMENT, "tune-size-failed": failed, "tune-size-tiers": tiers, "tune-size-live": live,
}  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_screen_is_as_recorded(name: str, width: int) -> None:
    stream = io.StringIO()
    screen = Screen(stream, width=width, ascii=True, tty=True)
    draw_size(screen, DRAWN[name](), explain=name != "tune-size-failed")
    text, path = stream.getvalue(), FOLDER / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text)
    assert text == path.read_text()
    assert text.isascii()
    assert "\x1b" not in text


def test_bars_are_drawn_on_a_terminal_alone_and_every_line_is_a_plain_one_elsewhere() -> None:
    texts = []
    for tty in (True, False):
        stream = io.StringIO()
        draw_size(Screen(stream, width=120, ascii=True, tty=tty), DOCUMENT)
        texts.append(stream.getvalue())
    assert "CURVE     NOTE" in texts[0]
    assert "###" in texts[0]
    assert "#" not in texts[1]
    assert "37.19" in texts[1]


def test_the_page_has_curve_tiers_steps_and_economics_and_asks_no_network() -> None:
    page = size_page(tiers(), "<svg></svg>")
    for word in ("<svg>", "<h2>Curve", "<h2>Steps", "<h2>Economics", "net s/h", "2 968 tokens", "L3, without a limit"):
        assert word in page
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert "nothing below L2" in size_page(failed(), "")
    unknown = size_page(DOCUMENT, "")
    assert "The costs are not known" in unknown
    assert "net s/h" not in unknown


def test_the_page_escapes_what_a_trace_is_called() -> None:
    page = size_page({**DOCUMENT, "trace": "<b>&"}, "")
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


def test_the_screen_says_what_storage_would_serve_as_a_part_of_what_l2_adds() -> None:
    words = tiers_words(tiers())
    assert "would serve 32.82 of L2's" in words
    assert "% of L2's hits" not in words


def test_a_step_that_nothing_was_predicted_for_is_not_within_a_slack() -> None:
    data = live()
    data["steps"][0] |= {"must_be_exact": False, "predicted_hits": None, "predicted_hit_rate": None, "state": "done"}
    assert "done, not compared" in str(steps_table(data).rows[0])


@pytest.mark.parametrize(
    ("plateaus", "words"),
    [((5, 8, 100, 104), "it has settled"), ((5, 8, 100, 60), "it fell"), ((0, 0, 0, 0), "no cache is needed")],
)  # fmt: skip
def test_a_plateau_is_called_settled_only_where_it_neither_grew_nor_fell(plateaus: tuple[int, ...], words: str) -> None:
    assert words in growth_words([{"plateau_pages": pages} for pages in plateaus], too_short=False)


def test_the_screen_says_why_there_is_no_interval() -> None:
    data = copy.deepcopy(DOCUMENT)
    for row in data["curve"]["rows"]:
        row["hit_rate_error"] = None
    data["curve"]["ceiling_error_reason"] = "3 sessions, fewer than 10: no interval"
    assert "no +- is known: 3 sessions" in columns_words(data)


def test_the_plateau_of_the_host_pool_and_that_of_the_whole_curve_are_named_apart() -> None:
    data = copy.deepcopy(DOCUMENT)
    data["curve"] |= {"plateau_pages": 0, "plateau_d1_pages": 0}
    for grown in data["curve"]["growth"]:
        grown["plateau_pages"] = 6
    stream = io.StringIO()
    draw_size(Screen(stream, width=2000, ascii=True, tty=False), data, explain=True)
    text = stream.getvalue()
    assert "plateau of the host pool 0 pages (D1 0)" in text
    assert "with incomplete last pages (D1) the plateau of the host pool is 0 pages" in text
    assert "window 75 -> 100 %: that of the whole curve +0 %" in text
    assert "plateau of the whole curve for the first 25, 50, 75, 100 % of the requests: 6, 6, 6, 6 pages" in text


def test_no_pool_is_called_slower_or_faster_where_no_size_was_made_twice() -> None:
    from hicachectl.render.size_memory import restores_table

    data = copy.deepcopy(DOCUMENT)
    data["pool_costs"] |= {"again": None, "again_reason": "not made"}
    for pair in data["pool_costs"]["restores"]:
        pair |= {"differs": None, "reason": "how far two runs of one size are apart is not known: not made"}
    assert {row[-1] for row in restores_table(data).rows} == {"not known: no size was made twice"}
    assert "not known: no size was made twice" in size_page(data, "")
    data["pool_costs"]["again"] = data["pool_costs"]["restores"][0] | {"large_pages": 25_046, "ratio": None}
    assert [row[-1] for row in restores_table(data).rows] == [
        "not known: too few of one size made twice", "not known: too few of one size made twice", "not compared: too few",
    ]  # fmt: skip


def test_flags_without_a_value_are_named_with_their_reason_once_on_the_screen_and_the_page() -> None:
    from hicachectl.render.tune_size import flags_table, flags_without_value

    data = copy.deepcopy(DOCUMENT)
    for flag in data["flags"][2:4]:
        flag |= {"value": None, "pages": None, "reason": "each rank makes a pool of its own"}
    (text,) = flags_without_value(data)
    assert text == (
        "no value for vLLM simple cpu_bytes_to_use_per_rank, SGLang --hicache-size: each rank makes a pool of its own"
    )
    assert [row[2] for row in flags_table(data).rows].count("none") == 2
    assert [row[4] is None for row in flags_table(data).rows[1:5]] == [False, True, True, False]
    stream = io.StringIO()
    draw_size(Screen(stream, width=200, ascii=True, tty=False), data)
    assert text in stream.getvalue()
    assert text in size_page(data, "")
    assert flags_without_value(DOCUMENT) == []

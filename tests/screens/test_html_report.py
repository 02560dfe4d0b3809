from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_reports import REPORTS, all_tiers, device_only, one_request

from hicachectl.errors import UsageError
from hicachectl.render.html_report import Origins, html_page, require_writable, write_html
from hicachectl.render.svg import HEIGHT, WIDTH, nice_ticks

VOID = {"meta", "rect", "line", "circle", "polygon", "polyline"}


class Tags(HTMLParser):
    """Checks that tags nest, and keeps names and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID or (tag == "rect" and "<title>" in (self.get_starttag_text() or "")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open.pop() == tag


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    return parser.seen


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_the_page_fetches_nothing_and_runs_nothing(name: str) -> None:
    seen = tags(html_page(REPORTS[name]()))
    assert not {tag for tag, _ in seen} & {"script", "link", "img", "iframe", "object", "embed", "base"}
    for _, attributes in seen:
        assert not {"src", "href", "xlink:href", "style"} & attributes.keys()
        assert not [key for key in attributes if key.startswith("on")]
    text = html_page(REPORTS[name]())
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatch-host", "#hatch-storage"}


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_number_in_a_plot_lies_inside_its_frame(name: str) -> None:
    for tag, attributes in tags(html_page(REPORTS[name]())):
        for key, limit in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)):
            if key in attributes and tag in ("rect", "line", "text"):
                assert 0 <= float(attributes[key] or "nan") <= limit, (tag, attributes)
        for pair in (attributes.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_the_three_plots_have_their_names_and_their_numbers() -> None:
    text = html_page(all_tiers())
    labels = [attributes["aria-label"] for tag, attributes in tags(text) if tag == "svg" and "aria-label" in attributes]
    assert labels == [
        "Hit rate over the replay by tier",
        "Reuse distance of pages, with pool sizes marked",
        "Restore latency of requests",
    ]
    assert text.count("<summary>Numbers</summary>") == 3
    assert "device 128 pages, 8.0 MiB" in text
    assert "host 512 pages, 32.0 MiB" in text


def test_plots_without_data_say_why() -> None:
    text = html_page(one_request())
    for why in ("No page hit in any tier.", "No page was asked for twice.", "No request waited to be restored."):
        assert why in text
    assert "host 512 pages" not in html_page(device_only())
    assert "No request was replayed." in html_page(replace(one_request(), windows=()))


def test_a_name_from_the_trace_cannot_become_markup() -> None:
    text = html_page(replace(all_tiers(), trace="<b onclick=x>&'\""), Origins(command="run '<i>'"))
    assert "<b onclick" not in text
    assert "&lt;b onclick=x&gt;&amp;" in text
    assert "<i>" not in text


def test_the_page_says_what_made_it_where_and_with_which_settings() -> None:
    origins = Origins(
        "hicachectl run --trace 'a b' --seed 3",
        "2026-01-02T03:04:05Z",
        (("run.seed", "3", "flag --seed"),),
        (("processor", "Test <CPU>"), ("kernel", "Linux 6.1")),
    )
    text = html_page(all_tiers(), origins)
    assert tags(text)
    for words in (
        "--trace &#x27;a b&#x27; --seed 3",
        "2026-01-02T03:04:05Z",
        "<td class=text>run.seed</td><td class=text>3</td><td class=text>flag --seed</td>",
        "Test &lt;CPU&gt;",
        "Linux 6.1",
    ):
        assert words in text


def test_the_page_is_written_whole_over_an_old_one(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    require_writable(target)
    assert target.read_text() == "old"
    write_html(all_tiers(), target, Origins(made_at="2026-01-02T03:04:05Z"))
    assert target.read_text().endswith("</html>\n")
    assert "2026-01-02T03:04:05Z" in target.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("check", [require_writable, lambda path: write_html(all_tiers(), path)])
def test_a_missing_folder_is_named_and_a_folder_is_no_file(tmp_path: Path, check: object) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*absent") as caught:
        check(tmp_path / "absent" / "report.html")  # type: ignore[operator]
    assert caught.value.code == "HC-OUTPUT"
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"[Ii]s a directory"):
        check(tmp_path / "folder")  # type: ignore[operator]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        require_writable(tmp_path / "report.html")


@pytest.mark.parametrize("top", [0.004, 0.05, 0.37, 1.0, 5.0, 11.0, 12_031.0])
def test_ticks_are_round_and_reach_the_top(top: float) -> None:
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert top <= ticks[-1] <= 2 * top
    assert 2 < len(ticks) <= 9

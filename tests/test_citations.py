"""What the repository cites is in it: every named page of docs/ exists, with its anchor, and so does every code's page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("hicachectl", "runtime", "tuning", "profiles", "tests", "benchmarks", "docs")
TEXT = {".py", ".yaml", ".md", ".json", ".toml", ".html"}
CITED = re.compile(r"(?<![\w/.])docs/[\w./-]+?\.md(?:#([\w-]+))?")
LINKED = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
CODE = re.compile(r"(?<![\w-])HC-[A-Z0-9]+(?:-[A-Z0-9]+)*(?![\w-])")
# Notes that are not part of the repository: whoever cites them sends the reader nowhere.
ELSEWHERE = re.compile(r"(?<![\w-])(?:facts/[\w-]+\.md|(?:DESIGN|STYLE|CLI)(?:\.md|\s+\d)|\.\./shared/docs)")
THIS = Path(__file__)


def sources() -> list[Path]:
    """Every text a reader may meet, this test aside: it names what must not be cited."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXT and path != THIS]
    return sorted([*found, *ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"])


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(ANCHOR.findall(page.read_text(encoding="utf-8")))


def missing(page: Path, anchor: str | None) -> str | None:
    """Say what is wrong with a citation, None when it leads somewhere."""
    if not page.is_file():
        return "no such file"
    return f"no anchor {anchor!r}" if anchor and anchor not in anchors(page) else None


def broken(text: str) -> list[str]:
    """List the citations in a text that lead nowhere."""
    found = []
    for match in CITED.finditer(text):
        why = missing(ROOT / match.group().partition("#")[0], match.group(1))
        found += [f"{match.group()}: {why}"] if why else []
    for match in ELSEWHERE.finditer(text):
        found.append(f"{match.group()}: not in the repository")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_cited_page_and_anchor_exists(path: Path) -> None:
    assert broken(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [p for p in sources() if p.suffix == ".md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_in_a_page_leads_somewhere(path: Path) -> None:
    found = []
    for match in LINKED.finditer(path.read_text(encoding="utf-8")):
        page = (path.parent / match.group(1)).resolve() if match.group(1) else path
        if page.suffix == ".md" and (why := missing(page, match.group(2))):
            found.append(f"{match.group()}: {why}")
        elif not page.exists():
            found.append(f"{match.group()}: no such file")
    assert found == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_no_anchor_stands_twice_in_a_page(path: Path) -> None:
    found = ANCHOR.findall(path.read_text(encoding="utf-8"))
    assert sorted(found) == sorted(set(found))


@pytest.mark.parametrize("path", [p for p in sources() if p.suffix == ".md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_code_a_page_names_has_a_page_of_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("HC-CODE", "").replace("HC-...", "")
    pages = {p.stem for p in (ROOT / "hicachectl" / "explain").glob("*.md")}
    assert set(CODE.findall(text)) <= pages


def test_every_figure_is_relied_on_somewhere() -> None:
    facts = ROOT / "docs" / "facts.md"
    cited = set()
    for path in sources():
        if path != facts:
            cited.update(re.findall(r"facts\.md#([\w-]+)", path.read_text(encoding="utf-8")))
    assert anchors(facts) - cited == set()


def test_a_wrong_citation_is_found() -> None:
    facts, notes = "docs/" + "facts.md", "facts" + "/sizing.md"
    assert broken(f"{facts} {facts}#traces") == []
    wrong = [f"{facts}#no-such", "docs/" + "no-such.md", notes, "CLI" + ".md", "DESIGN" + " 4"]
    assert [len(broken(text)) for text in wrong] == [1] * len(wrong)

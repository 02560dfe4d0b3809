"""The pages behind the HC- codes, one Markdown file a code beside this module.

A page has a title line `# CODE: one sentence` and four sections: what, why it matters here, how it was read, and one
command. The test of the pages holds them to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from hicachectl.errors import UsageError

__all__ = ["SECTIONS", "Explanation", "codes", "explanation", "parse_page"]

SECTIONS = ("What", "Why it matters here", "How it was read", "One command")
_FOLDER = files("hicachectl") / "explain"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One page: the code, its sentence, and the text of the four sections."""

    code: str
    title: str
    what: str
    why: str
    read: str
    command: str


def codes() -> list[str]:
    """List the codes that have a page, sorted. Reads the package's folder."""
    return sorted(item.name.removesuffix(".md") for item in _FOLDER.iterdir() if item.name.endswith(".md"))


def explanation(code: str) -> Explanation:
    """Read the page of a code; case does not matter. Raises UsageError with the nearest code."""
    wanted, known = code.upper(), codes()
    if wanted not in known:
        near = get_close_matches(wanted, known, n=1)
        raise UsageError(
            f"there is no page for {code!r}",
            why=f"the nearest code is {near[0]}" if near else "no code is near it",
            hint=f"hicachectl explain {near[0]}" if near else "hicachectl explain lists the codes",
        )
    text = (_FOLDER / f"{wanted}.md").read_text(encoding="utf-8")
    return parse_page(text, where=f"explain/{wanted}.md")


def parse_page(text: str, *, where: str) -> Explanation:
    """Take a page apart. Pure. Raises ValueError when a title or section is missing, empty or out of order."""
    head, *parts = text.split("\n## ")
    code, colon, title = head.strip().removeprefix("# ").partition(": ")
    sections = [(name.strip(), body.strip()) for name, _, body in (part.partition("\n") for part in parts)]
    if (
        not head.startswith("# HC-")
        or not colon
        or tuple(name for name, _ in sections) != SECTIONS
        or not all(b for _, b in sections)
    ):
        raise ValueError(f"{where}: wants '# HC-CODE: sentence' and the sections {', '.join(SECTIONS)}, none empty")
    what, why, read, command = (body for _, body in sections)
    return Explanation(code, title.strip(), what, why, read, command)

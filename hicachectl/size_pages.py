"""Sizes as the flags of a sizing give them, in pages: `--l3`, and the list of `--steps`."""

from __future__ import annotations

from hicachectl.errors import UsageError
from hicachectl.units import parse_size

__all__ = ["sizes_of", "storage_pages_of"]

_MOST_PAGES = 1 << 53
"""More than any tier holds, and still a whole number everywhere."""


def storage_pages_of(text: str | None, page_bytes: int) -> int | None:
    """Read --l3 as pages: None without a limit, 0 for no storage tier. Pure. Raises UsageError.

    >>> storage_pages_of("8000", 4096), storage_pages_of("1MiB", 4096), storage_pages_of("infinite", 4096)
    (8000, 256, None)
    """
    if text is None:
        return 0
    if text == "infinite":
        return None
    pages = _pages(text, page_bytes, "--l3")
    if pages < 1:
        raise UsageError(
            f"a storage tier of {text!r}", where="--l3", why=f"a page is {page_bytes} bytes",
            hint="give pages such as 200000, a size such as 4TiB, or infinite",
        )  # fmt: skip
    return pages


def sizes_of(text: str, page_bytes: int) -> tuple[int, ...]:
    """Read the list of --steps as pages, in its order. Pure. Raises UsageError for a step of less than a page.

    >>> sizes_of("8000, 1MiB", 4096)
    (8000, 256)
    """
    sizes = []
    for word in map(str.strip, text.split(",")):
        pages = _pages(word, page_bytes, "--steps")
        if pages < 1:
            raise UsageError(
                f"a step of {word!r}", where="--steps", why=f"a page is {page_bytes} bytes", hint="at least one page"
            )
        sizes.append(pages)
    return tuple(sizes)


def _pages(text: str, page_bytes: int, where: str) -> int:
    """Pages as a number of them, or as a size with its unit."""
    is_count = text.isascii() and text.isdigit()
    if is_count and len(text.lstrip("0")) > len(str(_MOST_PAGES)):
        pages = _MOST_PAGES + 1  # int() takes no text of any length
    else:
        pages = int(text.lstrip("0") or "0") if is_count else parse_size(text, where=where) // page_bytes
    if pages > _MOST_PAGES:
        raise UsageError(
            f"{text[:20]!r} is more than {_MOST_PAGES} pages", where=where, hint="give what a host can hold"
        )
    return pages

"""The Triton kernel that moves rows between two places of any steps: gather, scatter, and copies over the link.

Triton is optional: without it `move_rows` is None and `MISSING` says why. The kernel itself is plain Python over
`triton.language`, which lets a test run it on the processor.
"""

# No `from __future__ import annotations`: Triton reads the annotations.

from typing import Any

try:
    import triton
    import triton.language as tl

    MISSING: "str | None" = None
except ImportError as error:
    triton: Any = None  # type: ignore[no-redef]
    tl: Any = None  # type: ignore[no-redef]
    MISSING = f"triton cannot be imported: {error}"

__all__ = ["MISSING", "kernel", "move_rows"]


def kernel(
    source: "Any",
    target: "Any",
    source_slots: "Any",
    target_slots: "Any",
    source_first: "Any",
    source_page: "Any",
    source_plane: "Any",
    source_token: "Any",
    target_first: "Any",
    target_page: "Any",
    target_plane: "Any",
    target_token: "Any",
    first_page: "Any",
    n_rows: "Any",
    n_planes: "Any",
    n_tokens: "Any",
    FROM_SLOTS: "tl.constexpr",
    TO_SLOTS: "tl.constexpr",
    ROW_WORDS: "tl.constexpr",
    ROWS: "tl.constexpr",
    COLS: "tl.constexpr",
) -> None:
    """Copy rows of ROW_WORDS words from `source` to `target`, a tile of ROWS x COLS words at a time.

    Row r is token r % n_tokens of plane r // n_tokens % n_planes of page r // n_tokens // n_planes. Steps are in rows. With
    FROM_SLOTS or TO_SLOTS a page's number is looked up in that side's slots, from `first_page` on. Any number of programs.
    """
    blocks = (ROW_WORDS + COLS - 1) // COLS
    n_tiles = (n_rows + ROWS - 1) // ROWS * blocks
    for tile in range(tl.program_id(0), n_tiles, tl.num_programs(0)):
        row = tile // blocks * ROWS + tl.arange(0, ROWS)
        col = tile % blocks * COLS + tl.arange(0, COLS)
        inside = row < n_rows
        token = row % n_tokens
        plane = (row // n_tokens % n_planes).to(tl.int64)
        page = row // (n_tokens * n_planes)
        from_page = page
        to_page = page
        if FROM_SLOTS:
            from_page = tl.load(source_slots + first_page + page, mask=inside, other=0)
        if TO_SLOTS:
            to_page = tl.load(target_slots + first_page + page, mask=inside, other=0)
        from_row = source_first + from_page.to(tl.int64) * source_page + plane * source_plane + token * source_token
        to_row = target_first + to_page.to(tl.int64) * target_page + plane * target_plane + token * target_token
        mask = inside[:, None] & (col < ROW_WORDS)[None, :]
        words = tl.load(source + ((from_row * ROW_WORDS)[:, None] + col[None, :]), mask=mask)
        tl.store(target + ((to_row * ROW_WORDS)[:, None] + col[None, :]), words, mask=mask)


_COUNTS = [
    "source_first", "source_page", "source_plane", "source_token", "target_first", "target_page", "target_plane",
    "target_token", "first_page", "n_rows", "n_planes", "n_tokens",
]  # fmt: skip
# Counts differ from call to call: without specializing on them one compilation serves all.
move_rows: Any = None if triton is None else triton.jit(kernel, do_not_specialize=_COUNTS)

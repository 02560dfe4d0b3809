"""The first move of a kind, which is when Triton compiles its kernel and the driver loads it: made before there is a transfer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

from hicachectl.errors import HicacheError, Unsupported
from hicachectl.runtime.transfer.device import device_error, first_line
from hicachectl.runtime.transfer.movers import Mover, Side

__all__ = ["first_move", "making_kernels"]

_MAKING = Lock()  # loads and backups begin at the same time: the second finds what the first one compiled


def first_move(
    mover: Mover,
    source: torch.Tensor,
    target: torch.Tensor,
    *,
    source_slots: torch.Tensor | None,
    target_slots: torch.Tensor | None,
    row_bytes: int,
    n_tokens: int,
    stream: int,
) -> None:
    """Move one chunk of `n_tokens` rows from `source` to `target`, 1-D words of memory that nobody reads, on `stream`.

    What decides which function is compiled must be as in the transfers: rows, words, and which sides have slots; those are
    int32, the first one 0.
    """

    def side(words: torch.Tensor, slots: torch.Tensor | None) -> Side:
        return Side(words, 0, n_tokens, n_tokens, 1, slots, 1)

    mover.move(
        side(source, source_slots),
        side(target, target_slots),
        row_bytes=row_bytes,
        first_page=0,
        n_pages=1,
        n_planes=1,
        n_tokens=n_tokens,
        stream=stream,
    )


@contextmanager
def making_kernels(mover: Mover) -> Iterator[None]:
    """Run a block of first moves, one thread at a time. Raises Unsupported when a kernel cannot be compiled here; what the device answers goes through."""
    try:
        with _MAKING:
            yield
    except HicacheError:
        raise
    except Exception as error:
        if device_error(error) is not error:
            raise
        raise Unsupported(
            f"the {mover.kind} kernel of copies cannot be made here",
            why=f"{type(error).__name__}: {first_line(error)}",
            hint="use copy backend batch or direct, which need no kernel, or see what triton needs to compile",
        ) from error

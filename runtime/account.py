"""What one request cost and saved, and why it missed the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicachectl.errors import InvariantBroken
from hicachectl.runtime.core import CacheCore
from hicachectl.runtime.decide import RestoreReason
from hicachectl.runtime.reasons import MissReason
from hicachectl.runtime.request import Request
from hicachectl.runtime.seen import classify_missed

__all__ = ["Account", "account_of"]


@dataclass(frozen=True, slots=True)
class Account:
    """What one request cost and saved, in tokens and pages. The parts add up to the input (checked at construction)."""

    input_tokens: int
    page_tokens: int
    pages_total: int
    device_hit_pages: int
    host_hit_pages: int
    storage_hit_pages: int
    used_pages: int
    restored_host_pages: int
    restored_storage_pages: int
    restore_wait_s: float
    missed_tokens: Mapping[MissReason, int]
    match_s: float = 0.0
    restore_reason: RestoreReason | None = None
    restore_s: float | None = None
    room_wait_s: float = 0.0
    """See `Request` for the last four."""

    def __post_init__(self) -> None:
        missed, used = sum(self.missed_tokens.values()), self.used_pages * self.page_tokens
        if missed + used != self.input_tokens:
            raise InvariantBroken(f"used {used} + missed {missed} tokens = {missed + used}, input {self.input_tokens}")

    @property
    def hit_pages(self) -> int:
        """Logical length at the match over all tiers."""
        return self.device_hit_pages + self.host_hit_pages + self.storage_hit_pages


def account_of(core: CacheCore, request: Request) -> Account:
    """Sum up a request: what it hit, used and restored, and each missed token under one reason. Pure."""
    match = request.match
    used = request.used_pages
    hit = match.logical_pages + request.storage_pages
    missed: dict[MissReason, int] = {}

    def add(reason: MissReason, tokens: int) -> None:
        if tokens:
            missed[reason] = missed.get(reason, 0) + tokens

    if used < hit:
        cut_at = max(used, min(hit, request.planned_pages))
        add(MissReason.FAILED if request.failed else MissReason.IN_FLIGHT, (cut_at - used) * core.page_tokens)
        add(request.cut_reason, (hit - cut_at) * core.page_tokens)
    if hit < match.n_pages:
        if request.missed_flags is None:
            add(MissReason.FORGOTTEN, (match.n_pages - hit) * core.page_tokens)
        else:
            reasons = classify_missed(
                request.missed_flags,
                host_tier=core.host_pool is not None,
                storage_tier=core.storage is not None,
                forgot_any=core.seen is not None and core.seen.forgot_any,
            )
            for reason in reasons:
                add(reason, core.page_tokens)
    add(MissReason.PARTIAL_PAGE, request.input_tokens - match.n_pages * core.page_tokens)
    return Account(
        request.input_tokens,
        core.page_tokens,
        match.n_pages,
        match.device_pages,
        match.logical_pages - match.device_pages,
        request.storage_pages,
        used,
        request.restored_host_pages,
        request.restored_storage_pages,
        request.restore_wait_s,
        missed,
        request.match_s,
        request.restore_reason,
        request.restore_s,
        request.room_wait_s,
    )

"""Why a mapping that asked for huge pages has small ones, from what the steps before found: its tail, a refusal, a setting, or the kernel.

A setting is the cause only where it stands against what was asked: `madvise` gives huge pages to memory that was advised
(docs/facts.md#which-setting; Linux Documentation/admin-guide/mm/transhuge.rst).
"""

from __future__ import annotations

import re

from hicachectl.runtime.memory.kinds import Kind, huge_setting, small_pages_reason
from hicachectl.runtime.memory.syscalls import MemoryCalls
from hicachectl.units import format_bytes

__all__ = ["no_huge_reason", "tail_reason"]

_THP = "/sys/kernel/mm/transparent_hugepage"
_ALL_WHOLE = 0.99
"""Share of the whole huge pages of a mapping from which on the rest is put down to its tail."""


def tail_reason(mapped_bytes: int, huge_page_bytes: int, in_huge_bytes: int) -> str | None:
    """Say that every part a huge page fits into is huge, and what is left; None where more is missing. Pure.

    >>> tail_reason(8704 << 10, 2 << 20, 8 << 20), tail_reason(8 << 20, 2 << 20, 4 << 20)
    ('the last 512.0 KiB are less than a huge page of 2.0 MiB', None)
    """
    tail = mapped_bytes % huge_page_bytes
    whole = mapped_bytes - tail
    if not tail or in_huge_bytes < _ALL_WHOLE * whole:
        return None
    part = f"the last {format_bytes(tail)} are" if whole else f"all {format_bytes(tail)} are"
    return f"{part} less than a huge page of {format_bytes(huge_page_bytes)}"


def no_huge_reason(calls: MemoryCalls, kind: Kind, path: str | None, huge_page_bytes: int, *, advised: bool) -> str:
    """Say what kept huge pages from a mapping; `advised`: the kernel took MADV_HUGEPAGE. Reads files of /sys and /proc."""
    if _switched_off(calls) and _has_huge_pages(calls):
        return "huge pages are switched off for this process (THP_enabled 0 in /proc/self/status: prctl PR_SET_THP_DISABLE)"
    setting = huge_setting(calls, kind, path)
    if not advised:
        return f"MADV_HUGEPAGE was not given, and {setting}"
    against = small_pages_reason(calls, kind, path)
    if against is not None or setting.endswith(" is never") or "cannot be read" in setting:
        return against or setting
    size = f"hugepages-{huge_page_bytes >> 10}kB/{'shmem_enabled' if kind.is_shared else 'enabled'}"
    try:
        word = re.search(r"\[(\w+)\]", calls.read(f"{_THP}/{size}"))
    except OSError:  # before Linux 6.8 a size has no setting of its own
        word = None
    if word is not None and word[1] == "never":
        return f"transparent_hugepage/{size} is never"
    counter = "thp_file_fallback" if kind.is_shared else "thp_fault_fallback"
    return f"asked for, and {setting}: too few free huge pages, or a control group at its limit ({counter} of /proc/vmstat counts them)"


def _has_huge_pages(calls: MemoryCalls) -> bool:
    """Whether the kernel has transparent huge pages at all: one without them tells THP_enabled 0 of every process."""
    try:
        calls.read(f"{_THP}/enabled")
    except OSError:
        return False
    return True


def _switched_off(calls: MemoryCalls) -> bool:
    """Whether this process gets no huge pages whatever the settings say. The line is there since Linux 5.0 (Documentation/filesystems/proc.rst)."""
    try:
        return re.search(r"^THP_enabled:\s*0$", calls.read("/proc/self/status"), re.MULTILINE) is not None
    except OSError:
        return False

"""The three tiers and the slots in them: names everything else shares."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

__all__ = ["DeviceSlot", "HostSlot", "StorageSlot", "Tier"]


class Tier(IntEnum):
    """Where a page's bytes live, nearest to compute first, so that `tier + 1` is the next one down."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2

    @property
    def label(self) -> str:
        """Return the word used in reports and JSON keys. Pure.

        >>> Tier.HOST.label
        'host'
        """
        return self.name.lower()


DeviceSlot = NewType("DeviceSlot", int)
HostSlot = NewType("HostSlot", int)
StorageSlot = NewType("StorageSlot", int)

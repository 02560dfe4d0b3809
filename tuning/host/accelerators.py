"""What a PCI function is: accelerator, NIC, NVMe, bridge or other, and by which rule. Pure.

Class alone is wrong both ways, and so is vendor alone: Kunlun 2 reports itself as a communication controller, Huawei's
compression engine has the class of an accelerator, NVSwitch carries the vendor of one. Sources of the ids: the public
pci.ids; Linux `include/linux/pci_ids.h` (Huawei ZIP); PaddleNLP's Kunlun README (1d22:3684 with class 0780).
"""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.tuning.host.model import SlotKind

__all__ = ["Classification", "classify"]


@dataclass(frozen=True)
class Classification:
    """A kind of `SlotKind` and the rule that gave it, in words."""

    kind: str
    rule: str


_ACCELERATOR_IDS = {
    "1d22:3684": "Kunlun",
    "1d22:3685": "Kunlun 2 virtual function",
    "1d22:3688": "P800",
    "10de:2330": "H100 SXM",
    "10de:20b0": "A100",
    "10de:1db8": "V100",
    "1002:740c": "MI200",
    "1002:740f": "MI200",
    "1002:74a1": "MI300X",
    "19e5:d500": "Ascend inference card",
    "19e5:d801": "910A",
    "19e5:d802": "910B",
    "19e5:d803": "910C",
    "1d94:6210": "K100-AI",
    "1bcf:001c": "NEC Vector Engine",
}
_KUNLUN_REVISIONS = {"01": "Kunlun 1", "02": "Kunlun 2"}
_NOT_ACCELERATORS = {
    "1d22:1380": "cloud storage",
    "19e5:a250": "ZIP engine",
    "19e5:a251": "ZIP engine virtual function",
}
_ACCELERATOR_CLASSES = {"0302": "3D controller", "1200": "processing accelerator", "0b40": "co-processor"}
_DISPLAY_CLASSES = {"0300": "VGA controller", "0380": "display controller"}
_DISPLAY_VENDORS = frozenset(("10de", "1002", "1d94"))

_RDMA_CLASSES = {"0207": "InfiniBand controller", "0208": "fabric controller", "0c06": "InfiniBand on a serial bus"}
_RDMA_VENDORS = frozenset(("15b3",))
"""Mellanox: every network function since ConnectX-3 does RDMA, with or without a driver that shows it."""
_EFA_IDS = frozenset(f"1d0f:efa{generation}" for generation in range(4))


def classify(
    class_code: str | None,
    vendor: str | None,
    device: str | None,
    *,
    revision: str | None = None,
    has_infiniband: bool | None = False,
    infiniband_reason: str | None = None,
) -> Classification:
    """Say what a function is from its class (six hex digits), ids (four) and revision (two); None for what is not known. Pure.

    Where the infiniband folder is there and could not be listed, `infiniband_reason` says why in the rule.

    >>> classify("078000", "1d22", "3684", revision="02")
    Classification(kind='accelerator', rule='id 1d22:3684 (Kunlun 2)')
    >>> classify("068000", "10de", "22a3").kind
    'bridge'
    """
    base, sub = (class_code or "")[:2], (class_code or "")[:4]
    ids = f"{vendor}:{device}" if vendor and device else ""
    if base == "06":
        return Classification(SlotKind.BRIDGE, "base class 06")
    if ids in _NOT_ACCELERATORS:
        why = f"id {ids} ({_NOT_ACCELERATORS[ids]}) is no accelerator"
        return _other(sub, has_infiniband, vendor, ids, why, infiniband_reason)
    if ids in _ACCELERATOR_IDS:
        name = _ACCELERATOR_IDS[ids]
        if ids == "1d22:3684":
            name = _KUNLUN_REVISIONS.get(revision or "", name)
        return Classification(SlotKind.ACCELERATOR, f"id {ids} ({name})")
    if sub in _ACCELERATOR_CLASSES:
        return Classification(SlotKind.ACCELERATOR, f"class {sub} ({_ACCELERATOR_CLASSES[sub]})")
    if sub in _DISPLAY_CLASSES and vendor in _DISPLAY_VENDORS:
        return Classification(SlotKind.ACCELERATOR, f"class {sub} ({_DISPLAY_CLASSES[sub]}) of vendor {vendor}")
    return _other(sub, has_infiniband, vendor, ids, f"class {sub}" if sub else "class not known", infiniband_reason)


def _other(
    sub: str, has_infiniband: bool | None, vendor: str | None, ids: str, otherwise: str, infiniband_reason: str | None
) -> Classification:
    unread = "" if has_infiniband is not None else f"; infiniband folder not read ({infiniband_reason})"
    if has_infiniband:
        return Classification(SlotKind.RDMA_NIC, "infiniband folder")
    if sub in _RDMA_CLASSES:
        return Classification(SlotKind.RDMA_NIC, f"class {sub} ({_RDMA_CLASSES[sub]})")
    if ids in _EFA_IDS:
        return Classification(SlotKind.RDMA_NIC, f"id {ids} (EFA)")
    if sub[:2] == "02":
        if vendor in _RDMA_VENDORS:
            return Classification(
                SlotKind.RDMA_NIC, f"class {sub} of vendor {vendor}{unread or ', no infiniband folder'}"
            )
        return Classification(SlotKind.NIC, f"base class 02{unread}")
    if sub == "0108":
        return Classification(SlotKind.NVME, "class 0108")
    return Classification(SlotKind.OTHER, f"{otherwise}{unread}")

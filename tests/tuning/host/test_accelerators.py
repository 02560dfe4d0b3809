from __future__ import annotations

import pytest

from hicachectl.tuning.host.accelerators import classify


@pytest.mark.parametrize(
    ("class_code", "ids", "revision", "rule"),
    [
        ("120000", "1d22:3684", "01", "id 1d22:3684 (Kunlun 1)"),
        ("078000", "1d22:3684", "02", "id 1d22:3684 (Kunlun 2)"),  # a "communication controller"
        ("078000", "1d22:3684", None, "id 1d22:3684 (Kunlun)"),
        ("120000", "1d22:3685", "02", "id 1d22:3685 (Kunlun 2 virtual function)"),
        ("ff0000", "1d22:3688", None, "id 1d22:3688 (P800)"),
        ("030200", "10de:2330", None, "id 10de:2330 (H100 SXM)"),
        ("030200", "10de:26b9", None, "class 0302 (3D controller)"),
        ("030000", "10de:2684", None, "class 0300 (VGA controller) of vendor 10de"),
        ("038000", "1002:740f", None, "id 1002:740f (MI200)"),
        ("038000", "1002:7410", None, "class 0380 (display controller) of vendor 1002"),
        ("120000", "1002:74a1", None, "id 1002:74a1 (MI300X)"),
        ("120000", "19e5:d802", None, "id 19e5:d802 (910B)"),
        ("0b4000", "1d94:6210", None, "id 1d94:6210 (K100-AI)"),
        ("0b4000", "1bcf:001c", None, "id 1bcf:001c (NEC Vector Engine)"),
        ("0b4000", "8086:225c", None, "class 0b40 (co-processor)"),
        (None, "1d22:3684", "02", "id 1d22:3684 (Kunlun 2)"),
    ],
)
def test_accelerators_and_the_rule_that_says_so(
    class_code: str | None, ids: str, revision: str | None, rule: str
) -> None:
    found = classify(class_code, *ids.split(":"), revision=revision)
    assert (found.kind, found.rule) == ("accelerator", rule)


@pytest.mark.parametrize(
    ("class_code", "ids", "kind"),
    [
        ("060400", "10de:05b1", "bridge"),
        ("068000", "10de:22a3", "bridge"),  # NVSwitch
        ("068000", "10de:1af1", "bridge"),
        ("040300", "10de:22ba", "other"),  # its audio function
        ("060400", "1002:1478", "bridge"),
        ("060400", "1d94:145d", "bridge"),
        ("060400", "19e5:a128", "bridge"),
        ("120000", "19e5:a250", "other"),  # ZIP engine, class of an accelerator
        ("010802", "1d22:1380", "nvme"),
        ("030000", "1a03:2000", "other"),  # a management controller's VGA
        ("038000", "8086:4680", "other"),
        ("060400", "1d22:3684", "bridge"),  # base class 06 goes first, whatever the ids
    ],
)
def test_what_is_no_accelerator(class_code: str, ids: str, kind: str) -> None:
    assert classify(class_code, *ids.split(":")).kind == kind


@pytest.mark.parametrize(
    ("class_code", "ids", "folder", "kind", "rule"),
    [
        ("020000", "8086:1572", False, "nic", "base class 02"),
        ("020000", "8086:1572", True, "rdma-nic", "infiniband folder"),
        ("0c0600", "1077:7322", True, "rdma-nic", "infiniband folder"),
        ("020000", "15b3:1021", False, "rdma-nic", "class 0200 of vendor 15b3, no infiniband folder"),
        ("020700", "15b3:1021", False, "rdma-nic", "class 0207 (InfiniBand controller)"),
        ("0c0600", "1077:7322", False, "rdma-nic", "class 0c06 (InfiniBand on a serial bus)"),
        ("020800", "8086:24f0", False, "rdma-nic", "class 0208 (fabric controller)"),
        ("020000", "1d0f:efa2", False, "rdma-nic", "id 1d0f:efa2 (EFA)"),
        ("010802", "144d:a80a", False, "nvme", "class 0108"),
    ],
)
def test_nics_and_nvme(class_code: str, ids: str, folder: bool, kind: str, rule: str) -> None:
    found = classify(class_code, *ids.split(":"), has_infiniband=folder)
    assert (found.kind, found.rule) == (kind, rule)


def test_without_a_vendor_the_class_alone_decides_where_it_can() -> None:
    assert classify("030200", None, None).kind == "accelerator"
    assert classify("030000", None, None).kind == "other"
    assert classify(None, None, None).rule == "class not known"

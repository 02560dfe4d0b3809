"""PCI functions from /sys/bus/pci/devices: one listing a function, then only the files that are there.

Reading the config space or the link files wakes a sleeping device (Linux `pci_config_pm_runtime_get`): a function whose
runtime_status says suspended is left alone unless the caller asks to wake it. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicachectl.tuning.host.accelerators import classify
from hicachectl.tuning.host.config_file import Extended, header_revision, header_subsystem, read_config, with_extended
from hicachectl.tuning.host.facts import Confidence, Fact, known, unknown
from hicachectl.tuning.host.id_lists import parse_id_list, parse_id_mask
from hicachectl.tuning.host.model import ConfigSpace, Link, PciDevice, SlotKind
from hicachectl.tuning.host.pci_ids import PciNames
from hicachectl.tuning.host.pcie_caps import ASLEEP, SPEEDS_GT_S, WIDTHS, decode_config, of_virtual, unread_config
from hicachectl.tuning.host.root import HostRoot

__all__ = ["DEVICES", "is_pci_address", "parse_link_speed", "parse_link_width", "read_count", "read_devices"]

DEVICES = "/sys/bus/pci/devices"
_NODES = "/sys/devices/system/node"
_IOMMU_GROUPS = "/sys/kernel/iommu_groups"
_HEX = frozenset("0123456789abcdef")
_SPEEDS = {word: speed for speed in SPEEDS_GT_S for word in (f"{speed:g}", f"{speed:.1f}")}
_AER = ("correctable", "nonfatal", "fatal")
_RUNTIME_STATUS = frozenset(("active", "suspended", "suspending", "resuming", "error", "unsupported"))
"""Linux drivers/base/power/sysfs.c, runtime_status_show."""
_N_BARS = 6
_NO_BAR = "0x0000000000000000"
_IORESOURCE_MEM = 0x200
"""Linux include/linux/ioport.h."""
_NO_FILE = "no such file"


def read_devices(root: HostRoot, *, wake: bool = False) -> tuple[PciDevice, ...]:
    """Return every PCI function, by domain, bus, device and function; () where the folder cannot be listed.

    `wake=True` also reads the config space and link of suspended functions, which wakes them; a recording in which they were
    awake is read the same way. Changes nothing else.
    """
    wake = wake or root.is_awake
    root.touched.woken |= wake
    listed = root.names(DEVICES).value or ()
    reader = _Reader(root, wake)
    return tuple(reader.device(address) for address in sorted(filter(is_pci_address, listed), key=_sort_key))


def read_count(root: HostRoot) -> Fact[int]:
    """Count what /sys/bus/pci/devices lists; unknown where it cannot be listed, or is empty beside root buses.

    The kernel makes both for one device (Linux drivers/pci): a folder with nothing in it is another one put over it.
    """
    listed = root.names(DEVICES)
    if listed.value == ():
        buses = [name for name in root.names("/sys/devices").value or () if is_pci_address(f"{name[3:]}:00.0")]
        if buses:
            return unknown(DEVICES, f"empty, but /sys/devices has {buses[0]}")
    return listed.then(len)


def is_pci_address(text: str) -> bool:
    """Whether this is DDDD:BB:DD.F in lower-case hex, with a domain of 4 to 8 digits. Pure.

    >>> is_pci_address("0000:01:00.0"), is_pci_address("10000000:e1:1f.7"), is_pci_address("pci0000:00")
    (True, True, False)
    """
    parts = text.split(":")
    if len(parts) != 3 or not 4 <= len(parts[0]) <= 8 or len(parts[1]) != 2 or len(parts[2]) != 4:
        return False
    domain, bus, slot = parts
    return (
        slot[2] == "." and slot[3] in "01234567" and slot[0] in "01" and _HEX.issuperset(domain + bus + slot[:2])
    )  # fmt: skip


def parse_link_speed(text: str) -> float | None:
    """Return GT/s from "8 GT/s", "8.0 GT/s PCIe" and their kind; None for "Unknown" or a speed PCIe does not have. Pure."""
    words = text.split()
    if len(words) < 2 or words[1] != "GT/s":
        return None
    return _SPEEDS.get(words[0])


def parse_link_width(text: str) -> int | None:
    """Return lanes; None for 0, 255 and other widths PCIe does not have. Pure."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 and int(text) in WIDTHS else None


def _sort_key(address: str) -> tuple[int, str]:
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


class _Reader:
    """Reads functions of one root; remembers what many functions share."""

    def __init__(self, root: HostRoot, wake: bool) -> None:
        self.root = root
        self.wake = wake
        self.names = PciNames(root)
        self._lists: dict[tuple[str, str], tuple[int, ...] | None] = {}
        self._iommu_types: dict[str, Fact[str]] = {}
        self._node_cpus: Fact[dict[int, frozenset[int]]] | None = None

    def device(self, address: str) -> PciDevice:
        folder = _Folder(self.root, f"{DEVICES}/{address}")
        class_code, vendor, device = folder.hex("class", 6), folder.hex("vendor", 4), folder.hex("device", 4)
        status = self._runtime_status(folder)
        asleep = not self.wake and status.value in ("suspended", "suspending")
        config_path = f"{folder.path}/config"
        header: Fact[bytes] = Fact(None, config_path, reason=ASLEEP if asleep else _NO_FILE)
        if not asleep and folder.has("config"):
            header = read_config(self.root, config_path)
        revision = header_revision(header.value or b"", config_path) or folder.hex("revision", 2)
        infiniband, net = folder.listing("infiniband"), folder.listing("net")
        found = classify(
            class_code.value, vendor.value, device.value,
            revision=revision.value, has_infiniband=None if infiniband.value is None else bool(infiniband.value),
            infiniband_reason=infiniband.reason,
        )  # fmt: skip
        config = self._config(header, found.kind, class_code.value or "")
        path, host_bridge = _path(folder.target(), address)
        node, node_fallback, local_cpus = self._locality(folder)
        group, domain = self._iommu(folder)
        is_vf, physical = _virtual(folder)
        if is_vf.value:
            config = of_virtual(config, physical.value)
        return PciDevice(
            address=address,
            class_code=class_code,
            vendor=vendor,
            device=device,
            revision=revision,
            subsystem=header_subsystem(header.value or b"", config_path) or _subsystem(folder),
            name=self.names.name(vendor.value, device.value)
            if vendor.value
            else unknown(vendor.source, "vendor not known"),
            kind=found.kind,
            kind_rule=found.rule,
            driver=folder.link_name("driver", "no driver bound"),
            node=node,
            node_fallback=node_fallback,
            local_cpus=local_cpus,
            iommu_group=group,
            iommu_domain=domain,
            sriov_vfs=folder.number("sriov_numvfs", "no SR-IOV"),
            is_vf=is_vf,
            bar_bytes=folder.text("resource").then(_largest_bar, why_not="no memory BAR"),
            runtime_status=status,
            aer={kind: folder.text(f"aer_dev_{kind}").then(_aer_total, why_not="no total") for kind in _AER},
            link=_link(folder, config, asleep),
            config=config,
            path=path,
            parent=path[-1] if path else None,
            host_bridge=host_bridge,
            physical_function=physical,
            interfaces=(*(infiniband.value or ()), *(net.value or ())) or folder.of_virtio(),
            listed=_n_interfaces(infiniband, net),
        )

    def _runtime_status(self, folder: _Folder) -> Fact[str]:
        if not folder.has("power"):
            return unknown(f"{folder.path}/power/runtime_status", _NO_FILE)
        status = self.root.text(f"{folder.path}/power/runtime_status")
        return status.then(lambda word: word if word in _RUNTIME_STATUS else None, why_not="no such status")

    def _config(self, header: Fact[bytes], kind: str, class_code: str) -> ConfigSpace:
        """Decode what was read; access control is looked for where it matters: ports and functions that move data."""
        if header.value is None:
            return unread_config(header.source, header.reason or "")
        short = "its extended space is not asked for: neither a port nor something that moves data"
        extended = Extended(header.value)
        if kind != SlotKind.OTHER and (kind != SlotKind.BRIDGE or class_code.startswith("0604")):
            extended = with_extended(self.root, header.source, header.value)
            short = "no extended space, the file ends there"
        return decode_config(extended.data, header.source, cut=extended.cut, short=short)

    def _locality(self, folder: _Folder) -> tuple[Fact[int], Fact[tuple[int, ...]], Fact[tuple[int, ...]]]:
        node = folder.text("numa_node").then(_node, why_not="firmware gives no node")
        if folder.has("local_cpulist") or not folder.has("local_cpus"):
            cpus = folder.text("local_cpulist").then(lambda text: self._ids(text, "list"))
        else:
            cpus = folder.text("local_cpus").then(lambda text: self._ids(text, "mask"))
        if node.value is not None:
            return node, unknown(node.source, "not needed: the node is known"), cpus
        if cpus.value is None:
            return node, Fact(None, cpus.source, Confidence.DERIVED, cpus.reason), cpus
        nodes = self._nodes()
        if nodes.value is None:
            return node, Fact(None, nodes.source, Confidence.DERIVED, nodes.reason), cpus
        local = frozenset(cpus.value)
        near = tuple(one for one, its in nodes.value.items() if its & local)
        if not near:
            return node, Fact(None, cpus.source, Confidence.DERIVED, "no node has these CPUs"), cpus
        return node, Fact(near, cpus.source, Confidence.DERIVED), cpus

    def _ids(self, text: str, form: str) -> tuple[int, ...] | None:
        key = (form, text)
        if key not in self._lists:
            try:
                self._lists[key] = parse_id_list(text) if form == "list" else parse_id_mask(text)
            except ValueError:
                self._lists[key] = None
        return self._lists[key]

    def _nodes(self) -> Fact[dict[int, frozenset[int]]]:
        if self._node_cpus is None:
            found: dict[int, frozenset[int]] = {}
            listed = self.root.names(_NODES)
            for name in listed.value or ():
                if name.startswith("node") and name[4:].isascii() and name[4:].isdigit():
                    cpus = self.root.text(f"{_NODES}/{name}/cpulist").then(lambda text: self._ids(text, "list"))
                    if cpus.value is None:
                        cpus = self.root.text(f"{_NODES}/{name}/cpumap").then(lambda text: self._ids(text, "mask"))
                    found[int(name[4:])] = frozenset(cpus.value or ())
            self._node_cpus = (
                Fact(None, _NODES, reason=listed.reason)
                if listed.value is None
                else known(dict(sorted(found.items())), _NODES)
            )
        return self._node_cpus

    def _iommu(self, folder: _Folder) -> tuple[Fact[str], Fact[str]]:
        group = folder.link_name("iommu_group", "no IOMMU group")
        if group.value is None:
            return group, group
        if group.value not in self._iommu_types:
            self._iommu_types[group.value] = self.root.text(f"{_IOMMU_GROUPS}/{group.value}/type")
        return group, self._iommu_types[group.value]


class _Folder:
    """One function's folder: what its listing does not name is not opened; without a listing everything is tried."""

    def __init__(self, root: HostRoot, path: str) -> None:
        self.root, self.path = root, path
        listed = root.names(path).value
        self._listed = None if listed is None else frozenset(listed)

    def has(self, name: str) -> bool:
        return self._listed is None or name in self._listed

    def text(self, name: str) -> Fact[str]:
        path = f"{self.path}/{name}"
        return self.root.text(path) if self.has(name) else Fact(None, path, reason=_NO_FILE)

    def names(self, name: str, listed_as: str | None = None) -> tuple[str, ...]:
        return self.root.names(f"{self.path}/{name}").value or () if self.has(listed_as or name) else ()

    def of_virtio(self) -> tuple[str, ...]:
        """Interfaces and disks one level down, below the virtio device that a virtual machine's function carries."""
        inner = [name for name in self._listed or () if name.startswith("virtio") and name[6:].isdigit()]
        return tuple(
            found for one in sorted(inner) for kind in ("net", "block") for found in self.names(f"{one}/{kind}", one)
        )

    def listing(self, name: str) -> Fact[tuple[str, ...]]:
        """List a folder in it; one that is not there has no names, which is known."""
        path = f"{self.path}/{name}"
        found = self.root.names(path) if self.has(name) else Fact(None, path, reason=_NO_FILE)
        return known((), path) if found.reason == _NO_FILE else found

    def target(self) -> Fact[str]:
        return self.root.link(self.path)

    def link_name(self, name: str, otherwise: str) -> Fact[str]:
        """Return the last part of where a link points; `otherwise` is the reason when it is not there."""
        path = f"{self.path}/{name}"
        if not self.has(name):
            return Fact(None, path, reason=otherwise)
        found = self.root.link(path)
        if found.value is None:
            return Fact(None, path, reason=otherwise if found.reason == _NO_FILE else found.reason)
        return found.then(lambda target: target.rstrip("/").rpartition("/")[2] or None)

    def hex(self, name: str, n_digits: int) -> Fact[str]:
        """Read "0x10de" as exactly `n_digits` lower-case digits."""
        return self.text(name).then(lambda text: _hex_digits(text, n_digits), why_not=f"not {n_digits} hex digits")

    def number(self, name: str, otherwise: str) -> Fact[int]:
        found = self.text(name)
        if found.value is None and found.reason == _NO_FILE:
            return Fact(None, found.source, reason=otherwise)
        return found.then(_count, why_not="not a number")


def _hex_digits(text: str, n_digits: int) -> str | None:
    digits = text.lower().removeprefix("0x")
    return digits if len(digits) == n_digits and _HEX.issuperset(digits) else None


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _node(text: str) -> int | None:
    """-1 is how Linux writes that the firmware has no _PXM for the device: unknown, never node 0."""
    return _count(text)


def _n_interfaces(*folders: Fact[tuple[str, ...]]) -> dict[str, Fact[int]]:
    """Say how many interfaces there are, or why that is not known; nothing where no folder tells of any."""
    unread = next((folder for folder in folders if folder.value is None), None)
    if unread is not None:
        return {"interfaces": Fact(None, unread.source, reason=unread.reason)}
    told = [folder for folder in folders if folder.value]
    source = ", ".join(folder.source for folder in told)
    return {"interfaces": known(sum(len(folder.value or ()) for folder in told), source)} if told else {}


def _subsystem(folder: _Folder) -> Fact[str]:
    vendor, device = folder.hex("subsystem_vendor", 4), folder.hex("subsystem_device", 4)
    if vendor.value is None or device.value is None:
        missing = vendor if vendor.value is None else device
        return Fact(None, missing.source, reason=missing.reason)
    return known(f"{vendor.value}:{device.value}", vendor.source)


def _virtual(folder: _Folder) -> tuple[Fact[bool], Fact[str]]:
    path = f"{folder.path}/physfn"
    if folder._listed is None:
        reason = "the device's folder cannot be listed"
        return unknown(path, reason), unknown(path, reason)
    if not folder.has("physfn"):
        return known(False, path), unknown(path, "not a virtual function")
    return known(True, path), folder.link_name("physfn", "not a virtual function")


def _path(target: Fact[str], address: str) -> tuple[tuple[str, ...], Fact[str]]:
    """Split .../pci0000:17/0000:17:00.0/0000:18:00.0 into the ports above `address` and the root bus.

    Behind a volume management device a second root bus starts: the path counts from the last one.
    """
    if target.value is None:
        return (), Fact(None, target.source, reason=target.reason)
    ports: list[str] = []
    bridge: str | None = None
    for part in target.value.split("/"):
        if is_pci_address(part):
            ports.append(part)
        elif part.startswith("pci") and is_pci_address(part[3:] + ":00.0"):
            ports, bridge = [], part[3:]
    if ports and ports[-1] == address:
        ports.pop()
    if bridge is None:
        return tuple(ports), unknown(target.source, "no root bus in the device's path")
    return tuple(ports), known(bridge, target.source)


def _largest_bar(text: str) -> int | None:
    largest = 0
    for line in text.splitlines()[:_N_BARS]:
        words = line.split()
        if len(words) == 3 and words[1] == _NO_BAR:
            continue
        if len(words) != 3:
            return None
        first, last, flags = (int(word, 16) for word in words)
        if flags & _IORESOURCE_MEM and last > first:
            largest = max(largest, last - first + 1)
    return largest or None


def _aer_total(text: str) -> int | None:
    """Return the count of the last line, "TOTAL_ERR_COR 0"."""
    name, _, count = text.rpartition("\n")[2].partition(" ")
    return _count(count.strip()) if name.startswith("TOTAL_ERR") else None


def _link(folder: _Folder, config: ConfigSpace, asleep: bool) -> Link:
    """Take each value from sysfs, and from the link registers where sysfs has none."""
    registers = config.link

    def one(name: str, convert: Callable[[str], Any], register: Fact[Any] | None) -> Fact[Any]:
        if asleep:
            return Fact(None, f"{folder.path}/{name}", reason=ASLEEP)
        found: Fact[Any] = folder.text(name).then(convert, why_not="not known to the kernel")
        return register if found.value is None and register is not None and register.value is not None else found

    return Link(
        speed_now_gt_s=one("current_link_speed", parse_link_speed, registers.speed_now_gt_s if registers else None),
        speed_max_gt_s=one("max_link_speed", parse_link_speed, registers.speed_max_gt_s if registers else None),
        width_now=one("current_link_width", parse_link_width, registers.width_now if registers else None),
        width_max=one("max_link_width", parse_link_width, registers.width_max if registers else None),
    )

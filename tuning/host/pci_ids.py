"""Names of vendors and devices from an installed pci.ids, looked up without reading it line by line."""

from __future__ import annotations

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import NO_SUCH_FILE, HostRoot

__all__ = ["PATHS", "PciNames", "find_pci_ids"]

PATHS = (
    "/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/usr/share/pci.ids", "/var/lib/pciutils/pci.ids",
    "/usr/local/share/pci.ids",
)  # fmt: skip
"""Where distributions put it: Debian, Red Hat and SUSE, older releases, update-pciids, a local build. The first that can be read counts."""
_MAX_BYTES = 16 << 20
"""The published file has 1.5 MB."""


def find_pci_ids(root: HostRoot) -> Fact[str]:
    """Return the path of the first pci.ids that can be read and is not empty; never the one of another machine than `root`."""
    unread: Fact[str] | None = None
    for path in PATHS:
        text = root.data(path, _MAX_BYTES)
        if text.value:
            return known(path, path)
        reason = text.reason or "an empty file"
        if reason != NO_SUCH_FILE and unread is None:
            unread = unknown(path, reason)
    for path in (f"{path}.gz" for path in PATHS if unread is None):
        packed = root.there(path)
        if packed.value is not False:
            return unknown(path, packed.reason or "only a packed pci.ids.gz is installed")
    return unread or unknown(PATHS[0], "no pci.ids installed")


class PciNames:
    """Looks names up in one pci.ids; reads the file at the first question."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root
        self._text: Fact[bytes] | None = None
        self._known: dict[tuple[str, str | None], Fact[str]] = {}

    def name(self, vendor: str, device: str | None) -> Fact[str]:
        """Return "Vendor Device" for ids of four hex digits; "Vendor Device 1234" where only the vendor is listed."""
        key = (vendor, device)
        if key not in self._known:
            self._known[key] = self._look_up(vendor, device)
        return self._known[key]

    def _look_up(self, vendor: str, device: str | None) -> Fact[str]:
        if self._text is None:
            path = find_pci_ids(self._root)
            self._text = (
                self._root.data(path.value, _MAX_BYTES)
                if path.value is not None
                else unknown(path.source, path.reason or "")
            )
        text, source = self._text.value, self._text.source
        if text is None:
            return Fact(None, source, reason=self._text.reason)
        line = _line(text, b"\n" + vendor.encode() + b"  ", 0, len(text))
        if line is None:
            return unknown(source, f"vendor {vendor} is not listed")
        vendor_name, start = line
        if device is None:
            return known(vendor_name, source)
        found = _line(text, b"\n\t" + device.encode() + b"  ", start - 1, _section_end(text, start))
        return known(f"{vendor_name} {found[0] if found else 'Device ' + device}", source)


def _line(text: bytes, start_with: bytes, low: int, high: int) -> tuple[str, int] | None:
    """Return the rest of the first line in [low, high) that starts so, and where the next line starts."""
    if low == 0 and text.startswith(start_with[1:]):
        at = len(start_with) - 1
    else:
        at = text.find(start_with, low, high)
        if at < 0:
            return None
        at += len(start_with)
    end = text.find(b"\n", at)
    end = len(text) if end < 0 else end
    return text[at:end].decode("utf-8", errors="backslashreplace").strip(), end + 1


def _section_end(text: bytes, start: int) -> int:
    """Where the vendor's lines end: at the first that neither starts with a tab nor is a comment nor empty."""
    at = start
    while at < len(text):
        if text[at : at + 1] not in (b"\t", b"#", b"\n"):
            return at
        end = text.find(b"\n", at)
        if end < 0:
            break
        at = end + 1
    return len(text)

"""A kernel over a made-up root: it answers writes as Linux does, or as a device that refuses, loses bits or falls off the bus."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import LiveKernel

__all__ = ["FakeKernel", "FakeRoot", "Temper"]


class Temper(str, Enum):
    """How a function answers a write to its config space."""

    GOOD = "good"
    REFUSES = "refuses"
    """The write is taken and the bits stay as they were."""
    REVERTS = "reverts"
    """The new value is read twice, then the old one again."""
    GARBLES = "garbles"
    """The first write sets a bit of somebody else too."""
    TAKES_PART = "takes-part"
    """Of two bits written to the high byte only the lower sticks."""
    FALLS_OFF = "falls-off"
    """From the write on it reads all ones."""
    STICKS = "sticks"
    """It takes the first write and no other."""


class FakeRoot(HostRoot):
    """A recorded host whose config reads the fake kernel can change."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, name=path.name)
        self.reverting: dict[tuple[str, int], tuple[int, bytes]] = {}
        """(path, offset) -> reads left that give what the file holds, and what comes afterwards."""
        self.hidden: dict[str, str] = {}
        """path -> reason: files that may not be read from now on."""

    def piece(self, path: str, offset: int, n_bytes: int) -> Fact[bytes]:
        """Read, letting a reverting register fall back after its reads."""
        if path in self.hidden:
            return Fact(None, path, reason=self.hidden[path])
        key = (path, offset)
        if key in self.reverting:
            left, old = self.reverting[key]
            if left == 0:
                with open(self.at(path), "r+b") as file:
                    file.seek(offset)
                    file.write(old)
                del self.reverting[key]
            else:
                self.reverting[key] = (left - 1, old)
        return super().piece(path, offset, n_bytes)

    def text(self, path: str) -> Fact[str]:
        """Read, unless the file was hidden."""
        return Fact(None, path, reason=self.hidden[path]) if path in self.hidden else super().text(path)


@dataclass
class FakeKernel:
    """Writes into a `FakeRoot`. `log` holds every write that reached it, `tempers` the odd functions by address."""

    root: FakeRoot
    tempers: dict[str, Temper] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """path -> errno of every write to it."""
    log: list[tuple[str, str]] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    def may_write(self, path: str, *, make: bool = False) -> OSError | None:
        """Say whether a write would be let through."""
        if path in self.refused:
            return OSError(self.refused[path], os.strerror(self.refused[path]), path)
        return LiveKernel(self.root).may_write(path, make=make)

    def write_text(self, path: str, text: str) -> None:
        """Write a word; a file that lists its words takes only one of them and shows it in brackets."""
        self._may(path)
        at = self.root.at(path)
        before = at.read_text()
        words = [word.strip("[]") for word in before.split()]
        if "[" in before:
            if text not in words:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            after = " ".join(f"[{word}]" if word == text else word for word in words)
            after += before[len(before.rstrip()) :]
        else:
            after = text + before[len(before.rstrip()) :]
        self.log.append((path, text))
        if self.tempers.get(path) is Temper.REFUSES:
            return
        at.write_text(after)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write a register as the function's temper will have it."""
        self._may(path)
        self.log.append((path, f"{offset:#x}={data.hex()}"))
        temper = self.tempers.get(path.split("/")[-2], Temper.GOOD)
        at = self.root.at(path)
        old = at.read_bytes()[offset : offset + len(data)]
        if temper is Temper.REFUSES or (temper is Temper.STICKS and path in self.written):
            return
        first = path not in self.written
        self.written.add(path)
        if temper is Temper.GARBLES and first:
            data = bytes(byte ^ 0x02 for byte in data)
        if temper is Temper.TAKES_PART and len(data) == 2 and data[1] == 0x03:
            data = bytes((data[0], 0x01))
        if temper is Temper.FALLS_OFF:
            at.write_bytes(b"\xff" * at.stat().st_size)
            return
        LiveKernel(self.root).write_at(path, offset, data)
        if temper is Temper.REVERTS and data != old:
            self.root.reverting[(path, offset)] = (2, old)

    def remount(self, path: str, keep: tuple[str, ...], data: str) -> None:
        """Change the option in the mount table, as the kernel shows it afterwards (never is not shown)."""
        self._may(path)
        self.log.append((path, data))
        table = self.root.at("/proc/self/mountinfo")
        lines = []
        for line in table.read_text().splitlines():
            before, dash, after = line.partition(" - ")
            kind, source, options = after.split(" ", 2)
            if before.split(" ")[4] == path and kind == "tmpfs":
                words = [word for word in options.split(",") if not word.startswith("huge=")]
                if data != "huge=never":
                    words.append(data)
                after = f"{kind} {source} {','.join(words)}"
            lines.append(before + dash + after)
        table.write_text("\n".join(lines) + "\n")

    def ioctl(self, path: str, request: int, message: bytes) -> bytes:
        """Refuse: no device of a made-up host takes messages."""
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY), path)

    def write_file(self, path: str, text: str | None) -> None:
        """Replace or remove a whole file."""
        self._may(path)
        self.log.append((path, "removed" if text is None else text))
        LiveKernel(self.root).write_file(path, text)

    def _may(self, path: str) -> None:
        if path in self.refused:
            raise OSError(self.refused[path], os.strerror(self.refused[path]), path)

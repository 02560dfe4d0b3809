"""The one door through which a host is written. Reads go through `HostRoot`; nothing else in tuning opens a file of a host for writing.

`LiveKernel` makes one system call a write. It is given a root like the readers, so that tests write into a made-up host;
commands refuse --root before they come here.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Protocol

from hicachectl.tuning.host.root import HostRoot

__all__ = ["MOUNT_FLAGS", "Kernel", "LiveKernel"]

_MS_REMOUNT, _MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x20, 0x1, 0x2, 0x4, 0x8  # include/uapi/linux/mount.h
MOUNT_FLAGS = {"rw": 0, "ro": _MS_RDONLY, "nosuid": _MS_NOSUID, "nodev": _MS_NODEV, "noexec": _MS_NOEXEC,
          "noatime": 0x400, "nodiratime": 0x800, "relatime": 1 << 21, "strictatime": 1 << 24, "nosymfollow": 0x100, "lazytime": 1 << 25}  # fmt: skip


class Kernel(Protocol):
    """What can be done to a host. Every write raises OSError with the kernel's errno when it refuses."""

    def may_write(self, path: str, *, make: bool = False) -> OSError | None:
        """Open a file for writing and close it, without writing; return the error when that is refused.

        `make` asks for a file that need not be there: then its folder must take one.
        """

    def write_text(self, path: str, text: str) -> None:
        """Write a word to a settings file with one write(2)."""

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write exactly `data` at `offset` with one pwrite(2): a config register, an MSR."""

    def remount(self, path: str, keep: tuple[str, ...], data: str) -> None:
        """Remount a tmpfs with new `data` (huge=advise); `keep` are the flags its mount has now (rw, nosuid, nodev), which a remount would drop."""

    def ioctl(self, path: str, request: int, message: bytes) -> bytes:
        """Send a message to a device with one ioctl(2); return it as the driver left it."""

    def write_file(self, path: str, text: str | None) -> None:
        """Replace a small file whole, so that a crash leaves the old or the new one; None removes it."""


class LiveKernel:
    """The real calls, below `root`."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root

    def may_write(self, path: str, *, make: bool = False) -> OSError | None:
        """Open the file for writing, write nothing, close it. Changes nothing; returns the kernel's refusal or None."""
        if make:
            folder = self._root.at(path).parent
            allowed = os.access(folder, os.W_OK | os.X_OK)
            return None if allowed else OSError(errno.EACCES, "no file can be made there", str(folder))
        try:
            os.close(os.open(self._root.at(path), os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            return error
        return None

    def write_text(self, path: str, text: str) -> None:
        """Write a word to an existing settings file. Changes the host. Raises OSError; a short write is EIO."""
        data = text.encode()
        handle = os.open(self._root.at(path), os.O_WRONLY | os.O_CLOEXEC | (0 if self._root.is_live else os.O_TRUNC))
        try:
            _whole(os.write(handle, data), len(data), path)
        finally:
            os.close(handle)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write `data` at `offset`, aligned to its length, in one call. Changes the host.

        The kernel turns an aligned 2-byte write to a config file into one word access (drivers/pci/pci-sysfs.c,
        pci_write_config). Raises OSError, ValueError for an unaligned offset.
        """
        if len(data) not in (1, 2, 4, 8) or (offset % len(data) and len(data) < 8):
            raise ValueError(f"{path}: {len(data)} bytes at {offset:#x} are not one aligned access")
        handle = os.open(self._root.at(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            _whole(os.pwrite(handle, data, offset), len(data), path)
        finally:
            os.close(handle)

    def remount(self, path: str, keep: tuple[str, ...], data: str) -> None:
        """Remount the tmpfs at `path` with mount(2). Changes the host; options that `data` does not name stay as they are.

        A flag that is not passed again is cleared, hence `keep`; unknown words in it raise ValueError before anything is
        changed. Options of the file system keep their value unless named (mm/shmem.c, shmem_reconfigure). Raises OSError.
        """
        if not self._root.is_live:
            raise ValueError(f"{path}: a mount can only be changed on the live host")
        strange = [word for word in keep if word not in MOUNT_FLAGS]
        if strange:
            raise ValueError(f"{path}: mount flags {', '.join(strange)} would be lost by a remount")
        flags = _MS_REMOUNT
        for word in keep:
            flags |= MOUNT_FLAGS[word]
        libc = ctypes.CDLL(None, use_errno=True)
        call = libc.mount
        call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
        if call(b"tmpfs", os.fsencode(path), b"tmpfs", flags, data.encode()) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)

    def ioctl(self, path: str, request: int, message: bytes) -> bytes:
        """Send the message, opened for reading and writing. Changes what the device makes of it. Raises OSError."""
        handle = os.open(self._root.at(path), os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = bytearray(message)
            fcntl.ioctl(handle, request, answer)
            return bytes(answer)
        finally:
            os.close(handle)

    def write_file(self, path: str, text: str | None) -> None:
        """Write beside the file, flush to disk, rename over it, flush the folder. Changes the host's files.

        What lies at `path`, a link too, is replaced and not followed. Removing a file that is not there is no error.
        Raises OSError.
        """
        at = self._root.at(path)
        if text is None:
            at.unlink(missing_ok=True)
        else:
            new = at.with_name(f".{at.name}.new")  # one name: what a crash left behind is written over
            data = text.encode()
            mode = stat.S_IMODE(at.lstat().st_mode) if at.is_file() and not at.is_symlink() else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(new, flags, 0o644)
            try:
                os.fchmod(handle, mode)
                _whole(os.write(handle, data), len(data), path)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.rename(new, at)
        _sync_folder(at.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _whole(written: int, wanted: int, path: str) -> None:
    if written != wanted:
        raise OSError(5, f"{written} of {wanted} bytes were written", path)

"""A register of the system management network of AMD and Hygon, through the kernel's debugfs door (docs/facts.md#smn).

Three files: `node` and `address` select, `value` reads or writes. The selection is kept for everybody at once, so it is
locked against other runs of this program and looked at again afterwards: another program in between is an error, never a
wrong value. Reading selects too, which writes two files and no register, and is done on a live host alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hicachectl.tuning.access.ways import Way
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel, LiveKernel
from hicachectl.tuning.target import Target, Value, units_of

__all__ = ["SmnAccess"]

_DOOR = Way(
    "debugfs has no x86/amd_smn (boot with amd_smn_debugfs_enable, Linux 6.15 or newer, and mount debugfs)",
    "it needs root, and lockdown closes debugfs",
)
_LIVE_ONLY = "asked of a live host only"
_OTHER = "another program selected a register at the same time"


class SmnAccess:
    """`Target.path` is the file `value`; the register's offset is node and address (`unit_offset`), its width 32."""

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Select and read. Writes the selection, no register."""
        node, address = _place(target)
        name = f"{target.path} node {node} {address:#010x}"
        if not root.is_live:
            return unknown(name, _LIVE_ONLY)
        try:
            with _locked(root, target):
                _select(LiveKernel(root), target)
                found = root.text(target.path)
                if not _is_selected(root, target):
                    return unknown(name, _DOOR.failed(_OTHER))
        except OSError as error:
            return unknown(name, _DOOR.why(_reason(error)))
        if found.value is None:
            return unknown(name, _DOOR.why(found.reason or ""))
        value = _number(found.value)
        return (
            unknown(name, _DOOR.failed(f"not a number: {found.value[:40]!r}")) if value is None else known(value, name)
        )

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Select, and write the whole register. Changes the hardware and taints the kernel. Raises OSError; EBUSY when another program selected."""
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        with _locked(root, target):
            _select(kernel, target)
            if not _is_selected(root, target):
                raise OSError(errno.EBUSY, _OTHER, target.path)
            kernel.write_text(target.path, f"{value & ~register.never:#010x}\n")

    def shell(self, target: Target, value: Value) -> str:
        """Return the three lines as one. Pure."""
        node, address = _place(target)
        register, folder = target.register, target.path.rpartition("/")[0]
        assert register is not None
        assert isinstance(value, int)
        word = value & ~register.never
        return f"cd {folder} && echo {node:#x} > node && echo {address:#x} > address && echo {word:#x} > value"


def _place(target: Target) -> tuple[int, int]:
    assert target.register is not None
    return units_of(target.register.offset)


def _selectors(target: Target) -> tuple[tuple[str, int], ...]:
    folder, (node, address) = target.path.rpartition("/")[0], _place(target)
    return ((f"{folder}/node", node), (f"{folder}/address", address))


def _select(kernel: Kernel, target: Target) -> None:
    for path, number in _selectors(target):
        kernel.write_text(path, f"{number:#010x}\n")


def _is_selected(root: HostRoot, target: Target) -> bool:
    return all(_number(root.text(path).value or "") == number for path, number in _selectors(target))


@contextmanager
def _locked(root: HostRoot, target: Target) -> Iterator[None]:
    """Hold the folder's `node` file against other runs of this program."""
    handle = os.open(root.at(_selectors(target)[0][0]), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _number(text: str) -> int | None:
    try:
        return int(text.strip(), 0)
    except ValueError:
        return None


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission denied"
    return error.strerror or str(error)

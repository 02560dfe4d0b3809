"""A setting behind AMD's host system management port: messages to a socket's firmware through /dev/hsmp (docs/facts.md#hsmp).

Only messages that another message reads back are here, for the old value is what a journal keeps. The structure and the
numbers are those of Linux arch/x86/include/uapi/asm/amd_hsmp.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable

from hicachectl.tuning.access.ways import Way
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel
from hicachectl.tuning.target import Target, Value, units_of

__all__ = ["HSMP_REQUEST", "HsmpAccess", "pack_message", "unpack_answer"]

_MESSAGE = struct.Struct("<IHH8IHxx")
"""struct hsmp_message, packed to 4 bytes: id, arguments, words of answer, eight words, socket."""
HSMP_REQUEST = 3 << 30 | _MESSAGE.size << 16 | 0xF8 << 8
"""HSMP_IOCTL_CMD: _IOWR(0xF8, 0, struct hsmp_message)."""
_SET_LCLK_LEVELS, _GET_LCLK_LEVELS = 0x12, 0x13
_READ_BY = {_SET_LCLK_LEVELS: _GET_LCLK_LEVELS}
"""Message that sets -> message that reads the same."""
_DOOR = Way("there is no /dev/hsmp (sudo modprobe amd_hsmp; AMD EPYC from 7003 on)", "/dev/hsmp needs root")
_LIVE_ONLY = "asked of a live host only"

Ask = Callable[[HostRoot, str, bytes], bytes]
"""Sends a message and returns it as the driver left it. Raises OSError."""


def _ask(root: HostRoot, path: str, message: bytes) -> bytes:
    handle = os.open(root.at(path), os.O_RDONLY | os.O_CLOEXEC)  # the driver lets a reader ask and not set
    try:
        answer = bytearray(message)
        fcntl.ioctl(handle, HSMP_REQUEST, answer)
        return bytes(answer)
    finally:
        os.close(handle)


class HsmpAccess:
    """`Target.path` is the device; the offset is socket, NBIO and message: `unit_offset(socket, nbio << 16 | message)`."""

    def __init__(self, ask: Ask = _ask) -> None:
        self._ask = ask

    def read(self, root: HostRoot, target: Target) -> Fact[Value]:
        """Ask for the present value with the message that reads. Reads the firmware."""
        socket, nbio, message = _place(target)
        name = f"{target.path} socket {socket} nbio {nbio} message {_READ_BY[message]:#x}"
        if not root.is_live:
            return unknown(name, _LIVE_ONLY)
        try:
            answer = self._ask(root, target.path, pack_message(_READ_BY[message], socket, (nbio << 16,), 1))
        except OSError as error:
            return unknown(name, _why(error))
        return known(unpack_answer(answer) & _all_bits(target), name)

    def write(self, kernel: Kernel, root: HostRoot, target: Target, value: Value) -> None:
        """Send the message that sets. Changes the firmware's setting. Raises OSError."""
        socket, nbio, message = _place(target)
        register = target.register
        assert register is not None
        assert isinstance(value, int)
        word = nbio << 16 | value & ~register.never & _all_bits(target)
        kernel.ioctl(target.path, HSMP_REQUEST, pack_message(message, socket, (word,), 0))

    def shell(self, target: Target, value: Value) -> str:
        """Return the line of AMD's own tool. Pure."""
        socket, nbio, _ = _place(target)
        assert target.register is not None
        assert isinstance(value, int)
        levels = value & ~target.register.never
        return f"e_smi_tool --setlclkdpmlevel {socket} {nbio} {levels & 0xFF} {levels >> 8 & 0xFF}"


def pack_message(message: int, socket: int, words: tuple[int, ...], n_answer: int) -> bytes:
    """Return a struct hsmp_message. Pure."""
    return _MESSAGE.pack(message, len(words), n_answer, *words, *(0,) * (8 - len(words)), socket)


def unpack_answer(message: bytes) -> int:
    """Return the first word of a message's answer. Pure."""
    return int(_MESSAGE.unpack(message)[3])


def _place(target: Target) -> tuple[int, int, int]:
    assert target.register is not None
    socket, number = units_of(target.register.offset)
    return socket, number >> 16, number & 0xFFFF


def _all_bits(target: Target) -> int:
    assert target.register is not None
    return (1 << target.register.width) - 1


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return _DOOR.why("no such file")
    if error.errno in (errno.EACCES, errno.EPERM):
        return _DOOR.why("permission denied")
    if error.errno == errno.ENOMSG:
        return f"{_DOOR.why('no such file').partition(':')[0]}: this firmware does not know the message"
    return _DOOR.failed(error.strerror or str(error))

"""The memory policy of this process, and whether it may set one: asked with the real calls, in a child process."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys

from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.root import HostRoot

__all__ = ["policy_line", "probe_mempolicy_calls", "process_policy"]

_SOURCE = "get_mempolicy, set_mempolicy and mbind in a child process"
_TIMEOUT_S = 5.0
_HEAD_BYTES = 96
"""An address of 16 digits, a blank and a policy of 64 bytes at most (show_numa_map, fs/proc/task_mmu.c) end before."""
# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h: get_mempolicy, set_mempolicy, mbind
_GENERIC = (236, 237, 235)
_CALLS = {"x86_64": (239, 238, 237), "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}
_POLICY = re.compile(
    r"[0-9a-f]+ ((?:default|local|prefer \(many\)|prefer|bind|weighted interleave|interleave)\S*)(?: .*)?", re.ASCII
)

# Prints the first call that fails and its errno, or "ok". The policy dies with the child. The kernel uses maxnode - 1
# bits of the mask, hence bits + 1; the mask is whole words, so that no bit of it is undefined.
_CHILD = """
import ctypes, mmap, sys
get_call, set_call, bind_call, node = map(int, sys.argv[1:])
call = ctypes.CDLL(None, use_errno=True).syscall
call.restype = ctypes.c_long
bits = (node // 64 + 1) * 64
mask = (ctypes.c_ulong * (bits // 64))()
mask[node // 64] = 1 << node % 64
long = ctypes.c_long
page = mmap.mmap(-1, mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
mode = ctypes.c_int()
MPOL_PREFERRED, MPOL_BIND = 1, 2
for name, arguments in (
    ("get_mempolicy", (long(get_call), ctypes.byref(mode), None, long(0), None, long(0))),
    ("set_mempolicy", (long(set_call), long(MPOL_PREFERRED), mask, long(bits + 1))),
    ("mbind", (long(bind_call), ctypes.c_void_p(address), long(mmap.PAGESIZE), long(MPOL_BIND), mask, long(bits + 1), long(0))),
):
    if call(*arguments) != 0:
        print(name, ctypes.get_errno())
        break
else:
    print("ok")
"""


def process_policy(root: HostRoot) -> Fact[str]:
    """Read this process's policy, such as `interleave:0-7`: what numa_maps gives for a mapping that has none of its own."""
    path = "/proc/self/numa_maps"
    head = root.data(path, _HEAD_BYTES).then(lambda found: found.decode("utf-8", "backslashreplace").partition("\n")[0])
    return head.then(_policy, why_not="names no policy")


def policy_line(text: str) -> str:
    """Return the first line of a numa_maps without its address and what is mapped there; nothing where it names no policy. Pure.

    >>> policy_line("7f3a00000000 bind:1 file=/home/me/secret mapped=9\\n")
    '0 bind:1\\n'
    """
    policy = _policy(text.partition("\n")[0])
    return f"0 {policy}\n" if policy is not None else ""


def probe_mempolicy_calls(
    root: HostRoot, allowed_nodes: Fact[tuple[int, ...]], architecture: str | None = None
) -> Fact[bool]:
    """Call get_mempolicy, set_mempolicy and mbind in a child process, as the pools do, on the first allowed node.

    A library's "available" proves nothing: under a seccomp filter libnuma still says so, and get_mempolicy may pass where
    set_mempolicy fails. A recording is never asked. `source` names the call that failed and its error.
    """
    if not root.is_live:
        return unknown(_SOURCE, "asked of a live host only")
    machine = architecture or os.uname().machine
    if machine not in _CALLS:
        return unknown(_SOURCE, f"the call numbers of {machine} are not known here")
    if not allowed_nodes.value:
        return unknown(_SOURCE, f"no node to ask for: {allowed_nodes.reason or 'none is allowed'}")
    if not sys.executable:
        return unknown(_SOURCE, "no interpreter to start a child with")
    command = [sys.executable, "-I", "-S", "-c", _CHILD, *map(str, _CALLS[machine]), str(allowed_nodes.value[0])]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return unknown(_SOURCE, f"no answer within {_TIMEOUT_S:g} s")
    except OSError as error:
        return unknown(_SOURCE, f"the child could not be started: {error.strerror}")
    return _verdict(child.returncode, child.stdout)


def _verdict(returncode: int, said: str) -> Fact[bool]:
    """Judge the child's last words. Pure."""
    if returncode == -signal.SIGSYS:
        return known(False, f"{_SOURCE}: killed by the system call filter")
    name, _, code = said.strip().partition(" ")
    if returncode != 0 or (name != "ok" and not code.isdigit()):
        return unknown(_SOURCE, f"the child ended with {returncode} and said {said.strip()[:60]!r}")
    if name == "ok":
        return known(True, _SOURCE)
    error = errno.errorcode.get(int(code), code)
    if error in ("EPERM", "EACCES", "ENOSYS"):
        return known(False, f"{_SOURCE}: {name} answered {error}")
    return unknown(_SOURCE, f"{name} answered {error}")


def _policy(line: str) -> str | None:
    match = _POLICY.fullmatch(line)
    return match[1] if match else None

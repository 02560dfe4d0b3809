"""What a benchmark changes of the host, for as long as it runs, and only when asked: shown, put back, read back, recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["changed", "chosen", "enter_private_mounts", "private_tmpfs"]

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_MARK = "HICACHE_BENCH_MOUNTS_OF"


def chosen(path: Path) -> str:
    """Return the word in brackets of a settings file, or the whole text where there are none."""
    text = path.read_text()
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else text.strip()


@contextmanager
def changed(path: Path, word: str | None, record: dict[str, Any]) -> Iterator[None]:
    """Write `word` to a settings file while the block runs, put the old one back whatever happens, and read it back.

    `record` gets path, old, new and restored. None changes nothing. Raises OSError when it cannot be written, RuntimeError when the
    old value does not come back: the host is then not as it was.
    """
    if word is None:
        yield
        return
    old = chosen(path)
    record.update(path=str(path), old=old, new=word, restored=None)
    print(f"{path}: {old} -> {word}, put back at the end", file=sys.stderr)
    try:
        path.write_text(word)
        record["read_back"] = chosen(path)
        yield
    finally:
        path.write_text(old)
        record["restored"] = chosen(path)
        print(f"{path}: {record['restored']} again", file=sys.stderr)
        if record["restored"] != old:
            raise RuntimeError(f"{path} is {record['restored']}, was {old}: write {old} to it")


def enter_private_mounts(script: str) -> str | None:
    """Run this program again in mounts of its own (unshare), where a tmpfs can be mounted that the host never sees.

    Returns None inside them, and the reason when they cannot be had. A remount of the host's own tmpfs would not stay inside:
    its options belong to the file system, which all mount namespaces share.
    """
    mine = os.readlink("/proc/self/ns/mnt")
    outside = os.environ.get(_MARK)
    if outside is not None:
        return None if outside != mine else "unshare left the program in the host's own mounts"
    tried = (
        subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
        if _has_unshare()
        else None
    )
    if tried is None or tried.returncode != 0:
        return "no private mounts: " + (
            "unshare is not there" if tried is None else tried.stderr.strip() or "unshare failed"
        )
    os.environ[_MARK] = mine
    words = ["unshare", "--mount", "--propagation", "private", "--", sys.executable, script, *sys.argv[1:]]
    sys.stdout.flush()
    os.execvp("unshare", words)


@contextmanager
def private_tmpfs(n_bytes: int, record: dict[str, Any]) -> Iterator[str]:
    """Mount a tmpfs with huge=advise in this program's own mounts; unmount it and remove its folder at the end.

    Raises RuntimeError outside private mounts, CalledProcessError when the mount is refused.
    """
    if os.environ.get(_MARK) in (None, os.readlink("/proc/self/ns/mnt")):
        raise RuntimeError("not in mounts of its own")
    folder = tempfile.mkdtemp(prefix="hicachectl-bench-")
    options = f"huge=advise,size={n_bytes}"
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True, text=True
        )
        record.update(mount=folder, options=options, unmounted=None)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True, capture_output=True, text=True)
            record["unmounted"] = not os.path.ismount(folder)
    finally:
        os.rmdir(folder)


def _has_unshare() -> bool:
    return any(os.access(os.path.join(folder, "unshare"), os.X_OK) for folder in os.environ.get("PATH", "").split(":"))

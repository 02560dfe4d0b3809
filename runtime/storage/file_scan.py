"""What a storage folder holds when it is opened: a walk that sorts ours from foreign and old leftovers from live files.

    ROOT/hicache1-<namespace digest>/<first 3 hex digits>/<page key><suffix>.page      an object
    ROOT/.../.tmp-<pid>-<serial>-<random>                                             a write in progress or a leftover

One level of 4,096 folders: a million objects are 244 a folder and at most 4,096 folders to create and to walk, where two
levels of 256 would be 65,536 folders (256 MiB of directory blocks on ext4) for 15 files each; a flat folder meets the
limits of directory indexes (sgl-project/sglang#28653: ENOSPC at 7.5 million files on ext4).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hicachectl.errors import StorageError, StorageFault
from hicachectl.runtime.storage.file_format import TEMP_PREFIX, fault_of, remove_if_abandoned
from hicachectl.runtime.storage.file_index import ObjectId
from hicachectl.runtime.storage.object_keys import KEY_BYTES, ObjectNamespace

__all__ = ["EXTENSION", "FoundObject", "ScanReport", "prepare_folder", "relative_path", "scan_folder"]

EXTENSION = ".page"
_SHARD_CHARS = 3
_NAMESPACE = re.compile(r"hicache1-[0-9a-f]{32}")
_SHARD = re.compile(r"[0-9a-f]{3}")
_OBJECT = re.compile(r"([0-9a-f]{64})(.*)\.page", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One object file: its id in the index, its length and its last use as the file system recorded them."""

    object_id: ObjectId
    file_bytes: int
    mtime_ns: int


@dataclass(slots=True)
class ScanReport:
    """What the start-up scan met; foreign files are left alone and not counted as used bytes."""

    n_objects: int = 0
    n_other_namespace: int = 0
    n_temp_removed: int = 0
    n_temp_live: int = 0
    n_wrong_size: int = 0
    n_foreign: int = 0
    n_unreadable: int = 0
    n_evicted: int = 0
    wall_s: float = 0.0


def relative_path(namespace: ObjectNamespace, key: bytes) -> str:
    """Return where an object lives below the root. Pure."""
    name = namespace.name(key)
    return f"{namespace.folder}/{name[:_SHARD_CHARS]}/{name}{EXTENSION}"


def prepare_folder(root: str) -> tuple[int, bool]:
    """Create the folder, prove by a temporary file that it can be written; return its block size and whether it is full.

    A full disk is no reason to refuse: what it holds can be read and evicted. Raises StorageError.
    """
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        block_bytes = os.statvfs(root).f_frsize or 4096
        probe = f"{root}/{TEMP_PREFIX}{os.getpid()}-probe-{os.urandom(4).hex()}"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            remove_if_abandoned(probe)  # also proves that flock works here
        except OSError as error:
            if fault_of(error) is not StorageFault.FULL:
                raise
            return block_bytes, True
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "unknown error")
        raise StorageError(
            f"the storage folder cannot be used: {error.strerror or error}",
            fault=fault_of(error),
            where=root,
            why=f"{name} while creating and writing it as user {os.geteuid()}",
            hint="choose a folder this user can write, or run without the storage tier",
        ) from error
    return block_bytes, False


def scan_folder(
    root: str, namespace: ObjectNamespace, object_file_bytes: int, report: ScanReport
) -> Iterator[FoundObject]:
    """Walk the folder, yield its objects in no order and fill `report`.

    Removes temporary files no living writer holds and objects of our namespace whose length is wrong. What cannot be
    listed, read or removed is counted. Raises OSError when the root itself cannot be listed.
    """
    for entry in _entries(root, report, required=True):
        if entry.name.startswith(TEMP_PREFIX):
            _settle_temp(entry.path, report)
        elif _NAMESPACE.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            for shard in _entries(entry.path, report):
                if _SHARD.fullmatch(shard.name) and shard.is_dir(follow_symlinks=False):
                    yield from _scan_shard(entry.name, shard, namespace, object_file_bytes, report)
                else:
                    report.n_foreign += 1
        else:
            report.n_foreign += 1


def _scan_shard(
    folder: str, shard: os.DirEntry[str], namespace: ObjectNamespace, object_file_bytes: int, report: ScanReport
) -> Iterator[FoundObject]:
    for entry in _entries(shard.path, report):
        if entry.name.startswith(TEMP_PREFIX):
            _settle_temp(entry.path, report)
            continue
        match = _OBJECT.fullmatch(entry.name)
        if match is None or not entry.name.startswith(shard.name) or not entry.is_file(follow_symlinks=False):
            report.n_foreign += 1
            continue
        try:
            stat = entry.stat(follow_symlinks=False)
            if folder != namespace.folder or match.group(2) != namespace.suffix:
                report.n_other_namespace += 1
                yield FoundObject(f"{folder}/{shard.name}/{entry.name}", stat.st_size, stat.st_mtime_ns)
            elif stat.st_size != object_file_bytes:
                os.unlink(entry.path)
                report.n_wrong_size += 1
            else:
                report.n_objects += 1
                yield FoundObject(bytes.fromhex(match.group(1)), stat.st_size, stat.st_mtime_ns)
        except (
            FileNotFoundError
        ):  # another process removed it meanwhile: it is not there, which is what we wanted to know
            continue
        except OSError:
            report.n_unreadable += 1


def _settle_temp(path: str, report: ScanReport) -> None:
    try:
        if remove_if_abandoned(path):
            report.n_temp_removed += 1
        else:
            report.n_temp_live += 1
    except OSError:
        report.n_unreadable += 1


def _entries(path: str, report: ScanReport, *, required: bool = False) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError:
        if required:
            raise
        report.n_unreadable += 1


assert 2 * KEY_BYTES == 64  # what _OBJECT matches

"""A host in one file: `record` -> `write_snapshot`, and `open_root` for whatever `--root` names.

    manifest.json   what is in it, sizes and sha256; what was left out; what could not be read; folder listings
    topo.json       the document of the same read
    probes.json     facts that no file holds, by their place in the model
    sys/ proc/ ...  exactly what the readers read, links relative

Nothing here raises for a host that cannot be read; UsageError for a file of the user's that cannot be used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hicachectl.errors import InvariantBroken, UsageError
from hicachectl.tuning.host.archive import Bounds, MemoryRoot, Tree, read_archive, stays_inside
from hicachectl.tuning.host.facts import Fact
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.places import facts_of
from hicachectl.tuning.host.privacy import IDENTIFYING, RULES
from hicachectl.tuning.host.probes import LIVE_ONLY, plain_probes, read_probes
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.recording import RecordingRoot
from hicachectl.tuning.host.root import HostRoot

__all__ = [
    "MANIFEST",
    "Member",
    "Written",
    "open_root",
    "recorded_root",
    "refuse_existing",
    "snapshot_members",
    "write_snapshot",
]

MANIFEST, TOPO, PROBES = "manifest.json", "topo.json", "probes.json"
_VERSION = 1
_SHOWN_CHARS = 200


@dataclass(frozen=True)
class Member:
    """One file of a snapshot."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Written:
    """A finished snapshot: its files, and the file it is in."""

    path: str
    size_bytes: int
    sha256: str
    members: tuple[Member, ...]
    n_links: int
    probes: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = RULES
    identifying: tuple[str, ...] = IDENTIFYING


# -- reading ----------------------------------------------------------------------------------------------------------


def open_root(
    path: Path | None, *, bounds: Bounds | None = None, named_by: str = "--root or HICACHECTL_ROOT"
) -> HostRoot:
    """Open what `--root` names: None is the live host, else a folder, or an archive of a recorded host.

    An archive is read into memory as untrusted data. `named_by` says in errors what gave the name. Raises UsageError when
    it is neither, or broken.
    """
    if path is None:
        return HostRoot()
    try:
        return _opened(path, bounds, named_by)
    except OSError as error:
        shown = str(path) if len(str(path)) <= _SHOWN_CHARS else f"{str(path)[:_SHOWN_CHARS]}..."
        raise UsageError(
            "cannot read it", where=shown, why=error.strerror or str(error), hint="name a readable folder or archive"
        ) from error


def _opened(path: Path, bounds: Bounds | None, named_by: str) -> HostRoot:
    if path.is_dir():
        if (path / MANIFEST).is_file() and not (path / MANIFEST).is_symlink():
            return _from_tree(_tree_of_folder(path, bounds or Bounds()), path)
        return HostRoot(path, name=path.resolve().name or "/")
    if not path.exists():
        raise UsageError(
            "there is no such folder or archive",
            where=str(path),
            why=f"{named_by} names it",
            hint="name a folder, or an archive made with: hicachectl topo snapshot FILE.tar.zst",
        )
    return _from_tree(read_archive(path, bounds=bounds), path)


def recorded_root(tree: Tree, name: str) -> MemoryRoot:
    """Make a root of a recorded tree that has no manifest of ours, such as one of hwloc's. Raises ValueError without /sys or /proc."""
    tops = [path for path in tree.folders if path.rpartition("/")[2] in ("sys", "proc")]
    if not tops:
        raise ValueError("it has no folder sys or proc")
    first = min(tops, key=lambda path: (path.count("/"), path))
    return MemoryRoot(tree.below(first.rpartition("/")[0] or "/"), name=name)


def _from_tree(tree: Tree, path: Path) -> MemoryRoot:
    name = path.name
    for ending in (".tar.zst", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar", ".tgz"):
        name = name.removesuffix(ending)
    raw = tree.files.get(f"/{MANIFEST}")
    try:
        return recorded_root(tree, name) if raw is None else _from_manifest(tree, _parsed(raw), name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "not used as a recorded host", where=str(path), why=str(error),
            hint="make one with: hicachectl topo snapshot FILE.tar.zst",
        ) from error  # fmt: skip


def _from_manifest(tree: Tree, manifest: dict[str, Any], name: str) -> MemoryRoot:
    if manifest.get("snapshot") != _VERSION:
        raise ValueError(f"its manifest says version {manifest.get('snapshot')!r}; this release reads {_VERSION}")
    stated = {str(item["path"]): item for item in manifest["files"]}
    for path, content in tree.files.items():
        if path == f"/{MANIFEST}":
            continue
        item = stated.pop(path.lstrip("/"), None)
        if item is None:
            raise ValueError(f"{path} is not in its manifest")
        if item["sha256"] != hashlib.sha256(content).hexdigest():
            raise ValueError(f"{path} is not as its manifest says (sha256)")
    if stated:
        raise ValueError(f"{next(iter(stated))} is in its manifest and not there")
    links = {f"/{item['path']}": str(item["target"]) for item in manifest["links"]}
    _check_names("link", links, tree.links)
    _check_names("folder", {f"/{path}" for path in manifest["folders"]}, tree.folders.keys() - {"/"})
    changed = next((path for path, target in links.items() if tree.links[path] != target), None)
    if changed is not None:
        raise ValueError(f"link {changed} is not as its manifest says")
    return MemoryRoot(
        tree,
        name=name,
        refused={(str(r["kind"]), str(r["path"])): str(r["reason"]) for r in manifest["refused"]},
        listings={str(path): tuple(map(str, names)) for path, names in manifest["listings"].items()},
        present=frozenset(map(str, manifest["present"])),
        probes=read_probes(_parsed(tree.files[f"/{PROBES}"])["facts"], tree.files),
        collected_at=str(manifest["collected_at"]),
        is_awake=manifest.get("awake") is True,
    )


def _check_names(what: str, stated: Collection[str], there: Collection[str]) -> None:
    """Raise ValueError where names were taken out of a snapshot or put into it."""
    for path in stated:
        if path not in there:
            raise ValueError(f"{what} {path} is in its manifest and not there")
    for path in there:
        if path not in stated:
            raise ValueError(f"{what} {path} is not in its manifest")


def _parsed(raw: bytes) -> dict[str, Any]:
    """Return the object a JSON text holds. Raises ValueError for any other, one that no stack holds, and NaN."""
    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("its manifest is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("its manifest is no JSON object")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _tree_of_folder(folder: Path, bounds: Bounds) -> Tree:
    """Read an unpacked snapshot as its archive would be; links are kept as words and never followed."""
    tree, total, count = Tree(), 0, 0
    for above, folders, names in os.walk(folder, onerror=_raised):
        below = os.path.relpath(above, folder)
        base = "" if below == "." else f"/{below}"
        for name in [*folders, *names]:
            at, path = Path(above, name), f"{base}/{name}"
            count += 1
            if count > bounds.members:
                raise _too_large(folder, f"it has more than {bounds.members:,} members")
            why = bounds.against_name(path) or bounds.against_tree(tree)
            if why is None and at.is_symlink():
                why = bounds.against_target(os.readlink(at))
            if why is not None:
                raise _too_large(folder, why)
            if at.is_symlink():
                tree.add_link(path, os.readlink(at))
            elif at.is_dir():
                tree.add_folder(path)
            elif at.is_file():
                size_bytes = at.stat().st_size
                total += size_bytes
                if size_bytes > bounds.file_bytes:
                    raise _too_large(folder, f"its file {path} has {size_bytes:,} bytes, over {bounds.file_bytes:,}")
                if total > bounds.total_bytes:
                    raise _too_large(folder, f"it holds more than {bounds.total_bytes:,} bytes")
                tree.add_file(path, at.read_bytes())
    return tree


def _raised(error: OSError) -> None:
    raise error


def _too_large(folder: Path, why: str) -> UsageError:
    return UsageError(
        "too large for a snapshot", where=str(folder), why=why, hint="name the folder a snapshot was unpacked to"
    )


# -- writing ----------------------------------------------------------------------------------------------------------


def snapshot_members(recording: RecordingRoot, machine: Machine) -> tuple[Tree, dict[str, Fact[Any]]]:
    """Put what was recorded into a tree, and find the facts that no file of it holds by reading it back. Pure but for memory.

    Raises InvariantBroken when the tree gives another machine than `machine` in more than facts.
    """
    tree = Tree()
    for path, target in sorted(recording.targets.items(), key=lambda item: (item[0].count("/"), item[0])):
        tree.add_link(tree.made(path), target)
    for path in recording.listings:
        tree.add_folder(tree.made(path.rstrip("/") + "/.")[:-2] or "/")
    for path, content in sorted(recording.contents().items()):
        tree.add_file(tree.made(path), content)
    replay = _replayed(tree, recording, {})
    ours, theirs = facts_of(machine), facts_of(read_machine(replay))
    probes = {place: fact for place, fact in ours.items() if place in LIVE_ONLY and theirs.get(place) != fact}
    again = read_machine(_replayed(tree, recording, probes))
    if again != machine:
        other = facts_of(again)
        places = [p for p in sorted({*ours, *other}) if ours.get(p) != other.get(p)]
        raise InvariantBroken(
            "a snapshot gives another machine than the one recorded",
            where=places[0] if places else None,
            why=f"{len(places)} places differ: {', '.join(places[:5])}",
        )
    return tree, probes


def write_snapshot(
    path: Path,
    recording: RecordingRoot,
    machine: Machine,
    *,
    topo: bytes,
    about: Mapping[str, Any],
    force: bool = False,
) -> Written:
    """Write a snapshot: into a temporary file beside `path` (0600), synced, then given its name.

    `topo` is the document of the same read; `about` goes into the manifest: tool_version, host, boot_id, collected_at,
    source. A file that is there is replaced with `force` only. Raises UsageError when it is there or cannot be written,
    and leaves nothing behind then.
    """
    if not force:
        refuse_existing(path)
    tree, probes = snapshot_members(recording, machine)
    _refuse_unfit(tree, path)
    texts = {TOPO: topo, PROBES: _json({"facts": plain_probes(probes)})}
    members = tuple(
        Member(name.lstrip("/"), len(content), hashlib.sha256(content).hexdigest())
        for name, content in sorted([*texts.items(), *tree.files.items()])
    )
    manifest = {
        "snapshot": _VERSION,
        **about,
        "left_out": [{"what": what, "how": how} for what, how in RULES],
        "identifying": list(IDENTIFYING),
        "files": [asdict(member) for member in members],
        "links": [{"path": name.lstrip("/"), "target": target} for name, target in sorted(tree.links.items())],
        "folders": [name.lstrip("/") for name in sorted(tree.folders) if name != "/"],
        "awake": recording.touched.woken,
        "refused": [{"kind": k, "path": p, "reason": reason} for (k, p), reason in sorted(recording.refused.items())],
        "present": list(recording.present),
        "listings": {folder: list(names) for folder, names in sorted(recording.listings.items())},
    }
    packed = _compressed(_packed(tree, {MANIFEST: _json(manifest), **texts}), path)
    _put(path, packed, force=force)
    return Written(
        str(path), len(packed), hashlib.sha256(packed).hexdigest(), members, len(tree.links), tuple(sorted(probes))
    )


def _refuse_unfit(tree: Tree, path: Path) -> None:
    """Stop where a host has a name or link that no recording may have: it could not be opened again. Raises UsageError."""
    bounds = Bounds()
    why = bounds.against_tree(tree)
    for name in (*tree.files, *tree.folders):
        why = why or bounds.against_name(name)
    for name, target in tree.links.items():
        inside = None if stays_inside(name, target) else f"its link {name} leads out of it, to {target[:40]}"
        why = why or bounds.against_target(target) or inside
    if why is not None:
        raise UsageError(
            "this host does not fit into a snapshot", where=str(path), why=why,
            hint="where it is a recorded folder, make its links relative ones that stay inside",
        )  # fmt: skip


def refuse_existing(path: Path) -> None:
    """Stop where something has the name a snapshot is to get, a link that leads nowhere too. Raises UsageError."""
    if os.path.lexists(path):
        raise _already_there(path)


def _already_there(path: Path) -> UsageError:
    return UsageError(
        "there is a file already", where=str(path), why="a snapshot replaces one only when told to",
        hint="name another file, or add --force to replace this one",
    )  # fmt: skip


def _replayed(tree: Tree, recording: RecordingRoot, probes: Mapping[str, Fact[Any]]) -> MemoryRoot:
    return MemoryRoot(
        tree,
        name="replay",
        refused=recording.refused,
        listings=recording.listings,
        present=frozenset(recording.present),
        probes=probes,
        is_awake=recording.touched.woken,
    )


def _packed(tree: Tree, texts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in texts.items():
            _add(tar, name, content=content)
        for folder in sorted(tree.folders):
            if folder != "/":
                _add(tar, folder)
        for name, content in sorted(tree.files.items()):
            _add(tar, name, content=content)
        for name, target in sorted(tree.links.items()):
            _add(tar, name, target=target)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, *, content: bytes | None = None, target: str | None = None) -> None:
    member = tarfile.TarInfo(name.lstrip("/"))
    member.type = (
        tarfile.DIRTYPE if content is None and target is None else tarfile.SYMTYPE if target else tarfile.REGTYPE
    )
    member.mode = 0o755 if member.isdir() else 0o644
    member.linkname = target or ""
    member.size = len(content or b"")
    tar.addfile(member, io.BytesIO(content or b""))


def _compressed(data: bytes, path: Path) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            "a snapshot needs the library zstandard",
            where=str(path),
            why="it is not installed",
            hint="pip install zstandard",
        ) from error
    return bytes(zstandard.ZstdCompressor(level=10, write_checksum=True).compress(data))


def _put(path: Path, content: bytes, *, force: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if force:
                temporary.replace(path)
            else:
                _rename_to_new(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"cannot write: {error.strerror}", where=str(path), why="the snapshot was to go there",
            hint="name a writable file in an existing folder", code="HC-OUTPUT",
        ) from error  # fmt: skip


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name unless that was taken meanwhile. Raises UsageError then."""
    try:
        os.link(temporary, path, follow_symlinks=False)  # a rename would replace
    except FileExistsError as error:
        raise _already_there(path) from error
    except OSError:  # a file system without hard links
        refuse_existing(path)
        temporary.replace(path)
        return
    temporary.unlink()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()

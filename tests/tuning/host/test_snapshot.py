"""A snapshot replays as what it was made of, holds what was read and nothing private, and is written whole or not at all."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hosts.builder import build_root, write_shape
from hosts.shapes import SHAPES, describe
from hosts.spec import Function, functions_changed

from hicachectl.errors import UsageError
from hicachectl.tuning.host.archive import Bounds, MemoryRoot
from hicachectl.tuning.host.facts import Fact, known, unknown
from hicachectl.tuning.host.flatten import flatten
from hicachectl.tuning.host.pcie_caps import ASLEEP
from hicachectl.tuning.host.places import facts_of, with_facts
from hicachectl.tuning.host.probes import LIVE_ONLY
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.recording import NOT_RECORDED, RecordingRoot
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.host.snapshot import Written, _put, _tree_of_folder, open_root, write_snapshot

ABOUT = {"tool_version": "0", "host": "h", "boot_id": None, "collected_at": "2026-11-29T14:02:11Z", "source": "live"}


def snap(root: HostRoot, path: Path, *, force: bool = False, wake: bool = False) -> tuple[Any, Written]:
    recording = RecordingRoot(root)
    machine = read_machine(recording, wake=wake)
    return machine, write_snapshot(path, recording, machine, topo=b"{}\n", about=ABOUT, force=force)


def contents(path: Path) -> dict[str, bytes | None]:
    raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {m.name: file.read() if (file := tar.extractfile(m) if m.isreg() else None) else None for m in tar}


@pytest.mark.parametrize("name", SHAPES)
def test_a_replayed_snapshot_is_the_machine_that_was_recorded(name: str, tmp_path: Path) -> None:
    machine, written = snap(HostRoot(write_shape(name, tmp_path / name), name=name), tmp_path / "x.tar.zst")
    again = read_machine(open_root(tmp_path / "x.tar.zst"))
    assert again == machine
    assert flatten(again) == flatten(machine)
    assert written.probes == ()


@pytest.mark.parametrize(
    "left_out", [(), ("revision", "current_link_speed", "max_link_speed")], ids=["", "without-files"]
)
@pytest.mark.parametrize("name", ["odd-links", "8n8x-4up16", "2n4x-plx"])
def test_a_snapshot_of_woken_devices_replays_awake_and_holds_their_registers(
    name: str, left_out: tuple[str, ...], tmp_path: Path
) -> None:
    spec = functions_changed(describe(name), lambda f: replace(f, runtime_status="suspended", left_out=left_out))
    root = HostRoot(build_root(tmp_path / name, spec), name=name)
    machine, written = snap(root, tmp_path / "x.tar.zst", wake=True)
    assert read_machine(open_root(tmp_path / "x.tar.zst")) == machine
    assert written.probes == ()
    assert any(device.config.readable_bytes.is_known for device in machine.devices)
    assert ASLEEP not in {device.config.readable_bytes.reason for device in machine.devices}
    again, _ = snap(open_root(tmp_path / "x.tar.zst"), tmp_path / "y.tar.zst")
    assert read_machine(open_root(tmp_path / "y.tar.zst")) == again == machine


def test_a_snapshot_taken_without_waking_stays_asleep(tmp_path: Path) -> None:
    machine, _ = snap(HostRoot(write_shape("odd-links", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    again = read_machine(open_root(tmp_path / "x.tar.zst"))
    assert again == machine
    assert ASLEEP in {device.config.readable_bytes.reason for device in again.devices}


class Leaving(HostRoot):
    """A host whose card goes after so many looks at it: the files are gone, refuse, or the registers are all ones."""

    how, n_looks, card = "", 0, "/sys/bus/pci/devices/0000:22:00.0"

    def _gone(self, path: str) -> bool:
        self.n_looks -= path.startswith(self.card)
        return path.startswith(self.card) and self.n_looks < 0

    def _lost(self, path: str) -> Fact[Any]:
        if self.how == "missing":
            self.touched.missing.add(path)
        return unknown(path, "no such file" if self.how == "missing" else "No such device")

    def data(self, path: str, n_bytes: int) -> Any:
        return self._lost(path) if self._gone(path) and self.how != "ones" else super().data(path, n_bytes)

    def piece(self, path: str, offset: int, n_bytes: int) -> Any:
        gone = self._gone(path)
        if gone and self.how == "ones":
            return known(b"\xff" * n_bytes, path)
        return self._lost(path) if gone else super().piece(path, offset, n_bytes)

    def names(self, path: str) -> Any:
        return self._lost(path) if self._gone(path) and self.how != "ones" else super().names(path)

    def link(self, path: str) -> Any:
        return self._lost(path) if self._gone(path) and self.how != "ones" else super().link(path)


@pytest.mark.parametrize("how", ["missing", "refused", "ones"])
def test_a_snapshot_of_a_host_that_a_card_leaves_meanwhile_replays_too(how: str, tmp_path: Path) -> None:
    host = build_root(tmp_path / "h", functions_changed(describe("8n8x-4up16"), with_access_control))
    for n_looks in range(20):
        root = Leaving(host, name="h")
        root.how, root.n_looks = how, n_looks
        machine, written = snap(root, tmp_path / "x.tar.zst", force=True)
        assert read_machine(open_root(tmp_path / "x.tar.zst")) == machine
        assert written.probes == ()


def with_access_control(function: Function) -> Function:
    if function.pcie is None or function.pcie.port_type != "downstream":
        return function
    return replace(function, pcie=replace(function.pcie, acs_control=0x1D))


def test_the_live_host_replays_and_only_what_no_file_holds_is_a_probe(tmp_path: Path) -> None:
    machine, written = snap(HostRoot(), tmp_path / "x.tar.zst")
    root = open_root(tmp_path / "x.tar.zst")
    assert read_machine(root) == machine
    assert set(written.probes) <= set(LIVE_ONLY)
    assert root.collected_at == ABOUT["collected_at"]
    assert not root.is_live


def test_an_unpacked_snapshot_is_the_same_host_as_its_archive(tmp_path: Path) -> None:
    machine, _ = snap(HostRoot(write_shape("config64", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    unpack(tmp_path / "x.tar.zst", tmp_path / "unpacked")
    assert read_machine(open_root(tmp_path / "unpacked")) == machine


def test_the_manifest_names_every_file_with_size_and_sum_and_what_was_left_out(tmp_path: Path) -> None:
    import hashlib

    _, written = snap(HostRoot(write_shape("2n8x", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    inside = contents(tmp_path / "x.tar.zst")
    manifest = json.loads(inside["manifest.json"] or b"")
    files = {name: content for name, content in inside.items() if content is not None and name != "manifest.json"}
    assert {f["path"]: (f["size_bytes"], f["sha256"]) for f in manifest["files"]} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()
    }
    assert {"topo.json", "probes.json", "proc/meminfo"} <= set(files)
    assert [rule["what"] for rule in manifest["left_out"]]
    assert manifest["collected_at"] == ABOUT["collected_at"]
    assert written.sha256 == hashlib.sha256((tmp_path / "x.tar.zst").read_bytes()).hexdigest()


def test_only_what_a_reader_asked_for_is_inside(tmp_path: Path) -> None:
    host = write_shape("2n8x", tmp_path / "h")
    (host / "etc").mkdir()
    (host / "etc/shadow").write_text("root:x")
    (host / "proc/meminfo.more").write_text("x")
    snap(HostRoot(host, name="h"), tmp_path / "x.tar.zst")
    inside = contents(tmp_path / "x.tar.zst")
    assert "etc/shadow" not in inside
    assert "proc/meminfo.more" not in inside


def test_serials_addresses_server_names_and_secrets_are_not_inside(tmp_path: Path) -> None:
    host = write_shape("8n8x-4up16", tmp_path / "h")
    (host / "proc/cmdline").write_text(
        "root=UUID=SECRET-1 ro iommu=pt ks.key=SECRET-2 transparent_hugepage=madvise -- SECRET-3\n"
    )
    mounts = host / "proc/self/mountinfo"
    mounts.write_text(mounts.read_text() + "90 21 0:90 / /data rw - nfs4 SECRET-4:/export rw,addr=10.1.2.3\n")
    card = next(host.glob("sys/devices/**/0000:23:00.0"))
    config = bytearray((card / "config").read_bytes())
    config[0x100:0x104] = (0x0003 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    config[0x104:0x10C] = b"SECRET-5"
    (card / "config").write_bytes(bytes(config))
    machine, _ = snap(HostRoot(host, name="h"), tmp_path / "x.tar.zst")
    inside = contents(tmp_path / "x.tar.zst")
    assert not [name for name, content in inside.items() if b"SECRET" in (content or b"") or "SECRET" in name]
    assert b"10.1.2.3" not in (inside["proc/self/mountinfo"] or b"")
    assert machine.host.pinned["iommu"].value == "pt"
    assert machine.host.pinned["transparent_hugepage"].value == "madvise"


def test_a_serial_number_answers_that_it_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/address").write_text("00:11:22:33:44:55\n")
    (tmp_path / "sys/class/net/enx001122334455").mkdir()
    recording = RecordingRoot(HostRoot(tmp_path, name="h"))
    assert recording.text("/sys/class/net/eth0/address").reason == NOT_RECORDED
    assert recording.names("/sys/class/net").value == ("enx-left-out", "eth0")


def test_a_recording_answers_the_same_when_the_host_moves_on(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    path = tmp_path / "proc/meminfo"
    path.write_text("MemFree: 1 kB\n")
    recording = RecordingRoot(HostRoot(tmp_path, name="h"))
    first = recording.text("/proc/meminfo")
    path.write_text("MemFree: 2 kB\n")
    (tmp_path / "proc/more").write_text("")
    assert recording.text("/proc/meminfo") == first
    assert recording.data("/proc/meminfo", 3).value == b"Mem"
    assert recording.contents()["/proc/meminfo"] == b"MemFree: 1 kB\n"


def test_what_was_refused_once_is_not_asked_again(tmp_path: Path) -> None:
    class Flapping(HostRoot):
        n_asked = 0

        def data(self, path: str, n_bytes: int) -> Any:
            self.n_asked += 1
            return unknown(path, "Input/output error") if self.n_asked == 1 else super().data(path, n_bytes)

    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\n")
    recording = RecordingRoot(Flapping(tmp_path, name="h"))
    assert {recording.text("/proc/meminfo").reason for _ in range(3)} == {"Input/output error"}


def test_what_could_not_be_read_gives_the_same_reason_again(tmp_path: Path) -> None:
    class Refusing(HostRoot):
        def data(self, path: str, n_bytes: int) -> Any:
            if path.endswith(("/meminfo", "/aer_dev_fatal")):
                return unknown(path, "permission denied")
            return super().data(path, n_bytes)

    machine, _ = snap(Refusing(write_shape("2n8x", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    assert machine.memory.total_bytes.reason == "permission denied"
    assert read_machine(open_root(tmp_path / "x.tar.zst")) == machine


def test_what_may_not_be_looked_at_gives_the_same_reason_again(tmp_path: Path) -> None:
    class Denying(HostRoot):
        def there(self, path: str) -> Fact[bool]:
            return unknown(path, "permission denied")

    host = write_shape("2n8x", tmp_path / "h")
    for path in host.rglob("pci.ids"):
        path.unlink()
    machine, _ = snap(Denying(host, name="h"), tmp_path / "x.tar.zst")
    assert machine.host.pci_ids.reason == "permission denied"
    assert read_machine(open_root(tmp_path / "x.tar.zst")) == machine


def unpacked(folder: Path) -> Path:
    """A snapshot's folder with a hidden one in it."""
    (folder / ".hidden/sys").mkdir(parents=True)
    (folder / ".hidden/sys/x").write_bytes(b"1" * 60)
    (folder / ".y").write_bytes(b"2")
    return folder


def test_hidden_folders_of_an_unpacked_snapshot_keep_their_dot(tmp_path: Path) -> None:
    tree = _tree_of_folder(unpacked(tmp_path / "u"), Bounds())
    assert tree.files == {"/.hidden/sys/x": b"1" * 60, "/.y": b"2"}
    assert set(tree.folders) == {"/", "/.hidden", "/.hidden/sys"}


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(file_bytes=59), "/.hidden/sys/x has 60 bytes, over 59"),
        (Bounds(total_bytes=60), "more than 60 bytes"),
        (Bounds(members=3), "more than 3 members"),
        (Bounds(depth=2), "a name has 3 parts, over 2: /.hidden/sys/x"),
        (Bounds(path_bytes=20), "names of more than 20 bytes"),
    ],
)
def test_an_unpacked_snapshot_over_a_bound_is_refused_as_its_archive_is(
    bounds: Bounds, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="too large") as caught:
        _tree_of_folder(unpacked(tmp_path / "u"), bounds)
    assert why in (caught.value.why or "")


def repack(path: Path, change: dict[str, bytes], *, keep: Callable[[tarfile.TarInfo], bool] = lambda _: True) -> None:
    """Write the snapshot anew with some files changed, and only the members to keep."""
    raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    buffer, left = io.BytesIO(), dict(change)
    with tarfile.open(fileobj=io.BytesIO(raw)) as old, tarfile.open(fileobj=buffer, mode="w") as tar:
        for info in filter(keep, old):
            file = old.extractfile(info) if info.isreg() else None
            content = left.pop(info.name, file.read() if file else b"")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, content in left.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(zstandard.ZstdCompressor().compress(buffer.getvalue()))


def with_probes(path: Path, *facts: tuple[str, object], confidence: str = "read") -> dict[str, bytes]:
    """The two files of a snapshot whose probes say something else, sums included."""
    import hashlib

    told = {place: {"value": value, "source": "x", "confidence": confidence, "reason": None} for place, value in facts}
    probes = json.dumps({"facts": told}).encode()
    manifest = json.loads(contents(path)["manifest.json"] or b"")
    for file in manifest["files"]:
        if file["path"] == "probes.json":
            file |= {"size_bytes": len(probes), "sha256": hashlib.sha256(probes).hexdigest()}
    return {"probes.json": probes, "manifest.json": json.dumps(manifest).encode()}


def why_refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        open_root(path)
    return caught.value.why or ""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    snap(HostRoot(write_shape("2n8x", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    return tmp_path / "x.tar.zst"


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (lambda info: not info.issym(), "link /sys/bus/pci/devices/0000:"),
        (lambda info: not (info.issym() and info.name.endswith("/driver")), "/driver is in its manifest and not there"),
        (lambda info: not info.isdir(), "is in its manifest and not there"),
    ],
)
def test_a_snapshot_without_its_links_or_folders_is_refused_as_one_without_a_file_is(
    lost: Callable[[tarfile.TarInfo], bool], why: str, small: Path
) -> None:
    repack(small, {}, keep=lost)
    assert why in why_refused(small)


def test_a_link_or_folder_that_is_added_or_leads_elsewhere_is_refused(small: Path, tmp_path: Path) -> None:
    unpack(small, tmp_path / "u")
    assert read_machine(open_root(tmp_path / "u")) == read_machine(open_root(small))
    (tmp_path / "u/sys/more").mkdir()
    assert "folder /sys/more is not in its manifest" in why_refused(tmp_path / "u")
    (tmp_path / "u/sys/more").rmdir()
    (tmp_path / "u/sys/more").symlink_to("bus")
    assert "link /sys/more is not in its manifest" in why_refused(tmp_path / "u")
    (tmp_path / "u/sys/more").unlink()
    link = next((tmp_path / "u/sys/bus/pci/devices").iterdir())
    link.unlink()
    link.symlink_to("../../bus")
    assert f"link /sys/bus/pci/devices/{link.name} is not as its manifest says" in why_refused(tmp_path / "u")


def unpack(path: Path, folder: Path) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        tar.extractall(folder, filter="data")


def test_a_host_whose_links_lead_out_is_refused_before_a_snapshot_is_written_that_no_one_opens(tmp_path: Path) -> None:
    host = write_shape("2n8x", tmp_path / "h")
    card = next((host / "sys/bus/pci/devices").iterdir())
    target = card.resolve()
    card.unlink()
    card.symlink_to("/" + str(target.relative_to(host)))
    with pytest.raises(UsageError) as caught:
        snap(HostRoot(host, name="h"), tmp_path / "x.tar.zst")
    assert f"/sys/bus/pci/devices/{card.name}" in (caught.value.why or "")
    assert not (tmp_path / "x.tar.zst").exists()


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ("memory/total_bytes", 1, "memory/total_bytes, which a file holds"),
        ("numa/allowed_nodes", 5, "numa/allowed_nodes, which a file holds"),
        ("host/architecture", "x86_64", "host/architecture, which a file holds"),
        ("numa/mempolicy_calls", "yes", "numa/mempolicy_calls is no bool: 'yes'"),
        ("numa/mempolicy_calls", 1, "numa/mempolicy_calls is no bool: 1"),
        ("numa/mempolicy_calls", {"a": 1}, "numa/mempolicy_calls is no bool"),
        ("numa/mempolicy_calls", float("nan"), "NaN is no number"),
    ],
)
def test_a_probe_says_only_what_no_file_holds_and_in_its_own_type(
    place: str, value: object, why: str, small: Path
) -> None:
    repack(small, with_probes(small, ("numa/mempolicy_calls", True)))
    assert read_machine(open_root(small)).numa.mempolicy_calls.value is True
    repack(small, with_probes(small, (place, value)))
    assert why in why_refused(small)


def test_a_probe_of_the_architecture_counts_where_no_file_tells_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.zst"
    snap(HostRoot(write_shape("empty", tmp_path / "h"), name="h"), path)
    repack(path, with_probes(path, ("host/architecture", "riscv64")))
    assert read_machine(open_root(path)).host.architecture.value == "riscv64"


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"snapshot":' * 200_000, b'{"snapshot": NaN}'])
def test_a_manifest_that_no_parser_takes_is_refused(raw: bytes, small: Path) -> None:
    repack(small, {"manifest.json": raw})
    assert re.search("nested too deeply|NaN is no number", why_refused(small))


@pytest.mark.parametrize("name", ["a" * 5000, "x/" * 3000])
def test_an_impossible_name_is_a_usage_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read it") as caught:
        open_root(tmp_path / name)
    assert caught.value.why == "File name too long"
    assert len(caught.value.where or "") < 300


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Take root's rights off, which may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["locked/a", "locked/a.tar.zst", "file", "folder", "denied.tar.zst"])
def test_what_may_not_be_read_is_a_usage_error(name: str, small: Path) -> None:
    with TemporaryDirectory() as top:
        at = Path(top)
        at.chmod(0o755)
        (at / "locked").mkdir(mode=0)
        (at / "denied.tar.zst").write_bytes(small.read_bytes())
        for folder, lost in (("file", "proc/meminfo"), ("folder", "sys/bus")):
            unpack(small, at / folder)
            (at / folder / lost).chmod(0)
        (at / "denied.tar.zst").chmod(0)
        open_root(small)
        try:
            with as_somebody_else(), pytest.raises(UsageError, match="cannot read it") as caught:
                open_root(at / name)
        finally:
            for path in (at / "locked", at / "folder/sys/bus"):
                path.chmod(0o755)
    assert caught.value.why == "Permission denied"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"proc/meminfo": b"MemTotal: 9 kB\n"}, "sha256"),
        ({"proc/added": b"x"}, "not in its manifest"),
        ({"manifest.json": b"[1]"}, "no JSON object"),
        ({"manifest.json": b'{"snapshot": 99, "files": []}'}, "version 99"),
        ({"manifest.json": b'{"snapshot": 1, "files": 3}'}, "not iterable"),
        ({"manifest.json": b"\xff"}, "decode"),
    ],
)
def test_a_changed_archive_is_refused_with_the_reason(change: dict[str, bytes], why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.zst"
    snap(HostRoot(write_shape("1n0x-vm", tmp_path / "h"), name="h"), path)
    repack(path, change)
    with pytest.raises(UsageError) as caught:
        open_root(path)
    assert why in (caught.value.why or "")
    assert caught.value.where == str(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "x.tar.zst").mkdir()  # a folder cannot be replaced by a file
    root = HostRoot(write_shape("1n0x-vm", tmp_path / "h"), name="h")
    with pytest.raises(UsageError, match="cannot write"):
        snap(root, folder / "x.tar.zst", force=True)
    assert os.listdir(folder) == ["x.tar.zst"]
    with pytest.raises(UsageError, match="cannot write"):
        snap(root, tmp_path / "missing" / "x.tar.zst")


def test_a_file_that_comes_up_while_the_host_is_read_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out" / "x.tar.zst"
    path.parent.mkdir()
    path.write_text("a day's work")
    with pytest.raises(UsageError, match="there is a file already") as caught:
        _put(path, b"snapshot", force=False)
    assert caught.value.where == str(path)
    assert (path.read_text(), os.listdir(path.parent)) == ("a day's work", ["x.tar.zst"])
    _put(path, b"snapshot", force=True)
    assert (path.read_text(), os.listdir(path.parent)) == ("snapshot", ["x.tar.zst"])


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    snap(HostRoot(write_shape("1n0x-vm", tmp_path / "h"), name="h"), tmp_path / "x.tar.zst")
    assert stat.S_IMODE((tmp_path / "x.tar.zst").stat().st_mode) == 0o600


def test_places_are_listed_and_put_back(tmp_path: Path) -> None:
    machine = read_machine(HostRoot(write_shape("8n8x-4up16", tmp_path / "h"), name="h"))
    facts = facts_of(machine)
    place = "devices/0000:63:00.0/config/ido_request"
    other = facts["devices/0000:23:00.0/config/ido_request"]
    assert facts[place].value is False
    changed = with_facts(machine, {place: other, "nowhere/at/all": other})
    assert {p for p, fact in facts_of(changed).items() if fact != facts[p]} == {place}
    assert with_facts(machine, {}) == machine


def test_an_archive_of_another_tool_needs_only_sys_or_proc_somewhere(tmp_path: Path) -> None:
    host = write_shape("2n8x", tmp_path / "some-name")
    with tarfile.open(tmp_path / "y.tar.bz2", "w:bz2") as tar:
        tar.add(host, "some-name")
    root = open_root(tmp_path / "y.tar.bz2")
    assert isinstance(root, MemoryRoot)
    assert (root.name, root.collected_at) == ("y", None)
    assert read_machine(root) == read_machine(HostRoot(host, name="y"))
    with tarfile.open(tmp_path / "z.tar", "w") as tar:
        tar.add(host / "proc/meminfo", "some-name/meminfo")
    with pytest.raises(UsageError, match="not used as a recorded host"):
        open_root(tmp_path / "z.tar")

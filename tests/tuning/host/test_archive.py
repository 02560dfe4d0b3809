"""An archive is untrusted: nothing of it leaves memory, nothing in it leads out, nothing of it is unbounded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hicachectl.errors import UsageError
from hicachectl.tuning.host.archive import Bounds, MemoryRoot, Tree, read_archive

SMALL = Bounds(members=20, file_bytes=100, total_bytes=100_000, name_bytes=60)


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    info.mtime = 1_700_000_000
    return info, content


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def opened(folder: Path, *members: tuple[tarfile.TarInfo, bytes], bounds: Bounds = SMALL) -> Tree:
    path = folder / "x.tar"
    path.write_bytes(packed(*members))
    return read_archive(path, bounds=bounds)


GOOD = (
    member("sys", kind=tarfile.DIRTYPE),
    member("sys/devices/pci0/0000:01:00.0/vendor", b"0x10de\n"),
    member("sys/bus/0000:01:00.0", kind=tarfile.SYMTYPE, target="../devices/pci0/0000:01:00.0"),
)


@pytest.mark.parametrize(
    "pack",
    [bytes, bz2.compress, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress],
    ids=["plain", "bz2", "gz", "xz", "zst"],
)
def test_the_first_bytes_tell_the_compression_and_not_the_name(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(pack(packed(*GOOD)))  # type: ignore[operator]
    root = MemoryRoot(read_archive(path), name="x")
    assert root.text("/sys/bus/0000:01:00.0/vendor").value == "0x10de"
    assert root.names("/sys/bus/0000:01:00.0").value == ("vendor",)
    assert root.link("/sys/bus/0000:01:00.0").value == "../devices/pci0/0000:01:00.0"
    assert root.resolve("/sys/bus/0000:01:00.0").value == "/sys/devices/pci0/0000:01:00.0"
    assert not root.is_live


def test_what_is_missing_or_of_another_kind_is_a_reason(tmp_path: Path) -> None:
    root = MemoryRoot(opened(tmp_path, *GOOD), name="x")
    assert root.data("/sys/nothing", 9).reason == "no such file"
    assert root.data("/sys/devices", 9).reason == "Is a directory"
    assert root.names("/sys/bus/0000:01:00.0/vendor").reason == "no such file"
    assert root.link("/sys/devices").reason == "Invalid argument"
    assert root.exists("/sys/bus/0000:01:00.0")
    assert not root.exists("/sys/bus/0000:02:00.0")
    assert root.piece("/sys/bus/0000:01:00.0/vendor", 2, 4).value == b"10de"


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "sys/../../outside", "a/" * 40 + "b"])
def test_a_name_that_leads_out_or_is_endless_refuses_the_archive(name: str, tmp_path: Path) -> None:
    info, content = member("x", b"1")
    info.name = name
    with pytest.raises(UsageError, match="not used as a recorded host"):
        opened(tmp_path, (info, content))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "../..", ""])
def test_a_link_that_leads_out_is_left_aside_and_counted(target: str, tmp_path: Path) -> None:
    tree = opened(tmp_path, *GOOD, member("sys/out", kind=tarfile.SYMTYPE, target=target))
    assert tree.skipped == {"link that leads out": 1}
    assert MemoryRoot(tree, name="x").data("/sys/out", 9).reason == "no such file"


def test_a_recordings_links_are_resolved_by_its_own_folders_and_not_by_this_hosts() -> None:
    tree = Tree()
    tree.add_link("/proc/self/x", "y")  # on a Linux host /proc/self is a link itself
    assert MemoryRoot(tree, name="x").resolve("/proc/self/x").value == "/proc/self/y"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE])
def test_devices_pipes_and_hard_links_are_left_aside(kind: bytes, tmp_path: Path) -> None:
    tree = opened(tmp_path, *GOOD, member("sys/odd", kind=kind, target="sys/devices/pci0/0000:01:00.0/vendor"))
    assert sum(tree.skipped.values()) == 1
    assert "/sys/odd" not in tree.files


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    tree = opened(
        tmp_path,
        member("sys/a", kind=tarfile.SYMTYPE, target="b"),
        member("sys/b", kind=tarfile.SYMTYPE, target="a"),
    )
    assert "levels of symbolic links" in (MemoryRoot(tree, name="x").data("/sys/a", 9).reason or "")


def test_dots_never_climb_above_the_top() -> None:
    tree = Tree()
    tree.add_file("/sys/x", b"1")
    tree.add_link("/sys/up", "../../../../sys/x")
    assert MemoryRoot(tree, name="x").data("/sys/up", 9).value == b"1"


@pytest.mark.parametrize(
    ("members", "total_bytes", "why"),
    [
        ([member(f"sys/{i}") for i in range(21)], 100_000, "more than 20"),
        ([member("sys/x", b"1" * 101)], 100_000, "bytes, over 100"),
        ([member(f"sys/{i}", b"1" * 100) for i in range(19)], 15_000, "unpacks"),
    ],
)
def test_an_archive_over_a_bound_is_refused(
    members: list[tuple[tarfile.TarInfo, bytes]], total_bytes: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="not used as a recorded host") as caught:
        opened(tmp_path, *members, bounds=Bounds(members=20, file_bytes=100, total_bytes=total_bytes, name_bytes=60))
    assert why in (caught.value.why or "")


@pytest.mark.parametrize(
    ("members", "bounds", "why"),
    [
        ([member("sys/" + "a/" * 63 + "f")], Bounds(), "a name has 65 parts, over 64: /sys/a/a/"),
        ([member(f"{i}/b/c/f") for i in range(6)], Bounds(members=23), "more than 23 files, links and folders"),
        ([member(f"{i}{'n' * 40}/b/c/f") for i in range(6)], Bounds(path_bytes=900), "names of more than 900 bytes"),
        ([member("sys/l", kind=tarfile.SYMTYPE, target="x" * 4097)], Bounds(), "a link's target has 4,097 characters"),
        ([member("sys/l", kind=tarfile.SYMTYPE, target="../x/" * 65)], Bounds(), "a link's target has 130 parts, over 128"),
    ],
)  # fmt: skip
def test_names_and_links_that_take_more_than_they_weigh_refuse_the_archive(
    members: list[tuple[tarfile.TarInfo, bytes]], bounds: Bounds, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="not used as a recorded host") as caught:
        opened(tmp_path, *members, bounds=bounds)
    assert why in (caught.value.why or "")


def test_a_deep_tree_under_the_bounds_takes_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    deep = [member(f"{i:05d}/" + "a/" * 900 + "f") for i in range(300)]
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="not used as a recorded host"):
            opened(tmp_path, *deep, bounds=Bounds())
        wide = [member(f"{i:03d}/" + "a/" * 62 + "f") for i in range(300)]
        tracemalloc.reset_peak()
        opened(tmp_path, *wide, bounds=Bounds())
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_behind_long_links_is_followed_once(tmp_path: Path) -> None:
    class Counting(dict[str, str]):
        asked = 0

        def get(self, key: str, default: object = None) -> Any:
            self.asked += 1
            return super().get(key, default)

    tree = Tree()
    for i in range(50):
        tree.add_file(f"/sys/x/{i}/class", b"1")
    tree.add_link("/sys/devices", "../sys/" * 60 + "x")
    links = tree.links = Counting(tree.links)
    root = MemoryRoot(tree, name="x")
    for i in range(50):
        assert root.text(f"/sys/devices/{i}/class").value == "1"
        assert root.text(f"/sys/devices/{i}/vendor").reason == "no such file"
    assert links.asked < 50 * 150
    before = links.asked
    for i in range(50):
        root.text(f"/sys/devices/{i}/class")
    assert links.asked - before <= 50
    tree.add_link("/sys/devices", "y")
    assert root.text("/sys/devices/1/class").reason == "no such file"


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.bz2"
    info = tarfile.TarInfo("sys/x")
    info.size = 8 << 30
    path.write_bytes(bz2.compress(info.tobuf() + bytes(1 << 22)))
    with pytest.raises(UsageError, match="not used"):
        read_archive(path)
    path.write_bytes(gzip.compress(packed(*GOOD)[:1536] + bytes(1 << 22)))
    with pytest.raises(UsageError, match="not used"):
        opened(tmp_path, member("sys/x", b"1"), bounds=Bounds(total_bytes=100))


def test_a_pipe_or_folder_in_its_place_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError):
            read_archive(path)


CUT = pytest.mark.parametrize(
    "pack",
    [
        bytes, bz2.compress, gzip.compress, lzma.compress,
        zstandard.ZstdCompressor().compress, zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress,
    ],
    ids=["plain", "bz2", "gz", "xz", "zst", "zst-checked"],
)  # fmt: skip


def ends_at(whole: bytes) -> int:
    """Where the end marker of a plain archive ends; what follows is padding."""
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        tar.getmembers()
        return tar.offset + 1024


@CUT
def test_every_cut_of_an_archive_is_refused_and_never_a_smaller_host(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    import random

    # zeros at the end of a file look like the end marker, and random bytes do not pack
    noise = member("sys/noise", random.Random(1).randbytes(2000))
    plain = packed(*GOOD, noise, member("sys/zeros", bytes(4096)), member("sys/last", b"1"))
    whole = pack(plain)
    path = tmp_path / "x"
    ends = ends_at(plain) if whole == plain else len(whole)
    step = 1 if len(whole) < 4000 else 64
    for cut in sorted({*range(0, ends, step), *range(512, ends, 512), ends - 1}):
        path.write_bytes(whole[:cut])
        with pytest.raises(UsageError) as caught:
            read_archive(path)
        told = caught.value.why or ""
        assert cut == 0 or "empty" not in told, (cut, told)
        assert str(path) == caught.value.where
    path.write_bytes(whole[:ends])
    assert read_archive(path).files == read_archive(write(path, whole)).files
    assert len(read_archive(path).files) == 4


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("cut", [1, 3, 300, 512, 2048])
def test_a_cut_archive_is_called_cut_and_not_empty(cut: int, tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor().compress(packed(*GOOD, member("sys/x", bytes(range(256)) * 20)))
    plain = packed(*GOOD)
    for content in (whole[: min(cut, len(whole) - 1)], plain[:cut]):
        with pytest.raises(UsageError) as caught:
            read_archive(write(tmp_path / "x", content))
        assert re.search("cut short|truncated|unexpected end", caught.value.why or ""), caught.value.why


def test_a_second_zstd_frame_is_read_too(tmp_path: Path) -> None:
    plain, pack = packed(*GOOD), zstandard.ZstdCompressor().compress
    path = write(tmp_path / "x", pack(plain[:700]) + pack(plain[700:]))
    assert read_archive(path).files == {"/sys/devices/pci0/0000:01:00.0/vendor": b"0x10de\n"}
    with pytest.raises(UsageError):
        read_archive(write(path, pack(plain[:512])))


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=300), st.integers(0, 2000), st.sampled_from([bytes, bz2.compress, gzip.compress, lzma.compress])
)
def test_no_bytes_make_it_raise_anything_but_a_usage_error(noise: bytes, at: int, pack: object) -> None:
    whole = pack(packed(*GOOD))  # type: ignore[operator]
    broken = whole[: at % len(whole)] + noise + whole[at % len(whole) + len(noise) :]
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(broken)
        file.flush()
        try:
            tree = read_archive(Path(file.name), bounds=SMALL)
        except UsageError:
            return
    for path in (*tree.files, *tree.links):
        assert ".." not in path.split("/")

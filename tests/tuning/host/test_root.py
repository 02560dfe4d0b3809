"""The root of all reads: what is missing or odd is a reason, and a recording never leads out of itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hicachectl.tuning.host import machine, pci_ids
from hicachectl.tuning.host.facts import Fact, unknown
from hicachectl.tuning.host.isolation import read_container
from hicachectl.tuning.host.root import HostRoot


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording beside a secret that no link of it may reach."""
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    top = tmp_path / "recording"
    (top / "sys/devices/pci0/0000:01:00.0").mkdir(parents=True)
    (top / "sys/devices/pci0/0000:01:00.0/vendor").write_text("0x10de\n")
    (top / "sys/bus/pci/devices").mkdir(parents=True)
    (top / "sys/bus/pci/devices/0000:01:00.0").symlink_to("../../../devices/pci0/0000:01:00.0")
    return top


def rooted(top: Path) -> HostRoot:
    return HostRoot(top, name="recording")


def test_a_link_inside_a_recording_is_followed(recording: Path) -> None:
    root = rooted(recording)
    assert root.text("/sys/bus/pci/devices/0000:01:00.0/vendor").value == "0x10de"
    assert root.names("/sys/bus/pci/devices/0000:01:00.0").value == ("vendor",)
    assert root.resolve("/sys/bus/pci/devices/0000:01:00.0").value == "/sys/devices/pci0/0000:01:00.0"


def test_an_absolute_link_starts_at_the_top_of_the_recording(recording: Path) -> None:
    (recording / "inside").symlink_to("/sys/devices/pci0/0000:01:00.0/vendor")
    (recording / "escape").symlink_to(recording.parent / "secret")
    (recording / "folder").symlink_to(recording.parent / "outside")
    root = rooted(recording)
    assert root.text("/inside").value == "0x10de"
    assert root.text("/escape").reason == "no such file"
    assert root.text("/folder/file").reason == "no such file"
    assert root.names("/folder").reason == "no such file"
    assert not root.exists("/folder/file")


def test_a_relative_link_stops_at_the_top_of_the_recording(recording: Path) -> None:
    (recording / "escape").symlink_to("../secret")
    (recording / "sys/deep").symlink_to("../../../../../../../outside/file")
    (recording / "up").symlink_to("..")
    root = rooted(recording)
    assert root.text("/escape").reason == "no such file"
    assert root.text("/sys/deep").reason == "no such file"
    assert root.text("/up/secret").reason == "no such file"
    assert root.link("/up/outside/file").reason == "no such file"
    assert root.names("/up").value == root.names("/").value
    assert root.resolve("/sys/deep").value == "/outside/file"


def test_the_asked_path_itself_cannot_climb_out(recording: Path) -> None:
    root = rooted(recording)
    assert root.text("/../secret").reason == "no such file"
    assert root.text("/sys/../../secret").reason == "no such file"
    assert root.text("../secret").reason == "no such file"
    assert not root.exists("/../secret")
    assert root.at("/../secret") == recording / "secret"


def test_a_chain_of_links_through_folders_stays_inside(recording: Path) -> None:
    (recording / "a").symlink_to("/b/up")
    (recording / "b").symlink_to("sys")
    (recording / "sys/up").symlink_to("../../..")
    root = rooted(recording)
    assert root.text("/a/secret").reason == "no such file"
    assert root.names("/a").value == root.names("/").value


def test_links_that_go_round_are_unknown_with_a_reason(recording: Path) -> None:
    (recording / "one").symlink_to("two")
    (recording / "two").symlink_to("one")
    root = rooted(recording)
    assert root.text("/one").reason == os.strerror(40)
    assert root.names("/one/below").reason == os.strerror(40)
    assert root.exists("/one")
    assert not root.exists("/one/below")
    with pytest.raises(OSError, match="symbolic links"):
        root.at("/one")


def test_a_recorded_pipe_is_not_waited_for_and_a_device_is_not_read(recording: Path) -> None:
    os.mkfifo(recording / "pipe")
    assert rooted(recording).text("/pipe").reason == "neither a file nor a folder"


def test_a_path_made_of_odd_text_is_unknown(recording: Path) -> None:
    root = rooted(recording)
    for path in ("/a\0b", "/" + "x" * 5000, "/\udcff", "", "/"):
        assert root.text(path).reason
    assert root.link("/a\0b").reason
    assert root.names("/a\0b").reason
    assert not root.exists("/a\0b")


def test_a_relative_link_counts_from_where_it_really_lies(recording: Path) -> None:
    device = recording / "sys/devices/pci0/0000:01:00.0"
    (device / "net/eth0").mkdir(parents=True)
    (device / "net/eth0/device").symlink_to("../..")
    (recording / "sys/class/net").mkdir(parents=True)
    (recording / "sys/class/net/eth0").symlink_to("../../devices/pci0/0000:01:00.0/net/eth0")
    assert rooted(recording).resolve("/sys/class/net/eth0/device").value == "/sys/devices/pci0/0000:01:00.0"


def test_the_live_host_follows_its_own_links() -> None:
    root = HostRoot()
    assert root.is_live
    assert f"\nPid:\t{os.getpid()}\n" in (root.text("/proc/self/status").value or "")
    assert root.at("/proc/self/status") == Path("/proc/self/status")


def test_a_text_longer_than_any_settings_file_is_unknown_not_cut(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"1" * ((8 << 20) + 1))
    assert rooted(tmp_path).text("/long").reason == "longer than 8 MiB"


def test_what_was_read_is_remembered(recording: Path) -> None:
    root = rooted(recording)
    root.text("/sys/devices/pci0/0000:01:00.0/vendor")
    root.names("/sys/bus/pci/devices")
    root.link("/sys/bus/pci/devices/0000:01:00.0")
    root.text("/not/there")
    assert root.touched.files == {"/sys/devices/pci0/0000:01:00.0/vendor": 7}
    assert root.touched.folders == {"/sys/bus/pci/devices"}
    assert root.touched.links == {"/sys/bus/pci/devices/0000:01:00.0"}
    assert root.touched.missing == {"/not/there"}


def test_a_folder_read_as_a_file_is_unknown(recording: Path) -> None:
    assert rooted(recording).text("/sys").reason == os.strerror(21)


class Denying(HostRoot):
    """A recording of which one folder may not be entered, whoever runs the tests."""

    def _real(self, path: str, *, last: bool = True) -> str:
        if path.startswith("/usr/share"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return super()._real(path, last=last)


def test_what_may_not_be_looked_at_is_denied_and_not_missing(recording: Path) -> None:
    root = Denying(recording, name="recording")
    assert root.there("/usr/share/pci.ids").reason == "permission denied"
    assert not root.exists("/usr/share/pci.ids")
    assert "/usr/share/pci.ids" not in root.touched.missing
    assert root.there("/nothing").value is False
    assert root.there("/sys").value is True
    for find in (machine.find_pci_ids, pci_ids.find_pci_ids):
        found = find(root)
        assert (found.value, found.reason) == (None, "permission denied")
        assert "/usr/share" in found.source


def test_a_marker_that_may_not_be_looked_at_is_no_sign_that_there_is_no_container(tmp_path: Path) -> None:
    class NoMarkers(HostRoot):
        def there(self, path: str) -> Fact[bool]:
            return unknown(path, "permission denied")

    found = read_container(NoMarkers(tmp_path, name="h"))
    assert (found.reason, found.source) == ("permission denied", "/.dockerenv")

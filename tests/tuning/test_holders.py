"""Who holds an accelerator: by open files and mappings, on made-up /proc trees; what cannot be seen is never "nobody"."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.items import item

from hicachectl.tuning.holders import Holder, find_holders, gate, is_accelerator_file, refusal
from hicachectl.tuning.host.facts import known, unknown
from hicachectl.tuning.host.root import HostRoot

ENGINE, SHELL, THREAD = 4242, 77, 2
IDO = item("pcie.ido-request", ordering=True)


class Host:
    """A recording of /proc with an engine that holds two files, a shell that holds none, and a kernel thread."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.link("self/ns/pid", "pid:[4026531836]")
        self.text("self/mountinfo", "22 1 0:21 / /proc rw,nosuid - proc proc rw")
        self.text("self/status", "CapEff:\t0000000000000000")
        self.process(SHELL, "bash", uid=1000, files={"0": "/dev/pts/0", "1": "/dev/null"})
        self.process(THREAD, "kthreadd", flags=0x208040)
        (top / "etc").mkdir()
        (top / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nkv:x:1000:1000::/home/kv:/bin/sh\n# no entry\n")

    def text(self, path: str, text: str) -> None:
        where = self.top / "proc" / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text + "\n")

    def link(self, path: str, target: str) -> None:
        where = self.top / "proc" / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.unlink(missing_ok=True)
        where.symlink_to(target)

    def process(
        self, pid: int, name: str, *, uid: int = 0, files: dict[str, str] | None = None, maps: str = "", flags: int = 0x400100
    ) -> None:  # fmt: skip
        self.text(f"{pid}/comm", name)
        self.text(f"{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}")
        self.text(f"{pid}/stat", f"{pid} ({name}) S 1 1 1 0 -1 {flags} 0 0")
        self.text(f"{pid}/maps", maps)
        (self.top / f"proc/{pid}/fd").mkdir()
        for fd, target in (files or {}).items():
            self.link(f"{pid}/fd/{fd}", target)

    def shut(self, pid: int, what: str = "fd") -> None:
        """Make a part of a process unreadable, also to root: a link that leads round in circles."""
        where = self.top / f"proc/{pid}/{what}"
        if where.is_dir():
            for entry in where.iterdir():
                entry.unlink()
            where.rmdir()
        else:
            where.unlink()
        where.symlink_to(where.name)

    @property
    def root(self) -> HostRoot:
        return HostRoot(self.top, name="made up")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# -- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/dev/nvidia0", "/dev/nvidia15", "/dev/nvidia-uvm", "/dev/xpu7", "/dev/kfd", "/dev/mkfd", "/dev/dri/renderD128",
        "/dev/davinci3", "/dev/vdavinci100", "/dev/ve0", "/dev/accel/accel0", "/dev/vfio/41", "/dev/vfio/noiommu-0",
        "/dev/vfio/devices/vfio2",
    ],
)  # fmt: skip
def test_an_accelerators_file_is_known(path: str) -> None:
    assert is_accelerator_file(path)


@pytest.mark.parametrize(
    "path",
    [
        "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/xpuctrl", "/dev/davinci_manager", "/dev/vfio/vfio", "/dev/dri/card0",
        "/dev/null", "/dev/nvidia", "/dev/xpu", "/srv/dev/nvidia0", "/dev/nvidia0/x", "/dev/nvidia\u0661", "", "/dev/vfio/devices",
        "/dev/vga_arbiter", "/dev/vesa", "pipe:[3]",
    ],
)  # fmt: skip
def test_control_files_and_others_are_none(path: str) -> None:
    assert not is_accelerator_file(path)


# -- what is found ----------------------------------------------------------------------------------------------------------


def test_everything_looked_at_and_nothing_held_is_the_empty_list(host: Host) -> None:
    found = find_holders(host.root)
    assert found == known((), "/proc/*/fd, /proc/*/maps")


def test_an_open_file_makes_a_holder_with_its_command_and_user(host: Host) -> None:
    host.process(
        ENGINE, "python3", uid=1000, files={"3": "/dev/xpuctrl", "17": "/dev/xpu1", "9": "/dev/xpu0", "18": "/dev/xpu0"}
    )
    found = find_holders(host.root)
    assert found.value == (
        Holder(ENGINE, "python3", "/dev/xpu0", "kv"),
        Holder(ENGINE, "python3", "/dev/xpu1", "kv"),
    )


def test_a_mapping_without_an_open_file_makes_a_holder(host: Host) -> None:
    maps = (
        "55d0c0de0000-55d0c0df0000 r-xp 00000000 fe:01 131 /usr/bin/python3.11\n"
        "7f0000000000-7f0000010000 rw-s 10000000 00:05 412                        /dev/nvidia1\n"
        "7f0000010000-7f0000020000 rw-p 00000000 00:00 0 \n"
    )
    host.process(ENGINE, "engine", uid=31, maps=maps)
    assert find_holders(host.root).value == (Holder(ENGINE, "engine", "/dev/nvidia1", "31"),)


def test_a_removed_device_file_still_counts(host: Host) -> None:
    host.process(ENGINE, "engine", files={"4": "/dev/davinci0 (deleted)"})
    assert find_holders(host.root).value == (Holder(ENGINE, "engine", "/dev/davinci0", "root"),)


def test_holders_come_by_process_number_not_by_name(host: Host) -> None:
    for pid in (1000, 9, 100):
        host.process(pid, f"p{pid}", files={"3": "/dev/kfd"})
    found = find_holders(host.root)
    assert [holder.pid for holder in found.value or ()] == [9, 100, 1000]


# -- what cannot be seen ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["fd", "maps"])
def test_a_process_that_cannot_be_looked_at_makes_nobody_unknown(part: str, host: Host) -> None:
    host.shut(SHELL, part)
    found = find_holders(host.root)
    assert found.value is None
    assert found.reason == "1 of 2 processes could not be looked at (needs root)"


def test_an_open_file_that_cannot_be_looked_at_makes_nobody_unknown(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / f"proc/{SHELL}/fd/5").write_text("not a link")
    assert "1 of 2 processes" in (find_holders(host.root).reason or "")


def test_a_holder_found_is_told_with_how_many_were_not_looked_at(host: Host) -> None:
    host.process(ENGINE, "engine", files={"3": "/dev/kfd"})
    host.shut(SHELL)
    found = find_holders(host.root)
    assert [holder.pid for holder in found.value or ()] == [ENGINE]
    assert "but 1 of 3 processes could not be looked at" in found.source


def test_a_kernel_thread_holds_no_file_and_need_not_be_looked_at(host: Host) -> None:
    host.shut(THREAD)
    assert find_holders(host.root).value == ()


def test_a_process_that_ended_meanwhile_is_no_holder_and_no_gap(host: Host) -> None:
    (host.top / "proc/5150").mkdir()
    assert find_holders(host.root).value == ()


@pytest.mark.parametrize(
    ("options", "capabilities", "said"),
    [
        ("rw,hidepid=2", "0", "hidepid=2"),
        ("rw,hidepid=invisible", "0", "hidepid=invisible"),
        ("rw,hidepid=2", "80000", None),
        ("rw,hidepid=off", "0", None),
        ("rw,hidepid=0", "0", None),
    ],
)
def test_a_proc_that_hides_processes_makes_nobody_unknown(
    options: str, capabilities: str, said: str | None, host: Host
) -> None:
    host.text("self/mountinfo", f"22 1 0:21 / /proc rw,nosuid - proc proc {options}")
    host.text("self/status", f"CapEff:\t{int(capabilities, 16):016x}")
    found = find_holders(host.root)
    assert (found.value is None) == (said is not None)
    assert (said or "") in (found.reason or "")


def test_from_a_pid_namespace_of_its_own_nobody_is_unknown(host: Host) -> None:
    host.link("self/ns/pid", "pid:[4026532501]")
    assert "PID namespace" in (find_holders(host.root).reason or "")
    host.process(ENGINE, "engine", files={"3": "/dev/kfd"})
    found = find_holders(host.root)
    assert len(found.value or ()) == 1 and "PID namespace" in found.source


@pytest.mark.parametrize("lost", ["self/ns/pid", "self/mountinfo"])
def test_what_says_whether_proc_is_whole_is_needed(lost: str, host: Host) -> None:
    (host.top / "proc" / lost).unlink()
    assert "not known" in (find_holders(host.root).reason or "")


def test_a_host_without_processes_is_not_one_that_nobody_uses(tmp_path: Path) -> None:
    assert find_holders(HostRoot(tmp_path, name="empty")).value is None
    (tmp_path / "proc").mkdir()
    assert find_holders(HostRoot(tmp_path, name="empty")).value is None


def test_this_machine_answers_with_a_list_or_a_reason() -> None:
    found = find_holders(HostRoot())
    assert (found.value is None) == bool(found.reason)
    assert os.getpid() not in {holder.pid for holder in found.value or ()}


# -- the refusal ----------------------------------------------------------------------------------------------------------------


def test_an_ordering_change_is_refused_while_a_process_holds_an_accelerator_and_it_is_named() -> None:
    one = known((Holder(ENGINE, "engine", "/dev/xpu0", "kv"), Holder(ENGINE, "engine", "/dev/xpu1", "kv")), "x")
    assert refusal(one, IDO) == "process 4242 (engine) holds an accelerator (/dev/xpu0)"
    two = known((*(one.value or ()), Holder(5000, None, "/dev/xpu1", None)), "x")
    assert refusal(two, IDO) == "process 4242 (engine) and 1 more process hold an accelerator (/dev/xpu0)"
    assert refusal(two, IDO, online=True) is None


def test_not_knowing_is_a_refusal_too() -> None:
    why = "12 of 340 processes could not be looked at (needs root)"
    assert why in (refusal(unknown("/proc", why), IDO) or "")
    assert refusal(unknown("/proc", why), IDO, online=True) is None


def test_nobody_and_changes_that_keep_the_order_are_not_refused() -> None:
    assert refusal(known((), "x"), IDO) is None
    held = known((Holder(1, "a", "/dev/kfd", "root"),), "x")
    for holders in (held, unknown("/proc", "not read")):
        assert refusal(holders, item("thp.enabled")) is None


def test_the_gate_looks_at_the_processes_once_and_only_for_an_ordering_change(host: Host) -> None:
    ask = gate(host.root)
    assert ask(item("thp.enabled")) is None
    host.process(ENGINE, "engine", files={"3": "/dev/kfd"})
    assert "4242" in (ask(IDO) or "")
    host.shut(ENGINE)
    assert "4242" in (ask(IDO) or "")
    assert gate(host.root, online=True)(IDO) is None

"""A pool that two processes map: the same bytes, the same shape or an error, and nothing left of it whoever is killed."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_memory import MIB, FakeDriver
from shared_pools import GEOMETRY, LAYOUT, N_SLOTS

from hicachectl.errors import HicacheError, HostError, PermissionDenied, UsageError
from hicachectl.linux_calls import MADV_POPULATE_WRITE
from hicachectl.runtime.geometry import KVGeometry, KVKind
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.memory.host_pool import HostPool, map_pool
from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.live import LiveRegistrations
from hicachectl.runtime.memory.mapping import attach_memory, map_memory
from hicachectl.runtime.memory.register import NoRegistrar
from hicachectl.runtime.memory.shared_file import (
    LABEL_BYTES,
    Standing,
    label_text,
    lock_as_owner,
    look_at_file,
    remove_stale,
)
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.runtime.memory.steps import StepState
from hicachectl.runtime.memory.syscalls import PoolCalls

NOBODY = NoRegistrar("not in tests")

CHILD = """
import os, sys
sys.path[:0] = {path!r}
from shared_pools import attach, own, page, say, told
assert "torch" not in sys.modules
{body}
"""


@pytest.fixture
def path() -> Iterator[str]:
    path = f"/dev/shm/hicachectl-attach-{os.getpid()}"
    yield path
    left = os.path.lexists(path)
    if left:
        os.unlink(path)
    assert not left


def own(path: str | None, kind: Kind = Kind.TMPFS) -> HostPool:
    spec = MappingSpec(kind=kind, path=path, named=True, n_threads=1)
    return HostPool(GEOMETRY, N_SLOTS, LAYOUT, mapping=map_pool(GEOMETRY, N_SLOTS, LAYOUT, spec, registrar=NOBODY))


def attach(source: str | int) -> HostPool:
    return HostPool.attach(GEOMETRY, N_SLOTS, LAYOUT, source, spec=MappingSpec(n_threads=1))


class Child:
    """Another process that runs `body`, says words and is told some."""

    def __init__(self, body: str, *, fds: tuple[int, ...] = ()) -> None:
        program = CHILD.format(path=[str(Path(__file__).parents[2])], body=body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=fds
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        return code


OWNER = """
pool = own({path!r})
page(pool, 3, 7)
say("ready")
while (word := told()) not in ("", "close"):
    say(page(pool, int(word)))
pool.close()
say("closed")
told()
"""
ATTACHED = """
pool = attach({path!r})
say(page(pool, 3))
page(pool, 5, 9)
say("written")
told()
"""


def owner_at(path: str) -> Child:
    child = Child(OWNER.format(path=path))
    assert child.said() == "ready"
    return child


def test_two_processes_see_each_others_pages_and_closing_one_leaves_the_other(path: str) -> None:
    owner = owner_at(path)
    size = os.stat(path).st_size
    pool = attach(path)
    assert (pool.read_page(3) == 7).all()
    pool.write_page(6, bytes([8]) * GEOMETRY.page_bytes)
    owner.tell("6")
    assert owner.said() == "8"
    assert pool.report.kind == "tmpfs"
    assert [step.name for step in pool.steps] == ["reserve", "bind", "advise", "populate", "verify", "register"]
    assert f"process {owner.process.pid} made" in pool.steps[0].text
    assert path in pool.steps[0].asked
    pool.close()
    del pool
    gc.collect()
    assert os.stat(path).st_size == size
    owner.tell("3")
    assert owner.said() == "7"
    again = attach(path)
    owner.tell("close")
    assert owner.said() == "closed"
    assert not os.path.exists(path)
    assert (again.read_page(6) == 8).all()
    again.close()
    owner.tell("end")
    assert owner.end() == 0


def test_a_memfd_is_attached_by_the_descriptor_that_was_handed_over() -> None:
    pool = own(None, Kind.MEMFD)
    pool.write_page(3, bytes([7]) * GEOMETRY.page_bytes)
    fd = pool.shared_fd
    assert fd is not None
    other = Child(ATTACHED.format(path=fd), fds=(fd,))
    assert (other.said(), other.said()) == ("7", "written")
    assert (pool.read_page(5) == 9).all()
    assert other.end(signal.SIGKILL) == -signal.SIGKILL
    assert (pool.read_page(3) == 7).all()
    pool.close()
    assert pool.shared_fd is None


def test_nobody_who_maps_a_memfd_can_cut_it() -> None:
    pool = own(None, Kind.MEMFD)
    assert pool.shared_fd is not None
    with pytest.raises(PermissionError):
        os.ftruncate(pool.shared_fd, 0)
    pool.close()


@pytest.mark.parametrize(
    ("geometry", "n_slots", "layout", "words"),
    [
        (GEOMETRY, 41, LAYOUT, "n_slots 40 there, 41 wanted"),
        (GEOMETRY, 39, LAYOUT, "n_slots 40 there, 39 wanted"),
        (GEOMETRY, N_SLOTS, Layout.LAYER_FIRST, "layout page_first_direct there, layer_first wanted"),
        (replace(GEOMETRY, dtype="fp16"), N_SLOTS, LAYOUT, "dtype bf16 there, fp16 wanted"),
        (replace(GEOMETRY, name="other"), N_SLOTS, LAYOUT, "geometry pair there, other wanted"),
        (replace(GEOMETRY, page_tokens=8), N_SLOTS, LAYOUT, "page_tokens 16 there, 8 wanted"),
        (
            KVGeometry("pair", KVKind.MLA, 4, 64, 16),
            N_SLOTS,
            LAYOUT,
            "kind gqa there, mla wanted; n_layers 2 there, 4 wanted",
        ),
    ],
)
def test_a_pool_of_another_shape_is_refused_with_both_values(
    path: str, geometry: KVGeometry, n_slots: int, layout: Layout, words: str
) -> None:
    pool = own(path)
    with pytest.raises(UsageError, match="is another one") as caught:
        HostPool.attach(geometry, n_slots, layout, path)
    assert words in caught.value.what
    pool.close()


def test_a_killed_owner_leaves_a_stale_file_that_is_told_refused_and_removed_by_the_next_start(path: str) -> None:
    owner = owner_at(path)
    owner.end(signal.SIGKILL)
    assert look_at_file(path).standing is Standing.STALE
    with pytest.raises(HostError, match=f"stale: process {owner.process.pid} made it"):
        attach(path)
    pool = own(path)
    assert f"process {owner.process.pid}, which made this pool, is gone" in pool.steps[0].text
    assert not pool.read_page(3).any()
    assert (attach(path).read_page(3) == 0).all()
    pool.close()


def test_while_an_attached_process_lives_a_killed_owners_pool_is_not_removed_under_it(path: str) -> None:
    owner = owner_at(path)
    other = Child(ATTACHED.format(path=path))
    assert (other.said(), other.said()) == ("7", "written")
    owner.end(signal.SIGKILL)
    with pytest.raises(UsageError, match="is there already") as caught:
        own(path)
    assert "another process maps it still" in str(caught.value.why)
    assert os.path.exists(path)
    other.end(signal.SIGKILL)
    own(path).close()


def test_a_killed_attached_process_leaves_the_owner_and_its_file_as_they_are(path: str) -> None:
    owner = owner_at(path)
    other = Child(ATTACHED.format(path=path))
    assert (other.said(), other.said()) == ("7", "written")
    other.end(signal.SIGKILL)
    owner.tell("5")
    assert owner.said() == "9"
    assert look_at_file(path).standing is Standing.IN_USE
    owner.tell("close")
    assert owner.said() == "closed"
    assert not os.path.exists(path)
    owner.tell("end")
    assert owner.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_owner_removes_the_file(path: str, number: signal.Signals) -> None:
    before = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    child = Child(before + OWNER.format(path=path))
    assert child.said() == "ready"
    assert child.end(number) == -number
    assert not os.path.exists(path)


def test_the_end_of_the_interpreter_and_an_error_nobody_caught_remove_the_file(path: str) -> None:
    for body in ("pool = own({path!r})\n", "pool = own({path!r})\n1 / 0\n"):
        Child(body.format(path=path) + "").end()
        assert not os.path.exists(path)


def test_an_owner_killed_while_it_fills_the_pool_leaves_nothing(path: str) -> None:
    body = """
import signal, threading
from hicachectl.runtime.memory import populate
populate.MOST_THREADS = 1
real = populate._Work.run
def killed(self):
    real(self)
    os.kill(os.getpid(), signal.SIGKILL)
populate._Work.run = killed
own({path!r})
"""
    assert Child(body.format(path=path)).end() == -signal.SIGKILL
    assert not os.path.lexists(path)


def test_a_forked_child_removes_no_file(path: str) -> None:
    pool = own(path)
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.path.exists(path)
    pool.close()
    assert not os.path.exists(path)


def _foreign(kind: str, path: str) -> None:
    if kind == "folder":
        os.mkdir(path)
    elif kind == "link":
        os.symlink("/etc/hostname", path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "wrong size":
        Path(path).write_bytes(b"x" * 8192 + label_text({"mapped_bytes": 4096, "n_bytes": 1, "pid": 1}))
    else:
        Path(path).write_bytes(b"x" * 10000)


@pytest.mark.parametrize("kind", ["file", "wrong size", "folder", "link", "pipe"])
def test_what_is_no_pool_is_never_removed_opened_for_a_pool_or_attached_to(path: str, kind: str) -> None:
    _foreign(kind, path)
    try:
        with pytest.raises(UsageError, match=r"is there already|not on tmpfs"):
            own(path)
        assert remove_stale(path).standing is Standing.FOREIGN
        with pytest.raises((UsageError, HostError)):
            attach(path)
        assert os.path.lexists(path)
    finally:
        os.rmdir(path) if kind == "folder" else os.unlink(path)


@pytest.mark.parametrize(
    ("number", "refused", "hint"),
    [
        (errno.EACCES, PermissionDenied, "as the user who made it"),
        (errno.ELOOP, UsageError, "not a link to it"),
        (errno.EISDIR, UsageError, "not its folder"),
        (errno.EMFILE, HostError, "ulimit -n"),
        (errno.EIO, HostError, "kernel's log"),
    ],
)
def test_a_pool_that_cannot_be_opened_says_what_stands_in_the_way(
    monkeypatch: pytest.MonkeyPatch, number: int, refused: type[HicacheError], hint: str
) -> None:
    def no(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", no)
    with pytest.raises(HicacheError) as caught:
        attach("/dev/shm/hicachectl-closed")
    assert type(caught.value) is refused
    assert hint in (caught.value.hint or "")
    assert caught.value.why == os.strerror(number)


def test_a_file_that_took_the_name_meanwhile_stays_when_the_owner_closes(path: str) -> None:
    pool = own(path)
    os.unlink(path)
    Path(path).write_text("mine")
    pool.close()
    assert Path(path).read_text() == "mine"
    os.unlink(path)


def test_where_there_is_no_pool_yet_the_error_says_to_start_its_owner() -> None:
    with pytest.raises(UsageError, match="no shared pool") as caught:
        attach("/dev/shm/hicachectl-nobody")
    assert "start the process" in str(caught.value.hint)


def test_an_attached_pool_has_a_registration_of_its_own(path: str) -> None:
    made, driver, live = own(path), FakeDriver(), LiveRegistrations(at_exit=False)
    spec = MappingSpec(n_threads=1, slot_bytes=GEOMETRY.page_bytes, label=())
    mapping = attach_memory(path, made.n_bytes, spec, registrar=driver, live=live)
    assert mapping.report.registered_bytes == sum(driver.registered.values()) == mapping.report.mapped_bytes
    mapping.close()
    assert not driver.registered
    assert len(live) == 0
    made.close()


def test_on_a_kernel_that_cannot_populate_without_writing_nothing_is_written_to_an_attached_pool(path: str) -> None:
    class Old(PoolCalls):
        def advise(self, address: int, n_bytes: int, advice: int) -> None:
            if advice == MADV_POPULATE_WRITE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "madvise 23")
            super().advise(address, n_bytes, advice)

    spec = MappingSpec(kind=Kind.TMPFS, path=path, named=True, n_threads=1)
    with map_memory(MIB, spec, calls=Old()) as made:
        made.buffer[:] = 5
        with attach_memory(path, MIB, MappingSpec(n_threads=1), calls=Old()) as mapping:
            assert mapping.report.step("populate").state is StepState.SKIPPED  # type: ignore[union-attr]
            assert mapping.report.step("verify").state is StepState.SKIPPED  # type: ignore[union-attr]
            assert mapping.report.resident_bytes is None, "its pages are in memory, and none is mapped here yet"
            assert np.all(mapping.buffer == 5)
        assert np.all(made.buffer == 5)


def planted(path: str, mapped_bytes: int, **label: int) -> int:
    """Put a pool at `path` as its owner would, with another label; returns the descriptor that holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, mapped_bytes + LABEL_BYTES)
    os.pwrite(fd, label_text({"mapped_bytes": mapped_bytes, **label}), mapped_bytes)
    lock_as_owner(fd)
    return fd


def test_a_pool_of_another_user_is_not_attached_to(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = planted(path, MIB, n_bytes=MIB, pid=1)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionDenied, match=f"belongs to user {user}, this is user {user + 1}"):
        attach_memory(path, MIB)
    os.close(fd)
    os.unlink(path)


def test_a_label_that_says_more_than_there_is_is_refused_before_anything_is_read(path: str) -> None:
    fd = planted(path, MIB, n_bytes=64 * MIB, pid=1)
    with pytest.raises(UsageError, match=f"holds {MIB} bytes of memory, {64 * MIB} wanted"):
        attach_memory(path, 64 * MIB)
    os.close(fd)
    os.unlink(path)


def test_a_label_without_its_maker_is_no_error_of_this_program(path: str) -> None:
    fd = planted(path, MIB, n_bytes=MIB)
    with attach_memory(path, MIB) as mapping:
        assert mapping.buffer.size == MIB
    with pytest.raises(UsageError, match="another one"):
        attach_memory(path, 2 * MIB)
    os.close(fd)
    os.unlink(path)


def test_a_memfd_that_cannot_be_sealed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, command: int, *more: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="F_ADD_SEALS"):
        PoolCalls().shared_memory(MIB)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_label_that_does_not_fit_its_page_is_an_error() -> None:
    with pytest.raises(ValueError, match="a label of"):
        label_text({"x": "y" * LABEL_BYTES})

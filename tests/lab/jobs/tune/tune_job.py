"""Run `hicachectl tune` in one scenario; note exit codes, documents, and what registers and files hold, by other code.

out/runs.json: name -> {exit_code, stdout, stderr}; out/seen.json: moment -> {registers, files}. Nothing is judged here.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest_lib as guest

OUT = Path("out")
THP = Path("/sys/kernel/mm/transparent_hugepage")
IDO_ONLY = ("--only", "pcie.ido-request", "--pcie-ido-request", "on")
GUIDE_S = 600
SAMPLED_S = 20
BALANCING = Path("/sys/kernel/debug/sched/numa_balancing")
NOBODY = 65534
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
HUGE_BYTES = 2 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

runs: dict[str, dict[str, Any]] = {}
seen: dict[str, dict[str, Any]] = {}


def hicachectl(name: str, *arguments: str, enter: Callable[[], None] | None = None) -> dict[str, Any]:
    """Run one command and note how it ended; `enter` changes the child first."""
    done = subprocess.run(
        [sys.executable, "-m", "hicachectl", *arguments], capture_output=True, text=True, check=False, preexec_fn=enter
    )
    runs[name] = {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    print(f"{name}: hicachectl {' '.join(arguments)}: {done.returncode}", flush=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
    return runs[name]


def plan(name: str, *arguments: str) -> str:
    """Save a plan and return its file."""
    file = f"/run/{name}.json"
    hicachectl(name, "tune", "plan", *arguments, "--output-file", file, "-o", "json")
    return file


def apply(name: str, file: str, *arguments: str, enter: Callable[[], None] | None = None) -> None:
    hicachectl(name, "tune", "apply", file, "--yes", "-o", "json", *arguments, enter=enter)


def look(moment: str) -> None:
    """Note what Device Control 2 of every accelerator and the settings files hold now, read without the project's code."""
    registers = {}
    for address in guest.accelerators():
        capability = guest.pcie_capability(address)
        word = 0xFFFF if capability is None else guest.read_word(address, capability.offset + guest.DEVICE_CONTROL_2)
        registers[address] = f"{word:04x}"
    files = {
        str(path): path.read_text()
        for path in sorted(THP.rglob("*"))
        if path.is_file() and path.parent.name != "stats" and path.name not in ("full_scans", "pages_collapsed")
    }
    files["numa_balancing"] = Path("/proc/sys/kernel/numa_balancing").read_text()
    files["mounts"] = Path("/proc/mounts").read_text()
    seen[moment] = {"registers": registers, "files": files}


# -- scenarios ------------------------------------------------------------------------------------------------------------


def ordering() -> None:
    """Request marks on all accelerators, verified, told, and put back."""
    look("before")
    file = plan("plan", *IDO_ONLY)
    hicachectl("show", "tune", "show", file, "--as-shell")
    apply("apply", file)
    look("applied")
    hicachectl("verify", "tune", "verify", "-o", "json")
    hicachectl("status", "tune", "status", "-o", "json")
    apply("again", file)
    hicachectl("rollback", "tune", "rollback", "--yes", "-o", "json")
    look("rolled back")


def held() -> None:
    """A process has an accelerator's file open: packet order must wait; with --online it need not. And --prove without a load."""
    Path("/dev/xpu0").touch()
    file = plan("plan", *IDO_ONLY)
    apply("prove", file, "--prove")
    with open("/dev/xpu0"):
        apply("held", file)
        apply("online", file, "--online")
    hicachectl("rollback", "tune", "rollback", "--yes", "-o", "json")


def virtual() -> None:
    """The machine says that it is virtual."""
    apply("apply", plan("plan", *IDO_ONLY))


def odd_devices() -> None:
    """Three runs, each with the five good accelerators and one that mistreats its bits; a rollback where something stays."""
    accelerators = guest.accelerators()
    odd = {"refuser": 1, "reverter": 3, "falling": 5}
    good = [address for number, address in enumerate(accelerators) if number not in odd.values()]
    look("before")
    for name, number in odd.items():
        chosen = sorted([*good, accelerators[number]])
        only = [word for address in chosen for word in ("--only", f"pcie.ido-request@{address}")]
        file = plan(f"plan {name}", *only, "--pcie-ido-request", "on")
        apply(name, file)
        look(name)
        hicachectl(f"status {name}", "tune", "status", "-o", "json")
        if name == "refuser":
            hicachectl("rollback", "tune", "rollback", "--yes", "-o", "json")
            look("rolled back")


def memory() -> None:
    """Huge pages and the tmpfs mount set by profile, proven by mappings, put back; bindings of all nodes."""
    (THP / "enabled").write_text("never")  # so that the plan has something to change
    look("before")
    file = plan("plan", "--only", "thp", "--only", "tmpfs")
    apply("apply", file)
    look("applied")
    hicachectl("verify", "tune", "verify", "-o", "json")
    hicachectl("rollback", "tune", "rollback", "--yes", "-o", "json")
    look("rolled back")
    seen["bindings"] = {
        "guest": {node: guest.mbind(node, size=4 << 20) for node in guest.node_ids()},
        "proof": proof_of_binding(),
    }
    seen["hidden"] = proof_while_sampled()


def fragmented() -> None:
    """No free huge block anywhere: the setting is applied, and the proof says that it could not be observed."""
    (THP / "defrag").write_text("never")
    Path("/proc/sys/vm/compaction_proactiveness").write_text("0")
    holes = memory_with_holes()
    file = plan("plan", "--only", "thp.enabled")
    taken: list[mmap.mmap] = []
    for _ in range(3):  # a process that ends may leave a huge block behind: then the situation is made again
        taken += every_huge_page()
        (THP / "enabled").write_text("never")
        apply("apply", file)
        hicachectl("rollback", "tune", "rollback", "--yes", "-o", "json")
        if "none could be had" in runs["apply"]["stdout"]:
            break
    seen["fragmented"] = {"n_huge_pages_taken": len(taken), "n_hole_bytes": len(holes) // 2}


def locked_down() -> None:
    """Two plans made by root; then apply in one situation after the other. The last cannot be taken back."""
    import locked_down as situations

    def hidden() -> None:
        if Path("/run/empty").exists():  # the situation makes it, once for each process that enters
            Path("/run/empty").rmdir()
        situations.hidden_sys_mm()

    look("before")
    plans = {"ordering": plan("ordering", *IDO_ONLY)}
    (THP / "enabled").write_text("never")
    plans["memory"] = plan("memory", "--only", "thp.enabled")
    tried = [
        ("nobody", situations.nobody, ("ordering", "memory")),
        ("without CAP_SYS_ADMIN", never_cap_sys_admin, ("ordering",)),
        ("read-only /sys", situations.read_only_sys, ("ordering", "memory")),
        ("hidden /sys/kernel/mm", hidden, ("memory",)),
        ("lockdown", situations.kernel_lockdown, ("ordering",)),
    ]
    seen["bindings"] = {
        name: binding_in(enter)
        for name, enter in (("seccomp", situations.seccomp_eperm), ("cpuset", situations.cpuset_of_two_nodes))
    }
    for situation, enter, kinds in tried:
        for kind in kinds:
            name = f"{situation}, {kind}"
            state, copy = Path(f"/tmp/state {name.replace('/', '')}"), Path(f"/tmp/{name.replace('/', '')}.json")
            state.mkdir(mode=0o700)
            copy.write_bytes(Path(plans[kind]).read_bytes())
            if situation == "nobody":
                os.chown(state, NOBODY, NOBODY)
                os.chown(copy, NOBODY, NOBODY)
            apply(name, str(copy), "--state-dir", str(state), enter=enter)
    look("after")


def never_cap_sys_admin() -> None:
    """Take the capability out of the bounding set: root gets back at exec what is merely dropped."""
    assert guest.libc.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) == 0


def guided() -> None:
    """`hicachectl tune` alone on a terminal, answered with yes; what the terminal showed is kept."""
    (THP / "enabled").write_text("never")
    look("before")
    out = terminal([sys.executable, "-m", "hicachectl", "tune"], answer=b"y\n")
    runs["guided"] = out
    (OUT / "guided.txt").write_text(out["stdout"])
    look("applied")
    hicachectl("status", "tune", "status")
    hicachectl("rollback", "tune", "rollback", "--yes")
    look("rolled back")


SCENARIOS = {
    "ordering": ordering, "held": held, "virtual": virtual, "odd-devices": odd_devices, "memory": memory, "fragmented": fragmented,
    "locked-down": locked_down, "guided": guided,
}  # fmt: skip


# -- helpers --------------------------------------------------------------------------------------------------------------


def proof_of_binding() -> dict[str, Any]:
    """Ask the project's own proof, for all nodes at once."""
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.item import Item, ItemKind
    from hicachectl.tuning.proofs import prove_effect
    from hicachectl.tuning.target import Rule

    item = Item(
        id="numa.balancing", knob="numa.balancing", subject=None, title="", kind=ItemKind.SAME, target=None, old=None,
        old_reason="-", wanted=(), rule=Rule.EQUAL, why="", origin="", source="", proof="binding",
    )  # fmt: skip
    found = prove_effect(item, HostRoot())
    return {"held": found.held, "text": found.text, "observed": dict(found.observed)}


def proof_while_sampled() -> dict[str, Any]:
    """Prove advised huge pages where NUMA balancing, in a hurry, samples the mapping before it is looked at."""
    from hicachectl.linux_calls import MADV_POPULATE_WRITE, LinuxCalls
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.item import Item, ItemKind
    from hicachectl.tuning.proofs import prove_effect
    from hicachectl.tuning.target import Method, Rule, Target

    shown: list[int] = []

    class Late(LinuxCalls):
        """Lets what was just populated be sampled, the first time."""

        def advise(self, address: int, n_bytes: int, advice: int) -> None:
            super().advise(address, n_bytes, advice)
            if advice != MADV_POPULATE_WRITE:
                return
            last = time.monotonic() + (SAMPLED_S if not shown else 0)
            shown.append(resident_kb(address))
            while shown[-1] << 10 == n_bytes and time.monotonic() < last:
                shown[-1] = resident_kb(address)

    subprocess.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"], check=True)
    periods = {BALANCING / name: (BALANCING / name).read_text() for name in ("scan_delay_ms", "scan_period_min_ms")}
    word = (THP / "enabled").read_text().partition("[")[2].partition("]")[0]
    try:
        (THP / "enabled").write_text("madvise")
        for path in periods:
            path.write_text("500")
        item = Item(
            id="thp.enabled", knob="thp.enabled", subject=None, title="", kind=ItemKind.SAME, target=Target(Method.SYSFS, str(THP / "enabled")),
            old=None, old_reason="-", wanted=("madvise",), rule=Rule.EQUAL, why="", origin="", source="", proof="thp-anonymous",
        )  # fmt: skip
        found = prove_effect(item, HostRoot(), calls=Late())
    finally:
        for path, text in periods.items():
            path.write_text(text)
        (THP / "enabled").write_text(word)
        subprocess.run(["umount", "/sys/kernel/debug"], check=True)
    return {"held": found.held, "text": found.text, "shown_kb": shown}


def resident_kb(address: int) -> int:
    """Rss of the mapping at an address, as smaps has it."""
    text = Path("/proc/self/smaps").read_text()
    return int(text.partition(f"\n{address:x}-")[2].partition("\nRss:")[2].split()[0])


def binding_in(enter: Callable[[], None]) -> Any:
    """Ask the same in a process that entered a situation."""
    command = [sys.executable, "tune_job.py", "binding"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=enter).stdout)


def memory_with_holes() -> mmap.mmap:
    """Take most of the memory in small pages and give every other page back: half is free, and no two pages of it adjoin."""
    (THP / "enabled").write_text("never")
    available = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) << 10
    area = mmap.mmap(-1, (available - (160 << 20)) // mmap.PAGESIZE * mmap.PAGESIZE, flags=PRIVATE)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(area)), 1, len(area))
    for start in range(0, len(area), 2 * mmap.PAGESIZE):
        area.madvise(mmap.MADV_DONTNEED, start, mmap.PAGESIZE)
    return area


def every_huge_page() -> list[mmap.mmap]:
    """Take huge pages until no node has one to give: a fault asks the node it runs on."""
    (THP / "enabled").write_text("always")
    areas: list[mmap.mmap] = []
    everywhere = os.sched_getaffinity(0)
    for cpu in everywhere:
        os.sched_setaffinity(0, {cpu})
        failed = failed_huge_faults()
        while failed_huge_faults() == failed:
            area = mmap.mmap(-1, 2 * HUGE_BYTES, flags=PRIVATE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(area))
            ctypes.memset(-start % HUGE_BYTES + start, 1, 1)
            areas.append(area)
    os.sched_setaffinity(0, everywhere)
    return areas


def failed_huge_faults() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("thp_fault_fallback ")))


def terminal(command: list[str], answer: bytes) -> dict[str, Any]:
    """Run a command on a terminal of its own and type `answer` when it asks."""
    child, master = pty.fork()
    if child == 0:
        os.execv(command[0], command)
    shown, deadline, answered = b"", time.monotonic() + GUIDE_S, False
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 1.0)
        if ready:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: the other side was closed
                break
            if not piece:
                break
            shown += piece
        if not answered and b"[y/N]" in shown:
            os.write(master, answer)
            answered = True
    _, status = os.waitpid(child, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "stdout": shown.decode(errors="replace").replace("\r\n", "\n"),
        "stderr": "",
    }


def main() -> None:
    """Run the scenario named on the command line."""
    if sys.argv[1] == "binding":
        print(json.dumps(proof_of_binding()))
        return
    try:
        SCENARIOS[sys.argv[1]]()
    finally:
        (OUT / "runs.json").write_text(json.dumps(runs, indent=1))
        (OUT / "seen.json").write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()

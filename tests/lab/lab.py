"""Boot a pretend NUMA and PCIe machine in QEMU and run one job in it.

    python3 lab.py MACHINE.json JOB_DIR [--timeout S] [--append "kernel arguments"] [--out DIR]

JOB_DIR is copied into the guest as /job, with guest_lib.py added, and `bash job.sh` runs there as root. What it prints
appears here, its exit code is returned. Written to --out: `config-writes.jsonl` (every config write that reached a
pretend device), `serial.log` (guest kernel and init), `qemu.log`, and `files/` with what the job left in /job/out. Run
setup.sh once before.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qemu_machine import LabError, Machine, device_argument
from vfio_user_device import ConfigSpaceServer

LAB_DIR = Path(__file__).resolve().parent
TIMED_OUT, NO_EXIT_CODE = 124, 125  # exit codes of the lab itself
JOB_DISK_BYTES = 256 << 20  # sparse; room for the job and for what it brings back
KERNEL_ARGUMENTS = (
    "console=ttyS0 root=/dev/nvme0n1 rootfstype=ext4 ro init=/lab-init panic=-1 quiet "
    "nokaslr mitigations=off no_timer_check tsc=reliable random.trust_cpu=on"
)


@dataclass(frozen=True)
class Result:
    """What a run left. `exit_code` is the job's, or TIMED_OUT, or NO_EXIT_CODE when the guest died."""

    exit_code: int
    stdout: str
    config_writes: list[dict[str, Any]]
    out_dir: Path
    seconds: float

    def job_writes(self, offset: int) -> list[tuple[str, str]]:
        """Return (device name, bytes as hex) of each write to `offset` since the job started, in order."""
        return [
            (write["device"], write["bytes"])
            for write in self.config_writes
            if write["phase"] == "job" and write["offset"] == offset
        ]


@dataclass(frozen=True)
class Pieces:
    """What setup.sh built: guest kernel, guest root image, QEMU binary (with lib/ and share/ beside it), Python packages."""

    kernel: Path
    root: Path
    qemu: Path
    site: Path

    @classmethod
    def find(cls) -> Pieces:
        """Ask setup.sh, which alone knows the cache's layout."""
        answer = subprocess.run(["bash", LAB_DIR / "setup.sh", "--where"], capture_output=True, text=True, check=False)
        if answer.returncode:
            raise LabError(answer.stderr.strip())
        return cls(**{key: Path(path) for key, _, path in (line.partition("=") for line in answer.stdout.splitlines())})


def run(
    machine: Path | dict[str, Any],
    job_dir: Path,
    *,
    out_dir: Path,
    timeout_s: float = 180,
    append: str = "",
    on_output: Callable[[str], object] | None = None,
) -> Result:
    """Boot `machine` (a file or its content), run `job_dir`/job.sh in it, and stop everything again."""
    description = machine if isinstance(machine, dict) else json.loads(machine.read_text(encoding="utf-8"))
    if not (job_dir / "job.sh").is_file():
        raise LabError(f"{job_dir} has no job.sh")
    pieces = Pieces.find()
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "serial.log").write_bytes(b"")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hicachectl-lab-") as scratch:
        lab_machine = Machine(description, Path(scratch))
        job_disk = Path(scratch) / "job.tar"
        _pack_job(job_dir, job_disk)
        command = _qemu_command(pieces, lab_machine, job_disk, out_dir / "serial.log", append)
        with ConfigSpaceServer(lab_machine.devices, Path(scratch), out_dir / "config-writes.jsonl") as server:
            stdout, timed_out = _run_guest(command, server, out_dir / "qemu.log", timeout_s, on_output)
        serial = (out_dir / "serial.log").read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(out_dir / "files", ignore_errors=True)
        if "LAB-FILES" in serial:
            (out_dir / "files").mkdir()
            subprocess.run(["tar", "-xf", job_disk, "-C", out_dir / "files", "--no-same-owner"], check=True)
    end = re.search(r"^LAB-END exit_code=(\d+)", serial, re.MULTILINE)
    exit_code = int(end[1]) if end else TIMED_OUT if timed_out else NO_EXIT_CODE
    return Result(exit_code, stdout, server.writes, out_dir, time.monotonic() - started)


def _pack_job(job_dir: Path, disk: Path) -> None:
    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    with tarfile.open(disk, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(job_dir, arcname=".", filter=owned_by_root)
        archive.add(LAB_DIR / "guest_lib.py", arcname="guest_lib.py", filter=owned_by_root)
    if disk.stat().st_size > JOB_DISK_BYTES:
        raise LabError(f"{job_dir} is larger than the job disk of {JOB_DISK_BYTES >> 20} MiB")
    with disk.open("r+b") as file:
        file.truncate(JOB_DISK_BYTES)


def _qemu_command(pieces: Pieces, machine: Machine, job_disk: Path, serial_log: Path, append: str) -> list[str]:
    """Run QEMU with its own libraries; `setpriv` has the kernel kill it should this process be killed."""
    home = pieces.qemu.parent
    loader = [str(home / "lib/ld-linux-x86-64.so.2"), "--library-path", str(home / "lib"), str(pieces.qemu)]
    kernel_arguments = " ".join(filter(None, [KERNEL_ARGUMENTS, machine.kernel_arguments, append]))
    # TCG, never KVM: see the README. No -nographic: it makes the firmware print screen codes on the serial line.
    command = ["setpriv", "--pdeathsig", "KILL", *loader, "-L", str(home / "share"), "-accel", "tcg,thread=multi"]
    command += ["-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(pieces.kernel), "-append", kernel_arguments]
    command += ["-chardev", f"file,id=console,path={serial_log}", "-serial", "chardev:console"]
    command += ["-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"]
    command += machine.arguments()
    # Two namespaces of one controller: with two controllers the guest may swap nvme0 and nvme1.
    command += ["-drive", f"file={pieces.root},if=none,id=root,format=raw,readonly=on"]
    command += ["-drive", f"file={job_disk},if=none,id=job,format=raw"]
    command += device_argument("nvme-ns", drive="root", bus="disks", nsid=1)
    command += device_argument("nvme-ns", drive="job", bus="disks", nsid=2)
    return command


def _run_guest(
    command: list[str],
    server: ConfigSpaceServer,
    qemu_log: Path,
    timeout_s: float,
    on_output: Callable[[str], object] | None,
) -> tuple[str, bool]:
    """Run QEMU until it exits; return the job's output and whether the time ran out."""
    timed_out = threading.Event()
    with qemu_log.open("w", encoding="utf-8") as log:
        qemu = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace"
        )

    def stop() -> None:
        timed_out.set()
        qemu.kill()

    timer = threading.Timer(timeout_s, stop)
    timer.start()
    output: list[str] = []
    try:
        assert qemu.stdin and qemu.stdout
        if qemu.stdout.readline().strip() == "LAB-READY":
            server.phase = "job"
            qemu.stdin.write("go\n")
            qemu.stdin.flush()
            for line in qemu.stdout:
                output.append(line)
                if on_output:
                    on_output(line)
        qemu.wait()
    finally:
        timer.cancel()
        qemu.kill()
        qemu.communicate()  # waits, and closes the pipes
    return "".join(output), timed_out.is_set()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machine", type=Path, help="machine file, for example machines/hygon-8n8x.json")
    parser.add_argument("job_dir", type=Path, help="folder with job.sh")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="seconds for the whole run (180)")
    parser.add_argument("--append", default="", metavar="ARGS", help="more kernel arguments")
    parser.add_argument("--out", type=Path, default=Path("lab-out"), metavar="DIR", help="results (lab-out)")
    options = parser.parse_args()

    def terminate(*_signal: object) -> NoReturn:
        sys.exit(128 + signal.SIGTERM)  # unlike the default action, this runs the clean-up

    signal.signal(signal.SIGTERM, terminate)

    def show(line: str) -> None:
        print(line, end="", flush=True)

    try:
        result = run(
            options.machine,
            options.job_dir,
            out_dir=options.out,
            timeout_s=options.timeout,
            append=options.append,
            on_output=show,
        )
    except (LabError, OSError) as error:
        print(f"lab.py: {error}", file=sys.stderr)
        return NO_EXIT_CODE
    if result.exit_code in (TIMED_OUT, NO_EXIT_CODE):
        print(f"lab.py: no exit code from the guest, see serial.log and qemu.log in {options.out}", file=sys.stderr)
    writes = len(result.config_writes)
    print(f"lab.py: exit code {result.exit_code}, {result.seconds:.1f} s, {writes} config writes", file=sys.stderr)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())

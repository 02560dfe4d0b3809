"""Host memory of a pool: populate, register and unregister by kind and threads, beside torch's pinned memory in the same run.

Run: python benchmarks/bench_pool.py [--json FILE] [--quick] [--cuda] [--gib 16] [--threads 1,4,8,16] [--rounds 3]
Only when asked, and put back: --shmem-enabled advise (so that a memfd gets huge pages), --private-tmpfs (a tmpfs with
huge=advise in mounts of this program's own). Without --cuda nothing is registered, and the table says so.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _bench import Row, arguments, report
from _host_setting import SHMEM_ENABLED, changed, chosen, enter_private_mounts, private_tmpfs

from hicachectl.errors import CapacityError
from hicachectl.memory_room import host_memory
from hicachectl.runtime.memory.budget import Ask, ledger
from hicachectl.runtime.memory.cuda_registrar import find_cuda_registrar
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.probes.pool import PoolProbe, PoolRow, default_cases, run_pool_probe

METHOD = (
    "each operand makes and gives back the whole pool once a round, in turning order; as much memory twice over is touched once before; "
    "total = reserve to registered, looking at the pages included; torch = torch.empty(pin_memory=True), its cache emptied after"
)
TIMES_FASTER = 3.0
SMALL_PAGES_PERCENT = 1.0
_RESERVE_BYTES = 1 << 30


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__.splitlines()[0], _flags)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was changed is put back
    n_bytes = int(float(options.gib or (0.0625 if options.quick else 1)) * (1 << 30))
    threads = [1, 2] if options.quick else [int(part) for part in options.threads.split(",")]
    rounds = 2 if options.quick else options.rounds
    warm_bytes = 2 * n_bytes if options.warm_gib is None else int(options.warm_gib * (1 << 30))
    _require_room(max(warm_bytes, n_bytes))
    no_mounts = enter_private_mounts(__file__) if options.private_tmpfs else "not asked for (--private-tmpfs)"
    registrar, why_no_torch = _drivers(options.cuda)
    more: dict[str, Any] = {"shmem_enabled": {}, "private_tmpfs": {} if no_mounts is None else {"reason": no_mounts}}
    try:
        with ExitStack() as stack:
            stack.enter_context(changed(SHMEM_ENABLED, options.shmem_enabled, more["shmem_enabled"]))
            folder = None
            if no_mounts is None:
                folder = stack.enter_context(private_tmpfs(n_bytes + (64 << 20), more["private_tmpfs"]))
            probe = _probe(n_bytes, threads, rounds, registrar, why_no_torch, warm_bytes, folder, options.hugetlb)
    finally:
        print(f"settings: {more}", file=sys.stderr)
    more.update(_device(), probe=_told(probe))
    report("bench_pool", f"{n_bytes / (1 << 30):g} GiB; {METHOD}", _rows(probe), options, more)
    for line in _sayings(probe):
        print(line)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cuda", action="store_true", help="register with CUDA and compare with torch's pinned memory")
    parser.add_argument("--gib", type=float, help="size of the pool (default 1, --quick 1/16)")
    parser.add_argument("--threads", default="1,4,8,16", help="thread counts of the huge-page cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-gib", type=float, help="touched once before the first round (default: twice the pool)")
    parser.add_argument("--hugetlb", action="store_true", help="also from the reserved hugetlb pool")
    parser.add_argument("--shmem-enabled", choices=("advise", "always", "within_size"), help="set it meanwhile (root)")
    parser.add_argument(
        "--private-tmpfs", action="store_true", help="also a file on a tmpfs of this program's own (root)"
    )


def _require_room(n_bytes: int) -> None:
    """Refuse what the machine has no memory for, with the sum."""
    try:
        ledger(host_memory(), [Ask("pool, or its warming", n_bytes)], reserve_bytes=_RESERVE_BYTES).require(
            "give a smaller --gib"
        )
    except CapacityError as error:
        terms = "\n".join(f"  {name:<40} {amount / (1 << 30):8.2f} GiB" for name, amount in error.terms)
        sys.exit(f"{error}\n{terms}\n{error.hint}")


def _drivers(cuda: bool) -> tuple[Registrar | NoRegistrar, str | None]:
    """What registers, and why torch is no operand (None: it is)."""
    if not cuda:
        return NoRegistrar("not asked for (--cuda)"), "not asked for (--cuda)"
    from hicachectl.runtime.memory.torch_pinned import torch_cannot_pin

    registrar = find_cuda_registrar()
    reason = torch_cannot_pin()
    if isinstance(registrar, NoRegistrar) or reason is not None:
        sys.exit(f"--cuda: {registrar.reason if isinstance(registrar, NoRegistrar) else reason}")
    return registrar, None


def _probe(
    n_bytes: int, threads: list[int], rounds: int, registrar: Registrar | NoRegistrar, why_no_torch: str | None, warm_bytes: int,
    folder: str | None, hugetlb: bool,
) -> PoolProbe:  # fmt: skip
    baseline, once = None, False
    if why_no_torch is None:
        from hicachectl.runtime.memory.torch_pinned import can_repeat, pin_with_torch

        baseline, once = pin_with_torch, not can_repeat()
    return run_pool_probe(
        n_bytes,
        default_cases(threads, tmpfs=folder, hugetlb=hugetlb),
        rounds=rounds,
        registrar=registrar,
        baseline=baseline,
        baseline_reason=why_no_torch,
        baseline_once=once,
        warm_bytes=warm_bytes,
        told=lambda text: print(text, file=sys.stderr),
    )


def _rows(probe: PoolProbe) -> list[Row]:
    """One row a number, both operands in it; the target is a third of torch's time."""
    rows = [Row("memory touched once before", "s", (probe.warm_s,), note=f"{probe.warmed_bytes / (1 << 30):g} GiB")]
    theirs = probe.baseline.total_s
    if theirs is not None:
        made, back = zip(*probe.baseline.samples, strict=True)
        rows.append(Row(f"{probe.baseline.name}: total", "s", made, note=probe.baseline.reason or ""))
        if None not in back:
            rows.append(Row(f"{probe.baseline.name}: give back", "s", back))
    most = max(row.case.spec.n_threads or 0 for row in probe.rows)
    for row in probe.rows:
        is_target = theirs is not None and row.case.spec.huge and row.case.spec.n_threads == most
        rows += _rows_of(probe, row, is_target=is_target)
    return rows


def _rows_of(probe: PoolProbe, row: PoolRow, *, is_target: bool) -> list[Row]:
    """`is_target`: the targets are for huge pages by as many threads as a pool gets, beside torch."""
    if not row.samples:
        return []
    name, times = row.case.name, probe.times_faster(row)
    theirs = probe.baseline.total_s
    note = "" if times is None else f"{times:.2f} times faster than torch"
    columns = {part: tuple(getattr(sample, part) for sample in row.samples) for part in asdict(row.samples[0])}
    rows = [
        Row(
            f"{name}: total",
            "s",
            columns["total_s"],
            limit=theirs / TIMES_FASTER if is_target and theirs else None,
            note=note,
        ),
        Row(f"{name}: populate", "s", columns["populate_s"]),
    ]
    for part in ("register_s", "unregister_s"):
        if None not in columns[part]:
            rows.append(Row(f"{name}: {part[:-2]}", "s", columns[part]))
    rows.append(Row(f"{name}: unmap", "s", columns["unmap_s"]))
    if None not in columns["huge_share"]:
        small = tuple(round(100 * (1 - share), 3) for share in columns["huge_share"])
        reason = next((reason for reason in row.samples[-1].reasons if reason.startswith("verify")), "")
        limit = SMALL_PAGES_PERCENT if is_target else None
        rows.append(Row(f"{name}: not in huge pages", "%", small, limit=limit, note=reason.removeprefix("verify: ")))
    return rows


def _sayings(probe: PoolProbe) -> list[str]:
    """What is not in the table, and why."""
    lines = [f"registered with {probe.registrar}" if probe.registrar else f"nothing registered: {probe.not_registered}"]
    if probe.baseline.total_s is None:
        lines.append(f"not compared with {probe.baseline.name}: {probe.baseline.reason}")
    lines += [f"{row.case.name}: {row.refused}" for row in probe.rows if row.refused is not None]
    return lines


def _told(probe: PoolProbe) -> dict[str, Any]:
    """The probe for the JSON file: every sample of both operands, with reasons."""
    return {
        "n_bytes": probe.n_bytes,
        "rounds": probe.rounds,
        "registrar": probe.registrar,
        "not_registered": probe.not_registered,
        "baseline": asdict(probe.baseline),
        "rows": [
            {
                "case": row.case.name,
                "refused": row.refused,
                "times_faster": probe.times_faster(row),
                "samples": [asdict(sample) for sample in row.samples],
            }
            for row in probe.rows
        ],
    }


def _device() -> dict[str, Any]:
    """The accelerator, its driver, and the settings that govern huge pages; what cannot be found out is None."""
    found: dict[str, Any] = {"device": None, "driver": None, "cuda": None}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found.update(device=torch.cuda.get_device_name(), cuda=torch.version.cuda)
    driver = Path("/proc/driver/nvidia/version")
    if driver.is_file():
        found["driver"] = driver.read_text().splitlines()[0]
    for name in ("enabled", "defrag", "shmem_enabled"):
        path = SHMEM_ENABLED.with_name(name)
        found[f"transparent_hugepage_{name}"] = chosen(path) if path.is_file() else None
    return found


if __name__ == "__main__":
    main()

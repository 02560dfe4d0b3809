"""What the file backend of L3 does in a folder: writes, look-ups and reads of whole pages, by pages a call and by threads.

A round of a case (pages a call, threads) goes through one set of pages in this order, each operation timed by itself:

    write            as the runtime writes: into the page cache, renamed into place
    read warm        right behind it, from the page cache
    exists known     keys this process has seen (index in memory)
    exists looked    keys asked of the file system (a stat each)
    read cold        after fsync and POSIX_FADV_DONTNEED of every file; what is left in the page cache is looked at, and where the
                     kernel keeps the files there is no cold read and the row says why
    write durable    a fresh set, each object fsynced before its name appears

Pages are read into other host slots than they were written from, and every byte of every page is compared, outside the times.
The backend lets one write go on at a time, whatever the threads. It has no O_DIRECT path. Cold is the page cache of this
kernel: names stay cached, and a cache in the device, or of a hypervisor below, is not emptied by anything here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Layout
from hicachectl.runtime.probes.page_cache import Look, file_system, resident_share
from hicachectl.runtime.probes.stopping import ProbeStopped, Stop, never
from hicachectl.runtime.probes.store_folder import StoreFolder
from hicachectl.runtime.probes.store_round import StoreRounds
from hicachectl.runtime.probes.store_rows import StoreCase, StoreOp, StoreProbe
from hicachectl.runtime.probes.turns import turns

__all__ = ["run_store_probe"]


def run_store_probe(
    parent: Path,
    geometry: KVGeometry,
    cases: Sequence[StoreCase],
    *,
    n_pages: int,
    rounds: int = 3,
    layout: Layout = Layout.PAGE_FIRST_DIRECT,
    durable: bool = True,
    stop: Stop = never,
    told: Callable[[str], None] = lambda text: None,
    go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = perf_counter,
    look_at: Look = resident_share,
) -> StoreProbe:
    """Measure the file backend in a new folder below `parent`, with `n_pages` pages a round.

    Takes host memory for the pages and writes them; both are given back whatever happens, and files of others are left alone.
    `durable` measures fsync too. `go_on` is asked before each case of each round: False ends the probe with what it has. `stop` is
    asked before every call, `look_at` says how much of a file is in the page cache. Raises ProbeStopped when asked to stop, UsageError for
    cases that do not fit the pages, StorageError when the folder cannot be used, PageMismatch for a wrong byte.
    """
    most = max((case.batch_pages * case.n_threads for case in cases), default=0)
    if rounds < 1 or n_pages < most or most < 1 or min(min(c.batch_pages, c.n_threads) for c in cases) < 1:
        raise UsageError(
            f"{rounds} rounds of {n_pages} pages, the largest case asks for {most} at a time",
            hint="give at least 1 round, and pages for every thread's call",
        )
    with StoreFolder(parent) as folder:
        system = file_system(folder.path)
        probe = StoreRounds(folder, geometry, layout, n_pages, stop, clock, look_at)
        try:
            for number, case in turns(rounds, cases, go_on):
                if stop():
                    raise ProbeStopped
                told(f"round {number} of {rounds}: {case.batch_pages} pages a call, {case.n_threads} threads")
                probe.round(case, durable=durable)
        finally:
            probe.close()
    ops = [op for op in StoreOp if durable or op is not StoreOp.WRITE_DURABLE]
    return StoreProbe(
        folder=str(folder.path),
        file_system=system,
        page_bytes=geometry.page_bytes,
        object_bytes=probe.object_bytes,
        n_pages=n_pages,
        rounds=rounds,
        verified_pages=probe.verified_pages,
        scan_s=tuple(probe.scan_s),
        rows=tuple(probe.row(case, op) for case in cases for op in ops),
        left=folder.left,
    )

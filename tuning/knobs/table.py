"""The knobs of memory and NUMA in the order they are planned and written: a size before the file above it, shmem_enabled before mounts. Pure."""

from __future__ import annotations

from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.knobs.khugepaged import KhugepagedDefrag, KhugepagedPagesToScan
from hicachectl.tuning.knobs.limits import CgroupLimit, Hugetlb, Memlock
from hicachectl.tuning.knobs.numa_balancing import NumaBalancing
from hicachectl.tuning.knobs.thp import ThpDefrag, ThpEnabled, ThpShmem
from hicachectl.tuning.knobs.thp_sizes import ThpSizes
from hicachectl.tuning.knobs.tmpfs import TmpfsHuge
from hicachectl.tuning.knobs.weighted_interleave import WeightedInterleave
from hicachectl.tuning.knobs.zone_reclaim import ZoneReclaim

__all__ = ["MEMORY_KNOBS"]

MEMORY_KNOBS: tuple[Knob, ...] = (
    ThpSizes(), ThpEnabled(), ThpDefrag(), ThpShmem(), KhugepagedDefrag(), KhugepagedPagesToScan(), TmpfsHuge(), NumaBalancing(),
    ZoneReclaim(), WeightedInterleave(), Memlock(), Hugetlb(), CgroupLimit(),
)  # fmt: skip

"""The models behind `hicache.yaml`: every key, its type, its range, its default and one line on what it decides.

Units are in the names. Sizes also accept text such as 64GiB. `null` (or `none` in a flag or the environment) switches a nullable key off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.config import JsonDict

from hicachectl.config_memory import HostMemoryConfig
from hicachectl.config_section import SIZE_WANTED, Section, SizeBytes, read_size
from hicachectl.device_names import DEVICE_PATTERN, DEVICE_WANTED, DEVICE_WORDS
from hicachectl.units import GIB

__all__ = [
    "AcsTune", "ComputeConfig", "HicacheConfig", "HostMemoryConfig", "KhugepagedTune", "LimitsTune", "NumaTune", "PcieTune", "PrefetchConfig", "RunConfig", "SizeBytes", "ThpTune",
    "TmpfsTune", "TuneConfig",
]  # fmt: skip


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"{value} is no power of two")
    return value


def _report_or_size(value: object) -> object:
    if isinstance(value, str) and value != "report":
        read_size(value)
    return value


_DEFRAG = ("auto", "always", "defer", "defer+madvise", "madvise", "never")


def _defrag(value: str) -> str:
    word, colon, size = value.partition(":")
    if word not in _DEFRAG or (colon and word != "auto"):
        raise ValueError(f"{value!r} is no word of it")
    if colon:
        read_size(size)
    return value


class ComputeConfig(Section):
    """The modelled prefill: seconds to compute tokens [start, end) = a_s + b_s n + c_s (end^2 - start^2), n = end - start.

    The defaults are the least-squares fit (relative error, within 1.4 %) to the prefill measured on one H200 with Qwen3-8B, eager, from
    2,000 tokens up: docs/facts.md#h200-prefill. `model` and `hardware` say whose prefill a_s, b_s and c_s describe; where the coefficients are
    set without them, nothing is known, and both are null.
    """

    a_s: float = Field(default=7.65e-3, ge=0, description="fixed seconds of one prefill")
    b_s: float = Field(default=2.84e-5, ge=0, description="seconds a token")
    c_s: float = Field(default=5.12e-10, ge=0, description="seconds a token squared: what attention adds with position")
    model: str | None = Field(
        default="qwen3-8b",
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        description="geometry preset whose prefill a_s, b_s, c_s describe; null = not said, no verdict is given then",
        json_schema_extra={"want": "the name of a geometry preset, or null"},
    )
    hardware: str | None = Field(
        default="NVIDIA H200, eager",
        min_length=1,
        description="what that prefill runs on, in words; null = not said",
    )


class PrefetchConfig(Section):
    """How long a request waits for pages from L3. Base and slope are SGLang's defaults; SGLang 0.5.23 has no upper bound: docs/facts.md#sglang-prefetch."""

    policy: Literal["best_effort", "wait_complete", "timeout"] = Field(
        default="timeout",
        description="best_effort takes what is there, wait_complete waits for all, timeout waits until the deadline",
    )
    base_s: float = Field(default=1.0, ge=0, description="deadline: fixed part")
    per_ki_token_s: float = Field(default=0.25, ge=0, description="deadline: seconds for every 1,024 tokens asked for")
    max_s: float = Field(default=10.0, ge=0, description="deadline: upper bound")


class RunConfig(Section):
    """What `hicachectl run` replays, on which tiers, with which policies."""

    trace: str | None = Field(default=None, description="trace file to replay; null = the synthetic workload")
    synthetic: Literal["agent", "multi-turn", "shared-system", "one-shot"] = Field(
        default="multi-turn", description="class of the synthetic workload, used without a trace"
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the synthetic workload and of sampling")
    limit: int | None = Field(
        default=None, ge=1, description="replay the first so many requests of the workload; null = all"
    )
    session_gap_s: float = Field(
        default=60.0,
        ge=0,
        description="seconds between session starts of a trace that has only relative times",
        json_schema_extra={"flag": "--session-gap"},
    )

    geometry: str = Field(
        default="tiny-64k",
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        description="KV geometry preset",
        json_schema_extra={"want": "the name of a geometry preset"},
    )
    dtype: Literal["bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8", "uint8"] | None = Field(
        default=None, description="element type of the KV cache; null = the preset's own, bf16"
    )
    page_tokens: int = Field(default=512, ge=1, le=1 << 16, description="tokens a page")
    layout: Literal["layer_first", "page_first", "page_first_direct"] = Field(
        default="page_first_direct", description="order of the host pool's bytes"
    )
    backend: Literal["auto", "cpu", "torch", "direct", "batch", "strided", "uva"] = Field(
        default="auto",
        description="how pages are copied between device and host; auto measures what can run here, and says why it chose",
    )
    device: str = Field(
        default="auto",
        pattern=DEVICE_PATTERN,
        description="device of tier L1: cpu (a range of host memory), cuda, cuda:1 or another torch device; auto takes an accelerator where torch can use one",
        json_schema_extra={"want": DEVICE_WANTED, "words": list(DEVICE_WORDS)},
    )

    device_slots: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="pages in L1; auto = the longest request",
        json_schema_extra={"want": "a whole number of pages of at least 1, or auto"},
    )
    host_slots: int = Field(
        default=2048,
        ge=0,
        description="pages in L2; 0 = no host tier",
        json_schema_extra={"want": "a whole number of pages, 0 for no host tier"},
    )
    free_list: Literal["lifo", "fifo"] = Field(default="lifo", description="which free slot is handed out first")
    storage_path: str | None = Field(
        default=None, min_length=1, description="folder of L3; auto = a temporary one; null = no storage tier"
    )
    storage_bytes: SizeBytes = Field(default=GIB, description="bytes L3 may hold", json_schema_extra=SIZE_WANTED)

    write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        default="write_through", description="when pages are copied down"
    )
    selective_hits: int = Field(default=2, ge=1, description="hits at which write_through_selective copies a page down")
    eviction: Literal["lru", "fifo", "lfu", "slru", "priority"] = Field(
        default="lru", description="which page leaves a full tier"
    )
    ghost: int = Field(default=0, ge=0, le=1 << 28, description="entries of the ghost list; 0 = off")
    restore: Literal["cost", "always"] = Field(
        default="cost", description="cost restores only what is cheaper than recomputing; always restores every hit"
    )
    restore_margin: float = Field(
        default=1.1, ge=1, description="a restore must be this many times cheaper than recomputing"
    )
    costs: str | None = Field(
        default=None,
        min_length=1,
        description="files of bench results, comma-separated, the first that has a cost counts: what transfers and prefill cost here before anything moved; null = guesses",
        json_schema_extra={"want": "files of bench -o json, comma-separated, or null"},
    )
    seen_keys: int = Field(
        default=1 << 20, ge=1, le=1 << 28, description="page keys remembered to name the reason of a miss"
    )
    host_memory: HostMemoryConfig = Field(default=HostMemoryConfig(), description="memory of the host pool")
    compute: ComputeConfig = Field(default=ComputeConfig(), description="modelled prefill")
    prefetch: PrefetchConfig = Field(default=PrefetchConfig(), description="waiting for L3")

    verify: str = Field(
        default="all", pattern=r"^(all|off|sample:[1-9][0-9]*)$", description="which restored pages are checked byte for byte",
        json_schema_extra={"want": "all, off or sample:N (one page in N)"},
    )  # fmt: skip
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="loopback port for metrics, 0 = any free one; null = off"
    )
    report: str | None = Field(default=None, min_length=1, description="HTML report to write; null = none")


class ThpTune(Section):
    """Transparent huge pages; the words are the kernel's (Documentation/admin-guide/mm/transhuge.rst)."""

    enabled: Literal["always", "madvise", "never"] | None = Field(
        default=None, description="huge pages of private anonymous memory; null = leave alone"
    )
    defrag: Annotated[str, AfterValidator(_defrag)] | None = Field(
        default=None,
        description="who compacts memory at a fault; auto takes defer+madvise where free memory has room for huge pages (SIZE on each node), else defer; null = leave alone",
        json_schema_extra={
            "want": "auto, auto:SIZE such as auto:64GiB, always, defer, defer+madvise, madvise or never, or null"
        },
    )
    shmem: Literal["always", "within_size", "advise", "never", "deny", "force"] | None = Field(
        default=None, description="huge pages of memfd and shared anonymous memory, not of /dev/shm; null = leave alone"
    )
    sizes: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]*kB=(always|inherit|madvise|never)(,[1-9][0-9]*kB=(always|inherit|madvise|never))*$",
        description="settings of single huge page sizes; null = leave alone",
        json_schema_extra={"want": "SIZE=WORD pairs such as 64kB=madvise,2048kB=inherit, or null"},
    )


class KhugepagedTune(Section):
    """The kernel thread that makes huge pages of small ones later."""

    defrag: int | None = Field(
        default=None, ge=0, le=1, description="1 lets khugepaged compact memory; null = leave alone"
    )
    pages_to_scan: int | None = Field(
        default=None, ge=1, le=1 << 31, description="small pages it looks at in one round; null = leave alone"
    )


class TmpfsTune(Section):
    """Mounts that host pools live on."""

    huge: Literal["always", "within_size", "advise", "never"] | None = Field(
        default=None, description="huge= of the tmpfs at /dev/shm, by a remount; null = leave alone"
    )


class NumaTune(Section):
    """Where memory goes, and whether the kernel moves it later."""

    balancing: int | None = Field(
        default=None,
        ge=0,
        le=3,
        description="kernel.numa_balancing; 0 is written only when pools and ranks are bound (--bound); null = leave alone",
    )
    zone_reclaim: Literal["report"] | None = Field(
        default=None, description="vm.zone_reclaim_mode, told and never set; null = say nothing"
    )
    interleave_weight: str | None = Field(
        default=None,
        pattern=r"^(offer|auto|memory|[0-9]+=[1-9][0-9]{0,2}(,[0-9]+=[1-9][0-9]{0,2})*)$",
        description="weights of nodes for weighted interleave, 1 to 255; offer only tells them; null = leave alone",
        json_schema_extra={"want": "offer, auto, memory, or NODE=WEIGHT pairs such as 0=3,1=1, or null"},
    )


class PcieTune(Section):
    """Bits of the accelerators' PCI Express control registers, each by its recipe (`hicachectl tune recipe list`)."""

    ido_request: Literal["on", "off"] | None = Field(
        default=None, description="the accelerator marks its requests for ID-based ordering; null = leave alone"
    )
    ido_completion: Literal["on", "off"] | None = Field(
        default=None, description="the accelerator marks its completions for ID-based ordering; null = leave alone"
    )
    relaxed_ordering: Literal["on", "off"] | None = Field(
        default=None, description="the accelerator may mark its requests as relaxed; null = leave alone"
    )
    read_request: Annotated[int, AfterValidator(_power_of_two)] | None = Field(
        default=None,
        ge=128,
        le=4096,
        description="bytes of the largest read the accelerator asks for at once, host to device only; null = leave alone",
        json_schema_extra={"want": "128, 256, 512, 1024, 2048 or 4096 bytes, or null"},
    )


class AcsTune(Section):
    """Access control of the ports above the accelerators."""

    p2p_redirect: Literal["off"] | None = Field(
        default=None,
        description="off lets peers talk below the root complex and loses isolation (--allow-isolation-loss); null = leave alone",
    )


_Limit = Annotated[str, BeforeValidator(_report_or_size)]
_LIMIT_WANTED: JsonDict = {"want": "report, or the bytes of all host pools together such as 640GiB, or null"}


class LimitsTune(Section):
    """Limits that a pool runs into. They are told with the lines that raise them, never set."""

    memlock: _Limit | None = Field(
        default=None, description="locked memory of a process; null = say nothing", json_schema_extra=_LIMIT_WANTED
    )
    hugetlb: _Limit | None = Field(
        default=None, description="reserved huge pages; null = say nothing", json_schema_extra=_LIMIT_WANTED
    )
    cgroup: _Limit | None = Field(
        default=None,
        description="memory limit of the control group; null = say nothing",
        json_schema_extra=_LIMIT_WANTED,
    )


class TuneConfig(Section):
    """What `hicachectl tune plan` wants of the host. null leaves a setting alone, whatever a profile says."""

    thp: ThpTune = Field(default=ThpTune(), description="huge pages")
    khugepaged: KhugepagedTune = Field(default=KhugepagedTune(), description="huge pages made later")
    tmpfs: TmpfsTune = Field(default=TmpfsTune(), description="tmpfs mounts")
    numa: NumaTune = Field(default=NumaTune(), description="memory placement")
    pcie: PcieTune = Field(default=PcieTune(), description="ordering of PCI Express packets")
    acs: AcsTune = Field(default=AcsTune(), description="access control services")
    limits: LimitsTune = Field(default=LimitsTune(), description="limits")
    recipes: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9-]*(=[A-Za-z0-9_.+-]+)?(,[a-z0-9][a-z0-9-]*(=[A-Za-z0-9_.+-]+)?)*$",
        description="ids of further recipes to use, such as those of a vendor, each alone or with one of its words; null = none",
        json_schema_extra={
            "want": "ids of recipes separated by commas, such as vendor-order or vendor-order=strict, or null"
        },
    )


class HicacheConfig(Section):
    """The whole of `hicache.yaml`."""

    profile: str | None = Field(
        default=None, min_length=1, description="profile that supplies what is not set here: a name or a file"
    )
    run: RunConfig = Field(default=RunConfig(), description="settings of `hicachectl run`")
    tune: TuneConfig = Field(default=TuneConfig(), description="settings of `hicachectl tune`")

"""The models behind `hicache.yaml`: every key, its type, its range, its default and one line on what it decides.

Units are in the names. Sizes also accept text such as 64GiB. `null` (or `none` in a flag or the environment) switches a nullable key off.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from hicachectl.errors import UsageError
from hicachectl.units import GIB, parse_size

__all__ = ["ComputeConfig", "HicacheConfig", "PrefetchConfig", "RunConfig", "SizeBytes"]


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except UsageError as e:
        raise ValueError(e.what) from e


SizeBytes = Annotated[int, BeforeValidator(_size), Field(ge=0)]
_SIZE_WANTED: JsonDict = {"want": "a size such as 64GiB, or a number of bytes"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class ComputeConfig(_Section):
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


class PrefetchConfig(_Section):
    """How long a request waits for pages from L3. Base and slope are SGLang's defaults; SGLang 0.5.23 has no upper bound: docs/facts.md#sglang-prefetch."""

    policy: Literal["best_effort", "wait_complete", "timeout"] = Field(
        default="timeout",
        description="best_effort takes what is there, wait_complete waits for all, timeout waits until the deadline",
    )
    base_s: float = Field(default=1.0, ge=0, description="deadline: fixed part")
    per_ki_token_s: float = Field(default=0.25, ge=0, description="deadline: seconds for every 1,024 tokens asked for")
    max_s: float = Field(default=10.0, ge=0, description="deadline: upper bound")


class RunConfig(_Section):
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
        pattern=r"^[a-z][a-z0-9_]*(:[0-9]+)?$",
        description="device of tier L1: cpu (a range of host memory), cuda, cuda:1 or another torch device; auto takes an accelerator where torch can use one",
        json_schema_extra={"want": "auto, cpu, cuda, or another device of torch such as cuda:1"},
    )

    device_slots: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="pages in L1; auto = the longest request"
    )
    host_slots: int = Field(default=2048, ge=0, description="pages in L2; 0 = no host tier")
    free_list: Literal["lifo", "fifo"] = Field(default="lifo", description="which free slot is handed out first")
    storage_path: str | None = Field(
        default=None, min_length=1, description="folder of L3; auto = a temporary one; null = no storage tier"
    )
    storage_bytes: SizeBytes = Field(default=GIB, description="bytes L3 may hold", json_schema_extra=_SIZE_WANTED)

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
    seen_keys: int = Field(
        default=1 << 20, ge=1, le=1 << 28, description="page keys remembered to name the reason of a miss"
    )
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


class HicacheConfig(_Section):
    """The whole of `hicache.yaml`."""

    profile: str | None = Field(
        default=None, min_length=1, description="profile that supplies what is not set here: a name or a file"
    )
    run: RunConfig = Field(default=RunConfig(), description="settings of `hicachectl run`")

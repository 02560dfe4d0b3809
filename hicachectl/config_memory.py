"""The section `run.host_memory`: what the memory of the host pool is made of, where it lies, how it is registered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hicachectl.config_section import Section, SizeBytes, read_size

__all__ = ["HostMemoryConfig"]


def _whole_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} does not start with /")
    return value


def _weights(value: str) -> str:
    weights = [int(pair.partition("=")[2]) for pair in value.split(",")]
    nodes = [int(pair.partition("=")[0]) for pair in value.split(",")]
    if max(weights) > 255:
        raise ValueError(f"a weight of {max(weights)} is above 255")
    if len(set(nodes)) < len(nodes):
        raise ValueError("a node is named twice")
    return value


_Weights = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,4}=[1-9][0-9]{0,2}(,[0-9]{1,4}=[1-9][0-9]{0,2})*$"),
    AfterValidator(_weights),
]
_Chunk = Annotated[int, BeforeValidator(read_size), Field(ge=1 << 20, le=64 << 30)]


class HostMemoryConfig(Section):
    """How the host pool's memory is made. What came of it is in the report, step by step (`pools.host_memory`)."""

    kind: Literal["anonymous", "memfd", "tmpfs", "hugetlb"] = Field(
        default="anonymous",
        description="what the host pool is made of: private memory, shared memory by descriptor, a file on a tmpfs, or reserved huge pages",
    )
    path: Annotated[str, AfterValidator(_whole_path)] | None = Field(
        default=None,
        description="kind tmpfs: the file to make, removed at the end, or a folder for a file without a name; null = such a one in /dev/shm",
        json_schema_extra={"want": "a path that starts with /, or null"},
    )
    placement: Literal["local", "one-to-one", "socket", "interleave", "weighted"] | None = Field(
        default=None,
        description="which nodes the host pool lies on, seen from the device; null = where a page is first touched",
    )
    weights: _Weights | None = Field(
        default=None,
        description="placement weighted: weights the nodes should have, looked at and never set; null = those of tune.numa.interleave_weight, else the kernel's",
        json_schema_extra={"want": "NODE=WEIGHT pairs such as 0=3,1=1 (1 to 255), or null"},
    )
    huge_pages: bool = Field(
        default=True,
        description="ask for huge pages; false asks for none",
        json_schema_extra={"want": "true or false"},
    )
    hugetlb_bytes: SizeBytes | None = Field(
        default=None,
        description="kind hugetlb: size of a page of the reserved pool; null = the kernel's default size",
        json_schema_extra={"want": "a size such as 1GiB, or null"},
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="threads that populate the host pool; null = as many as there are CPUs, up to 16",
    )
    chunk_bytes: _Chunk = Field(
        default=64 << 30,
        description="most bytes of one registration with the device's driver; one of 512 GiB or more fails, and a giant one holds up the host",
        json_schema_extra={"want": "a size from 1MiB to 64GiB, or a number of bytes"},
    )
    must_register: bool = Field(
        default=False,
        description="true ends the run where the device's driver refuses to register the host pool; false goes on with slower copies, and says so",
        json_schema_extra={"want": "true or false"},
    )

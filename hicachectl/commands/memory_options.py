"""The options of `run.host_memory`, the same in every command that makes a host pool."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = [
    "MEMORY",
    "ChunkBytes",
    "HugePages",
    "HugetlbBytes",
    "Kind",
    "MemoryPath",
    "Placement",
    "Threads",
    "Weights",
    "memory_flags",
]

MEMORY = "Host memory"
Text = str | None


def _option(flag: str, help_text: str, metavar: str) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=MEMORY, metavar=metavar, show_default=False)


Kind = Annotated[Text, _option("--host-memory-kind", "anonymous, memfd, tmpfs or hugetlb.", "KIND")]
MemoryPath = Annotated[Text, _option("--host-memory-path", "Kind tmpfs: the file to make, or a folder for one without a name.", "PATH")]  # fmt: skip
Placement = Annotated[Text, _option("--host-memory-placement", "local, one-to-one, socket, interleave or weighted.", "MODE")]  # fmt: skip
Weights = Annotated[Text, _option("--host-memory-weights", "Weights the nodes should have, such as 0=3,1=1.", "N=W,...")]  # fmt: skip
HugePages = Annotated[Text, _option("--host-memory-huge-pages", "Ask for huge pages: true or false.", "BOOL")]
HugetlbBytes = Annotated[Text, _option("--host-memory-hugetlb-bytes", "Kind hugetlb: size of its pages.", "SIZE")]
Threads = Annotated[Text, _option("--host-memory-threads", "Threads that populate the host pool.", "N")]
ChunkBytes = Annotated[
    Text, _option("--host-memory-chunk-bytes", "Most bytes of one registration, 1MiB to 64GiB.", "SIZE")
]


def memory_flags(
    kind: Text, path: Text, placement: Text, weights: Text, huge_pages: Text, hugetlb_bytes: Text, threads: Text, chunk_bytes: Text
) -> dict[str, Text]:  # fmt: skip
    """Return the flags by the name of their setting. Pure."""
    given = {
        "kind": kind, "path": path, "placement": placement, "weights": weights, "huge_pages": huge_pages,
        "hugetlb_bytes": hugetlb_bytes, "threads": threads, "chunk_bytes": chunk_bytes,
    }  # fmt: skip
    return {f"run.host_memory.{name}": value for name, value in given.items()}

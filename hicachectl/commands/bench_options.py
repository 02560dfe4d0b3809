"""Options that every `hicachectl bench` command has."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["DeviceOption", "RoundsOption", "TimeBudgetOption"]

DeviceOption = Annotated[
    str,
    typer.Option("--device", help="auto, cpu, cuda or another torch device; auto takes an accelerator where torch can use one.", metavar="DEVICE"),
]  # fmt: skip
RoundsOption = Annotated[
    int,
    typer.Option(
        "--rounds", help="Samples of each number; fewer than 3 are no answer.", metavar="N", min=1, max=10_000
    ),
]
TimeBudgetOption = Annotated[
    float | None,
    typer.Option("--time-budget", help="Begin nothing more after so many seconds.", metavar="S", min=0, show_default=False),
]  # fmt: skip

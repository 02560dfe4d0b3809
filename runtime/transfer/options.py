"""How the accelerator backends are set: staging, its kernel, and how many programs may read host memory."""

from __future__ import annotations

from dataclasses import dataclass

from hicachectl.errors import UsageError

__all__ = ["StagingOptions"]


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """Settings of the accelerator backends.

    `staging_bytes` bounds the staging of both directions together, whatever a transfer's size; each direction has
    `n_buffers` equal parts of its half, so that one is filled while the other is emptied. A buffer holds a chunk at least: where
    that is more, staging takes more, and the backend's notes say how much. `kernel` is auto, triton or torch.
    The programs are those of `uva`: 16 saturate host to device and 4 device to host on one H200, more only take
    multiprocessors from compute (docs/facts.md#h200-uva); `scatter_programs` bounds those of staging, one a multiprocessor
    of an H200 by default, and `beside_programs` those of steps that nobody waits for: on few multiprocessors they take less
    from compute, and are still done long before the next step has come. The link starts when the first call of a load
    returns: it has at most `first_pieces` pieces, the second as many, the third twice as many, and so on. Layer groups smaller
    than `least_group_bytes` take layers from the next. Kernels read up to `few_slots` slots from registered host memory: a
    copy of their own would cost more.
    Raises UsageError.
    """

    staging_bytes: int = 256 << 20
    n_buffers: int = 2
    kernel: str = "auto"
    load_programs: int = 16
    backup_programs: int = 4
    scatter_programs: int | None = 132
    beside_programs: int | None = 16
    first_pieces: int = 32
    least_group_bytes: int = 24 << 20
    few_slots: int = 64

    def __post_init__(self) -> None:
        if self.n_buffers < 2 or self.staging_bytes < 2 * self.n_buffers:
            raise UsageError(
                f"staging of {self.staging_bytes} bytes in {self.n_buffers} buffers",
                hint="give at least 2 buffers and some bytes for each",
            )
        if self.load_programs < 1 or self.backup_programs < 1:
            raise UsageError(
                f"{self.load_programs} and {self.backup_programs} programs", hint="give at least 1 of each"
            )
        if any(n is not None and n < 1 for n in (self.first_pieces, self.scatter_programs, self.beside_programs)):
            raise UsageError(
                f"{self.first_pieces} first pieces, {self.scatter_programs} and {self.beside_programs} scatter programs",
                hint="give at least 1 of each",
            )

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one staging buffer."""
        return self.staging_bytes // 2 // self.n_buffers

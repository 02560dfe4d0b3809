"""How large the host pool should be: the whole hit-rate curve, a size chosen on it, and steps on real pools that confirm it."""

READING_ORDER: tuple[str, ...] = (
    "measure",
    "window",
    "numbering",
    "curve",
    "extents",
    "confidence",
    "sampling",
    "fifo",
    "opt",
    "simulate",
    "plateau",
    "engine_flags",
)

"""Probes: what `hicachectl bench` measures. `READING_ORDER` lists the modules as a new reader should open them."""

READING_ORDER: tuple[str, ...] = (
    "device", "pool", "link", "link_cases", "link_math", "flows", "link_verdict", "node_memory", "copy_rig", "copy_times", "products",
)  # fmt: skip

"""Probes: what `hicachectl bench` measures. `READING_ORDER` lists the modules as a new reader should open them."""

READING_ORDER: tuple[str, ...] = (
    "device", "stopping", "turns", "pool", "link", "link_cases", "link_math", "flows", "link_verdict", "node_memory", "copy", "copy_rig", "copy_times",
    "products", "store", "store_rows", "store_round", "store_pages", "store_folder", "page_cache", "restores", "prefill_file",
    "prefill_stack", "fits", "break_even",
)  # fmt: skip

"""Probes: what `hicachectl bench` measures. `READING_ORDER` lists the modules as a new reader should open them."""

READING_ORDER: tuple[str, ...] = ("device", "pool", "copy_rig", "copy_times", "products")

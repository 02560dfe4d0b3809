"""Pools and slots of the device and host tiers. `READING_ORDER` lists the modules as a new reader should open them."""

READING_ORDER: tuple[str, ...] = (
    "host_pool",
    "host_pages",
    "device_pool",
    "slots",
    "mapping",
    "spec",
    "steps",
    "making",
    "refusals",
    "kinds",
    "address_range",
    "placement_modes",
    "populate",
    "verify_pages",
    "register",
    "cuda_registrar",
    "live",
    "faults",
    "numa",
    "syscalls",
)

"""L3: whole pages under their key. `READING_ORDER` lists the modules as a new reader should open them."""

READING_ORDER: tuple[str, ...] = (
    "base",
    "object_keys",
    "file",
    "file_format",
    "file_index",
    "file_scan",
    "disk_full",
    "operation",
    "prefetch",
    "backup",
    "gate",
)

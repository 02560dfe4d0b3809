"""Readers: each takes a `HostRoot` and returns facts. No policy here; `findings.py` judges.

`READING_ORDER` lists the modules as a new reader should open them; a test compares it with the folder.
"""

READING_ORDER: tuple[str, ...] = (
    "facts",
    "root",
    "model",
    "read",
    "kernel_text",
    "id_lists",
    "numa",
    "mempolicy",
    "memory",
    "pages",
    "cgroup",
    "mounts",
    "pci",
    "config_file",
    "pcie_caps",
    "accelerators",
    "pci_ids",
    "uplinks",
    "matrix",
    "machine",
    "isolation",
    "vendor_tool",
    "flatten",
    "diff",
    "snapshot",
    "probes",
    "recording",
    "privacy",
    "aliases",
    "archive",
    "unpacking",
    "places",
)

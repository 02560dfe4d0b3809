"""Readers: each takes a `HostRoot` and returns facts. No policy here; `findings.py` judges.

`READING_ORDER` lists the modules as a new reader should open them; a test compares it with the folder.
"""

READING_ORDER: tuple[str, ...] = (
    "facts",
    "root",
    "model",
    "id_lists",
    "pci",
    "config_file",
    "pcie_caps",
    "accelerators",
    "pci_ids",
    "kernel_text",
    "numa",
    "mempolicy",
    "memory",
    "pages",
    "cgroup",
    "mounts",
    "uplinks",
    "machine",
    "isolation",
)

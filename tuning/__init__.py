"""The operator path: probe, plan, apply, verify, roll back. Modules in reading order; a test compares the list with the folder."""

READING_ORDER: tuple[str, ...] = (
    "target",
    "choices",
    "item",
    "sight",
    "knobs",
    "plan",
    "fingerprint",
    "kernel",
    "access",
    "outcome",
    "host",
    "findings",
    "finding",
    "judge_links",
    "judge_ordering",
    "judge_numa",
    "judge_memory",
    "judge_host",
    "placement",
    "assignment",
)

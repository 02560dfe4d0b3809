"""The operator path: probe, plan, apply, verify, roll back. Modules in reading order; a test compares the list with the folder."""

__all__: tuple[str, ...] = ()

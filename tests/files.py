"""Files of a folder that another process or thread changes meanwhile."""

import os
from pathlib import Path

__all__ = ["files_below"]


def files_below(folder: Path, suffix: str = "") -> list[Path]:
    """The files below a folder whose names end with `suffix`; what vanishes while it is looked for is left out."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(suffix)]

"""What every section of `hicache.yaml` is built from: unknown keys refused, sizes as text or bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from hicachectl.errors import UsageError
from hicachectl.units import parse_size

__all__ = ["SIZE_WANTED", "Section", "SizeBytes", "read_size"]


def read_size(value: object) -> object:
    """Return the bytes of a size given as text, anything else as it is. Pure. Raises ValueError for text that is no size."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except UsageError as e:
        raise ValueError(e.what) from e


SizeBytes = Annotated[int, BeforeValidator(read_size), Field(ge=0)]
SIZE_WANTED: JsonDict = {"want": "a size such as 64GiB, or a number of bytes"}


class Section(BaseModel):
    """A section: frozen, no unknown key, no infinite number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

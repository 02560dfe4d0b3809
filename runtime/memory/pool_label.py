"""What a shared pool says of itself: what every process that maps it must agree on. Pure."""

from __future__ import annotations

from hicachectl.runtime.geometry import KVGeometry
from hicachectl.runtime.layout import Layout

__all__ = ["pool_label"]


def pool_label(geometry: KVGeometry, n_slots: int, layout: Layout) -> tuple[tuple[str, str | int], ...]:
    """Return what must be the same in every process that maps a pool. Pure.

    >>> from hicachectl.runtime.geometry import preset
    >>> dict(pool_label(preset("mla-78", 64), 10, Layout.PAGE_FIRST))["token_plane_bytes"]
    1152
    """
    return (
        ("layout", layout.value), ("n_slots", n_slots), ("geometry", geometry.name), ("kind", geometry.kind.value), ("dtype", geometry.dtype),
        ("n_layers", geometry.n_layers), ("token_plane_bytes", geometry.token_plane_bytes), ("page_tokens", geometry.page_tokens),
    )  # fmt: skip

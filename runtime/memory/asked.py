"""What a mapping was asked for, step by step, in words: what each step's result is read against. Pure."""

from __future__ import annotations

from hicachectl.runtime.memory.kinds import Kind
from hicachectl.runtime.memory.register import NoRegistrar, Registrar
from hicachectl.runtime.memory.spec import MappingSpec
from hicachectl.units import format_bytes

__all__ = ["asked_of"]


def asked_of(
    n_bytes: int, spec: MappingSpec, registrar: Registrar | NoRegistrar, *, source: str | int | None = None
) -> dict[str, str]:
    """Return by step what was wanted of it; `source` is the shared pool to attach to, where one is. Pure.

    >>> asked_of(4096, MappingSpec(n_threads=2), NoRegistrar("no device"))["populate"]
    'every page touched, by 2 threads'
    """
    pages = "pages of the hugetlb pool" if spec.kind is Kind.HUGETLB else "huge pages" if spec.huge else "small pages"
    where = f" in {spec.path}" if spec.kind is Kind.TMPFS and spec.path is not None else ""
    if spec.n_threads is None:
        threads = "a thread a CPU"
    else:
        threads = f"{spec.n_threads} {'thread' if spec.n_threads == 1 else 'threads'}"
    shared = None if source is None else source if isinstance(source, str) else f"descriptor {source}"
    most = f"chunks of at most {format_bytes(spec.largest_registration_bytes)}"
    return {
        "name": f"{spec.path}, for other processes to map",
        "reserve": f"{format_bytes(n_bytes)} of the shared pool {shared}"
        if shared is not None
        else f"{format_bytes(n_bytes)} of {spec.kind.value} memory{where}",
        "bind": "no policy" if spec.placed is None else str(spec.placed),
        "advise": pages,
        "populate": f"every page touched, by {threads}",
        "verify": pages if spec.placed is None else f"{pages}, {spec.placed}",
        "register": "nothing"
        if isinstance(registrar, NoRegistrar)
        else f"{'all of it or an error' if spec.must_register else 'all of it'}, in {most}",
    }

"""The CUDA runtime that is loaded goes before any other, and nothing else of the address space is taken for it."""

from __future__ import annotations

from pathlib import Path

from hicachectl.runtime.memory.libcudart import LIBCUDART, libcudart_candidates, loaded_libcudart

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 12 /opt/torch lib/libcudart.so.13
7f01-7f02 r--p 00001000 08:01 12 /opt/torch lib/libcudart.so.13
7f02-7f03 r--p 00000000 08:01 13 /opt/libcudart.d/libother.so.1
7f03-7f04 rw-p 00000000 00:00 0
7f04-7f05 rw-p 00000000 00:00 0 [libcudart]
7f05-7f06 r-xp 00000000 08:01 14 /usr/lib/libcudart-2f.so.12
"""


def test_the_loaded_ones_go_first_each_once(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    loaded = ("/opt/torch lib/libcudart.so.13", "/usr/lib/libcudart-2f.so.12")
    assert loaded_libcudart(maps) == loaded
    assert libcudart_candidates(maps) == (*loaded, *LIBCUDART)
    assert libcudart_candidates(maps, ("x",)) == (*loaded, "x")


def test_maps_that_cannot_be_read_leave_the_names(tmp_path: Path) -> None:
    assert libcudart_candidates(tmp_path / "none") == LIBCUDART

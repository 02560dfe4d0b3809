"""Numbered JSON lines of a plain, gzip, xz or zstd file, each an object whose fields are read strictly.

Every complaint is a UsageError whose `where` is file:line (of the uncompressed text) and whose text shows both values.
"""

from __future__ import annotations

import difflib
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np

from hicachectl.errors import Unsupported, UsageError
from hicachectl.runtime.replay.request import Blocks

__all__ = ["MAX_LINE_BYTES", "Fields", "open_bytes", "parse_line", "read_lines"]

MAX_LINE_BYTES = 256 << 20  # the longest line of the recorded session traces is 4 MB; past this it is not such a file
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"))
_ID_LIMIT = 1 << 63
_NUMBER_LIMIT = 1 << 53  # a larger length or time is a slip, and would not survive as a float
_ONE_A_LINE = "a trace is one JSON object a line; `jq -c .` makes one line of a spread-out object"
_AN_ARRAY = "a trace is one JSON object a line; `jq -c '.[]'` makes a line of each object in an array"
_CUT = "fetch the file again, or leave its last line out: `head -n -1`"


class Fields:
    """One JSON object of a trace file and where it stands; every getter checks what it returns.

    `inside` is the way to a nested object, such as `requests[3]`; "" for the line itself.
    """

    __slots__ = ("inside", "line", "path", "values")

    def __init__(self, values: dict[str, Any], path: Path, line: int, inside: str = "") -> None:
        self.values = values
        self.path = path
        self.line = line
        self.inside = inside

    @property
    def where(self) -> str:
        """Where the object stands, file:line."""
        return f"{self.path}:{self.line}"

    def refuse(self, what: str, hint: str | None = None) -> NoReturn:
        """Raise UsageError at this line."""
        raise UsageError(f"{self.inside}: {what}" if self.inside else what, where=self.where, hint=hint)

    def check_keys(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Raise UsageError for the first unknown key, with the nearest known one, or for the first missing key."""
        for key in self.values:
            if key not in required and key not in optional:
                known = [*required, *optional]
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(known))}"
                self.refuse(f"unknown key {key!r}", hint)
        for key in required:
            if key not in self.values:
                self.refuse(f"key {key!r} is missing", f"needed keys: {', '.join(required)}")

    def count(self, key: str, *, least: int = 0) -> int:
        """Return a whole number in least..2^53."""
        value = self.values[key]
        if type(value) is not int:
            self.refuse(f"{key} is {_show(value)}, not a whole number")
        if value < least:
            self.refuse(f"{key} is {_show(value)}, below {least}")
        if value > _NUMBER_LIMIT:
            self.refuse(f"{key} is {_show(value)}, above 2^53")
        return value

    def seconds(self, key: str, *, unit_s: float = 1.0) -> float:
        """Return a time in seconds, read in units of `unit_s` seconds; 0..2^53."""
        value = self.values[key]
        if type(value) is not int and type(value) is not float:
            self.refuse(f"{key} is {_show(value)}, not a number")
        if not 0 <= value <= _NUMBER_LIMIT:
            self.refuse(f"{key} is {value!s:.40}, not a time of zero or more")
        return float(value) * unit_s if unit_s != 1.0 else float(value)

    def text(self, key: str) -> str:
        """Return a string."""
        value = self.values[key]
        if type(value) is not str:
            self.refuse(f"{key} is {_show(value)}, not a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; `default` where the key is absent."""
        value = self.values.get(key, default)
        if type(value) is not bool:
            self.refuse(f"{key} is {_show(value)}, not true or false")
        return value

    def objects(self, key: str) -> list[Fields]:
        """Return a list of nested objects, each knowing its way."""
        value = self.values[key]
        if type(value) is not list:
            self.refuse(f"{key} is {_show(value)}, not a list")
        for at, item in enumerate(value):
            if type(item) is not dict:
                self.refuse(f"{key}[{at}] is {_show(item)}, not an object")
        way = f"{self.inside}." if self.inside else ""
        return [Fields(item, self.path, self.line, f"{way}{key}[{at}]") for at, item in enumerate(value)]

    def ids(self, key: str, *, n_blocks: int, count_rule: str, repeats: bool = False) -> Blocks:
        """Return block ids as int64.

        Refuses a list whose length is not `n_blocks` (`count_rule` says why that many), ids that are no whole numbers
        or negative, and, unless `repeats`, one id twice.
        """
        value = self.values[key]
        if type(value) is not list:
            self.refuse(f"{key} is {_show(value)}, not a list")
        if len(value) != n_blocks:
            self.refuse(f"{key} has {len(value)} ids, but {count_rule} = {n_blocks}")
        if not value:
            return np.empty(0, dtype=np.int64)
        if set(map(type, value)) != {int}:
            at = next(at for at, item in enumerate(value) if type(item) is not int)
            self.refuse(f"{key}[{at}] is {_show(value[at])}, not a whole number")
        if min(value) < 0 or max(value) >= _ID_LIMIT:
            at = next(at for at, item in enumerate(value) if not 0 <= item < _ID_LIMIT)
            self.refuse(f"{key}[{at}] is {value[at]}, outside 0..2^63-1")
        if not repeats and len(set(value)) != len(value):
            first: dict[int, int] = {}
            for at, item in enumerate(value):
                if first.setdefault(item, at) != at:
                    self.refuse(
                        f"id {item} twice in {key}, at {first[item]} and {at}", "an id names a block and its prefix"
                    )
        return np.array(value, dtype=np.int64)


def read_lines(path: Path) -> Iterator[Fields]:
    """Stream the objects of a trace file, one a line; the compression is told by the first bytes, not by the name.

    Raises UsageError with file:line for what is not one JSON object, for a damaged or cut compressed stream, and for a
    path that cannot be read twice; Unsupported when the library for zstd is missing.
    """
    number = 0
    with _opened(path) as (file, kind):
        while True:
            with _damage(path, number + 1, kind):
                raw = file.readline(MAX_LINE_BYTES)
            if not raw:
                return
            number += 1
            yield parse_line(raw, path, number)


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a trace that is not JSON lines, unpacked. Raises UsageError as `read_lines` does for a path or stream that cannot be read."""
    with _opened(path) as (file, kind), _damage(path, 1, kind):
        yield file


def parse_line(raw: bytes, path: Path, number: int) -> Fields:
    """Read one line as an object. Pure. Raises UsageError (file:line) for what is not one JSON object."""
    return Fields(_parse(raw, path, number), path, number)


def _parse(raw: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{path}:{number}"
    if len(raw) >= MAX_LINE_BYTES:
        raise UsageError(f"the line is longer than {MAX_LINE_BYTES} bytes", where=where, hint=_ONE_A_LINE)
    if not raw.strip():
        raise UsageError("the line is empty", where=where, hint="remove the empty line")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise UsageError("the JSON is nested too deeply", where=where, hint=_ONE_A_LINE) from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        cut = "" if raw.endswith(b"\n") else ", and the file ends inside this line"
        array = raw.lstrip().startswith(b"[")  # spread over lines
        hint = _AN_ARRAY if array else _CUT if cut and number > 1 else _ONE_A_LINE
        raise UsageError(f"not a JSON object: {error}{cut}", where=where, hint=hint) from error
    if type(value) is not dict:
        hint = _AN_ARRAY if type(value) is list else _ONE_A_LINE
        raise UsageError(f"{_show(value)} is not a JSON object", where=where, hint=hint)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return values


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else f"{text[:37]}..."


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    try:
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise UsageError("not a regular file", where=str(path), why="a trace is read more than once",
                             hint="write the trace to a file first")  # fmt: skip
        with path.open("rb") as file:
            head = file.read(8)
        raw = path.open("rb")
    except OSError as error:
        hint = (
            "let this user read it, or run as one who may" if isinstance(error, PermissionError) else "check the path"
        )
        raise UsageError(f"cannot read the trace: {error.strerror}", where=str(path), hint=hint) from error
    with raw:
        kind = next((name for magic, name in _MAGIC if head.startswith(magic)), "plain")
        if kind == "bzip2":
            raise UsageError("a bzip2 file", where=str(path), hint="traces are plain, .gz, .xz or .zst")
        with _unpacked(raw, kind) as file:
            yield file, kind


def _unpacked(raw: BinaryIO, kind: str) -> BinaryIO:
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if kind == "xz":
        return cast(BinaryIO, lzma.open(raw))
    return cast(BinaryIO, io.BufferedReader(_ZstdStream(raw), 1 << 20)) if kind == "zstd" else raw


@contextmanager
def _damage(path: Path, number: int, kind: str) -> Iterator[None]:
    """Turn what the decompressors raise into UsageError at this line."""
    try:
        yield
    except EOFError as error:
        raise UsageError(f"the {kind} stream is cut short", where=f"{path}:{number}", why=str(error),
                         hint="fetch the file again") from error  # fmt: skip
    except (OSError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"the {kind} stream is damaged", where=f"{path}:{number}", why=str(error),
                         hint="fetch the file again") from error  # fmt: skip


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes of one or more zstd frames; a frame that does not end is EOFError, as gzip and xz do it."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise Unsupported("a zstd file, but zstandard is not installed", hint="pip install zstandard") from error
        self._failure = zstandard.ZstdError
        self._maker = zstandard.ZstdDecompressor
        self._raw = raw
        self._frame = self._maker().decompressobj()
        self._inside = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._maker().decompressobj()
                self._inside = False
            packed = packed or self._raw.read(1 << 18)
            if not packed:
                if self._inside:
                    raise EOFError("the last zstd frame has no end")
                return 0
            self._inside = True
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._failure as error:
                raise OSError(str(error)) from error
        n = min(len(buffer), len(self._ready))
        buffer[:n] = self._ready[:n]
        self._ready = self._ready[n:]
        return n

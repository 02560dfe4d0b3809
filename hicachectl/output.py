"""Where a command's words go: format, widths, colour and streams decided once from flags, environment and terminals."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hicachectl.envelope import Envelope, plain
from hicachectl.errors import ExitCode, UsageError
from hicachectl.flags import Format, GlobalFlags
from hicachectl.render.screen import Screen

__all__ = [
    "DEFAULT_WIDTH",
    "Output",
    "Render",
    "is_special",
    "open_output",
    "require_replaceable",
    "terminal_width",
    "yaml_text",
]

DEFAULT_WIDTH = 100

_HEAD_BYTES = 256
_SCHEMA = re.compile(rb"""\A\{?\s*"?schema"?:\s*['"]?hicachectl\.([a-z0-9-]+)/[0-9]""")
"""How a document begins, in JSON and in YAML."""

Render = Callable[[Screen, Any], None]


@dataclass(slots=True)
class Output:
    """The two streams of a command and how to write to them.

    `stdout` takes the result, `stderr` the talk. `interactive` is true when a person sits at stderr and stdin;
    prompts and bars need it.
    """

    format: Format
    width: int
    ascii: bool
    color: bool
    interactive: bool
    progress: str
    stdout: Screen
    stderr: Screen
    file: Path | None = None

    def document(
        self, document: Envelope, render: Callable[[Screen], None], *, rows: str | None, private: bool
    ) -> None:
        """Write one finished document in the asked form to stdout or to the output file; a failed one replaces no file."""
        no_answer = document["status"] == "failed" or document["exit_code"] == ExitCode.NO_RESULT
        keep = self.file is not None and no_answer and _has_text(self.file)
        if keep:
            self.stderr.print(f"kept {self.file} as it was: this result failed or has no answer, so it goes to stdout")
        if self.file is None or keep:
            self._write(self.stdout, document, render, rows)
            return
        import io

        buffer = io.StringIO()
        screen = Screen(buffer, width=DEFAULT_WIDTH, ascii=self.ascii, wide=self.format is Format.WIDE)
        self._write(screen, document, render, rows)
        _replace_file(self.file, buffer.getvalue(), mode=0o600 if private else None)
        self.stderr.print(f"wrote {self.file}" + (" (0600)" if private else ""))

    def save(self, document: Envelope) -> Path | None:
        """Write a document as JSON, mode 0600, to the file of --output-file, and let the screen go to stdout all the same.

        Returns the file, None where no file was asked for. Changes: `file` is None afterwards. Raises UsageError.
        """
        import json

        path, self.file = self.file, None
        if path is not None:
            _replace_file(path, json.dumps(document, indent=2, allow_nan=False) + "\n", mode=0o600)
        return path

    def record(self, value: Any) -> None:
        """Write one JSON object on one line of stdout and flush it: the form of streams."""
        import json

        self.stdout.write(json.dumps(plain(value), ensure_ascii=not self.stdout.is_unicode, allow_nan=False) + "\n")

    def _write(self, screen: Screen, document: Envelope, render: Callable[[Screen], None], rows: str | None) -> None:
        if self.format is Format.JSON:
            import json

            screen.write(json.dumps(document, indent=2, ensure_ascii=not screen.is_unicode, allow_nan=False) + "\n")
        elif self.format is Format.YAML:
            screen.write(yaml_text(document, unicode=screen.is_unicode))
        elif self.format is Format.TSV:
            from hicachectl.render.tsv import tsv_lines

            for line in tsv_lines(document, rows):
                screen.write(line + "\n")
        else:
            render(screen)


def yaml_text(document: Envelope, *, unicode: bool) -> str:
    """Return a document as YAML, by libyaml where PyYAML was built with it: that takes a third of the time. Pure."""
    import yaml

    def text(dumper: Any) -> str:
        return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=unicode, width=4096))

    try:
        return text(getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    except UnicodeEncodeError:  # libyaml takes UTF-8 alone; a file name may be none
        return text(yaml.SafeDumper)


def terminal_width(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Cells of the stream's terminal; where it is none, COLUMNS, else 100."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    if columns > 0:
        return columns
    text = environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else DEFAULT_WIDTH


def open_output(
    flags: GlobalFlags, environ: Mapping[str, str], stdin: TextIO, stdout: TextIO, stderr: TextIO
) -> Output:
    """Decide the form of everything a command prints.

    Interactivity comes from isatty() and CI alone. Colour needs a terminal, no NO_COLOR, a TERM that is not dumb;
    `--color always` overrides. Machine formats never carry colour on stdout.
    """
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    width = terminal_width(stdout, environ)

    def screen(stream: TextIO, *, machine: bool) -> Screen:
        quiet = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb" or in_ci
        color = flags.color == "always" or (flags.color == "auto" and _isatty(stream) and not quiet)
        return Screen(
            stream,
            width=width if stream is stdout else terminal_width(stream, environ),
            color=color and not machine,
            ascii=flags.ascii,
            wide=flags.format is Format.WIDE,
            tty=_isatty(stream),
        )

    out, err = screen(stdout, machine=flags.format.for_machines), screen(stderr, machine=False)
    bars = _isatty(stderr) and not in_ci and environ.get("TERM") != "dumb"
    progress = ("bar" if bars else "plain") if flags.progress == "auto" else flags.progress
    return Output(
        format=flags.format,
        width=width,
        ascii=out.ascii,
        color=out.color,
        interactive=_isatty(stdin) and _isatty(stderr) and not in_ci,
        progress=progress,
        stdout=out,
        stderr=err,
        file=Path(flags.output_file) if flags.output_file else None,
    )


def require_replaceable(path: Path, command: str) -> None:
    """Refuse an output file that is there and is no document of this command, such as the result of another one. Reads its head.

    A file without text may be replaced. Raises UsageError.
    """
    if not _has_text(path):
        return
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise _refused_file(path, f"it cannot be read: {error.strerror}") from error
    found = _SCHEMA.search(head)
    name = None if found is None else found[1].decode()
    own = command.replace(" ", "-")
    if name is None or (name != own and not name.startswith(f"{own}-")):
        raise _refused_file(path, "it is no document of hicachectl" if name is None else f"it is a document of {name}")


def _refused_file(path: Path, why: str) -> UsageError:
    return UsageError(
        "there is a file already", where=str(path), why=f"{why}, and --output-file would replace it",
        hint="name another file, or add --replace", code="HC-OUTPUT",
    )  # fmt: skip


def _has_text(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:  # writing it says what is wrong
        return False


def _isatty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a process's open file, such as /dev/null or /dev/stdout: written to, never replaced. Looks at it."""
    return os.path.exists(path) and not os.path.isdir(path) and (not os.path.isfile(path) or _is_open_file(path))


def _is_open_file(path: Path) -> bool:
    """Whether a path names a descriptor: /dev/stdout, or a link below /proc. To replace it would take it from everybody, or fail."""
    folder = os.path.realpath(path.parent)
    return folder == "/dev" or folder.startswith("/proc/")


def _replace_file(path: Path, text: str, *, mode: int | None) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if is_special(path):
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:  # an open file keeps what it has
                file.write(text)
            return
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666 if mode is None else mode)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # the first error says more
            temporary.unlink()
        raise UsageError(
            f"cannot write: {error.strerror}",
            where=str(path),
            why="--output-file names it",
            hint="name a writable file in an existing folder",
            code="HC-OUTPUT",
        ) from error

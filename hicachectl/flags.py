"""The flags every command takes, anywhere on the line: one table for parsing, help, environment and failure output.

`GlobalFlags` starts from HICACHECTL_* variables, then each flag on the line replaces its value; the innermost wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hicachectl.errors import UsageError

__all__ = ["GLOBAL_FLAGS", "Flag", "Format", "GlobalFlags", "from_environment", "scan"]


class Format(str, Enum):
    """What stdout holds."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    TSV = "tsv"

    @property
    def for_machines(self) -> bool:
        """Whether exactly one document and no colour goes to stdout. Pure."""
        return self in (Format.JSON, Format.YAML, Format.TSV)


@dataclass(frozen=True, slots=True)
class Flag:
    """One global flag: `name` is the field of GlobalFlags, `choices` empty for free text, `metavar` None for a switch."""

    name: str
    spellings: tuple[str, ...]
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable that sets it. Pure."""
        return f"HICACHECTL_{self.name.upper()}"


GLOBAL_FLAGS: tuple[Flag, ...] = (
    Flag("output", ("-o", "--output"), "What stdout holds.", "FORMAT", tuple(f.value for f in Format)),
    Flag("json", ("--json",), "Same as -o json."),
    Flag("output_file", ("--output-file",), "Write the document here instead of stdout.", "PATH"),
    Flag("replace", ("--replace",), "Let --output-file replace a file that is no document of this command."),
    Flag(
        "color",
        ("--color",),
        "Colour; auto looks at the terminal, NO_COLOR and TERM.",
        "WHEN",
        ("auto", "always", "never"),
    ),
    Flag("progress", ("--progress",), "Progress on stderr.", "KIND", ("auto", "bar", "plain", "none")),
    Flag("ascii", ("--ascii",), "Plain ASCII frames."),
    Flag("lang", ("--lang",), "Language of the talk; codes and keys never change.", "LANG", ("en",)),
    Flag(
        "config", ("--config",), "hicache.yaml to use; else ./hicache.yaml, else /etc/hicachectl/hicache.yaml.", "PATH"
    ),
    Flag("root", ("--root",), "Read a recorded host, a folder or an archive, instead of this one.", "DIR|FILE"),
    Flag("schema", ("--schema",), "Document version to print, such as topo/1.", "NAME/N"),
    Flag("verbose", ("-v", "--verbose"), "Log more to stderr; twice for debug."),
    Flag("log_format", ("--log-format",), "Form of the log lines.", "FORM", ("text", "json")),
    Flag("debug", ("--debug",), "Print the traceback of an unexpected error."),
)
_COUNTED = {"verbose"}


@dataclass(slots=True)
class GlobalFlags:
    """The values of the global flags, strings as the user gave them (checked against their choices)."""

    output: str = "table"
    output_file: str | None = None
    replace: bool = False
    color: str = "auto"
    progress: str = "auto"
    ascii: bool = False
    lang: str = "en"
    config: str | None = None
    root: str | None = None
    schema: str | None = None
    verbose: int = 0
    log_format: str = "text"
    debug: bool = False

    def set(self, name: str, value: Any) -> None:
        """Take one flag from the line. Changes this object; `json` is spelt as output=json."""
        if name == "json":
            self.output = "json"
        elif name in _COUNTED:
            self.verbose = max(self.verbose, int(value))
        else:
            setattr(self, name, value)

    @property
    def format(self) -> Format:
        """The output format as an Enum. Pure."""
        return Format(self.output)


def from_environment(environ: Mapping[str, str]) -> GlobalFlags:
    """Start values from HICACHECTL_* variables. Pure.

    Raises UsageError naming the variable when a value is not one of the choices.

    >>> from_environment({"HICACHECTL_OUTPUT": "yaml"}).format
    <Format.YAML: 'yaml'>
    """
    flags = GlobalFlags()
    for flag in GLOBAL_FLAGS:
        text = environ.get(flag.variable, "")
        if not text:
            continue
        if flag.choices and text not in flag.choices:
            raise UsageError(
                f"{text!r} is not one of {', '.join(flag.choices)}",
                where=f"environment {flag.variable}",
                why="the variable sets a global flag",
                hint=f"unset {flag.variable} or give it one of these words",
            )
        if flag.metavar is not None:
            flags.set(flag.name, text)
        elif text.lower() in ("1", "true", "yes", "on"):
            flags.set(flag.name, True)
        elif text.lower() not in ("0", "false", "no", "off"):
            raise UsageError(
                f"{text!r} is neither 1 nor 0",
                where=f"environment {flag.variable}",
                why="the variable sets a switch",
                hint=f"unset {flag.variable} or set it to 1 or 0",
            )
    return flags


def scan(argv: Sequence[str], flags: GlobalFlags) -> None:
    """Read the global flags off a line that may not parse, so that its error still has the asked form. Changes `flags`.

    Unknown words and wrong choices are passed over: the real parser reports them. Stops at `--`.
    """
    spelling = {text: flag for flag in GLOBAL_FLAGS for text in flag.spellings}
    words = iter(argv)
    for word in words:
        if word == "--":
            return
        name, has_value, value = word.partition("=")
        if word.startswith("-o") and not word.startswith("--") and len(word) > 2:
            name, has_value, value = "-o", "=", word[2:]
        flag = spelling.get(name)
        if flag is None:
            continue
        if flag.metavar is None:
            flags.set(flag.name, True)
            continue
        text = value if has_value else next(words, "")
        if text and (not flag.choices or text in flag.choices):
            flags.set(flag.name, text)

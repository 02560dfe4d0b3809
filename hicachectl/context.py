"""What every command receives as `ctx.obj`: its output, its paths, and `emit`, the one way a result leaves it.

    def command(ctx: typer.Context, ...) -> None:
        cli: Context = ctx.obj
        cli.emit(Result("hicachectl.NAME/1", data), render=lambda screen, data: screen.print(...))

`render` gets the object that `Result.data` holds, not the JSON form of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TextIO

from hicachectl import __version__
from hicachectl.envelope import (
    Diagnostic,
    Envelope,
    Origin,
    Result,
    Severity,
    Status,
    envelope,
    exit_code_of,
    status_of,
)
from hicachectl.errors import ExitCode, HicacheError, UsageError
from hicachectl.exits import combine
from hicachectl.flags import GlobalFlags
from hicachectl.held_signals import let_signals_come
from hicachectl.output import Output, Render, open_output, require_replaceable
from hicachectl.progress import Progress

if TYPE_CHECKING:
    from hicachectl.config import Effective
    from hicachectl.tuning.host.root import HostRoot
    from hicachectl.tuning.session import Session

OpenSession = Callable[["Context", "Path | None", bool, bool], "Session"]
"""Makes a `Session` on this context's host: with a state folder (None: the default one), with --online or without, and
with the knobs and recipes that planning needs or without."""

_OWN_FORCE = frozenset({"tune recipe new"})
"""Commands whose output file is no document, with a --force of their own."""

__all__ = ["Context", "OpenSession", "origin_of", "read_origin"]


@dataclass(slots=True)
class Context:
    """One run of the program: flags, environment and streams in; documents and an exit code out.

    `argv` is the line as it was typed, for what tells a person to type it again. `flags` may come from a line that did not parse; `parsed_flags` are what the parser took and replace them when the
    command starts. `subject` is the plan or run id that log lines carry; a command may set it, and `go_on`, which says how work that a signal stops is taken up again. `open_session` replaces the
    host that tune changes, for tests.
    """

    flags: GlobalFlags
    environ: Mapping[str, str]
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    parsed_flags: GlobalFlags = field(default_factory=GlobalFlags)
    command: str = ""
    argv: tuple[str, ...] = ()
    subject: str | None = None
    go_on: str | None = None
    causes: list[ExitCode] = field(default_factory=list)
    emitted: bool = False
    open_session: OpenSession | None = None
    _output: Output | None = None
    _host_root: HostRoot | None = None
    _effective: Effective | None = None

    @property
    def output(self) -> Output:
        """Format, widths, colour and streams; decided at first use, when all flags are known."""
        if self._output is None:
            self._output = open_output(self.flags, self.environ, self.stdin, self.stdout, self.stderr)
        return self._output

    @property
    def config_path(self) -> Path | None:
        """The file of --config, or None: then ./hicache.yaml, then /etc/hicachectl/hicache.yaml. Pure."""
        return Path(self.flags.config) if self.flags.config else None

    @property
    def output_file(self) -> Path | None:
        """The file of --output-file, None for stdout. Pure."""
        return Path(self.flags.output_file) if self.flags.output_file else None

    @property
    def root(self) -> Path | None:
        """The folder or archive of --root that stands for the host, or None for the live host. Pure."""
        return Path(self.flags.root) if self.flags.root else None

    def host_root(self) -> HostRoot:
        """The host that read commands look at: live, or what --root names, opened once. Raises UsageError."""
        if self._host_root is None and self.root is None:
            from hicachectl.tuning.host.root import HostRoot

            self._host_root = HostRoot()
        elif self._host_root is None:
            from hicachectl.tuning.host.snapshot import open_root

            self._host_root = open_root(self.root)
        return self._host_root

    def tune_session(self, state_dir: Path | None = None, *, online: bool = False, plans: bool = True) -> Session:
        """The host as `tune` works on it; `open_session` stands in for the live one where it is given.

        `plans` False loads no recipe: what looks back or undoes must work also where one is broken. Raises UsageError, and
        ProfileError for a recipe.
        """
        if self.open_session is not None:
            return self.open_session(self, state_dir, online, plans)
        from hicachectl.tune_session import live_session

        return live_session(self, state_dir, online, plans)

    def again(self, *more: str) -> str:
        """The line that was typed, with more words behind it, quoted for a shell. Pure."""
        import shlex

        return shlex.join(["hicachectl", *self.argv, *more])

    @property
    def debug(self) -> bool:
        """Whether unexpected errors print their traceback. Pure."""
        return self.flags.debug

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of all that was emitted so far. Pure."""
        return combine(self.causes)

    def origin(self) -> Origin:
        """Say which host and moment this command's document speaks of: the live host, a folder, or an archive."""
        if self.root is None or self.root.is_dir():
            return read_origin(self.root)
        return origin_of(self.host_root())

    def emit(self, result: Result, render: Render, *, origin: Origin | None = None) -> ExitCode:
        """Print a result once, in the asked form, and remember its exit code.

        `render(screen, result.data)` draws the screen; it is called for table and wide only. Findings follow it.
        `origin` replaces the one of --root where the command knows better, such as when its facts were collected.
        Returns the exit code of this result. Raises UsageError for a document version that is not there.
        """
        self.require_version(result.schema)
        if self.emitted:
            raise RuntimeError(f"{result.schema}: a command emits one document; streams use output.record")
        let_signals_come()
        code = exit_code_of(result)
        document = self._with_settings(envelope(result, origin or self.origin()))
        self.output.document(
            document, lambda screen: self._screen(screen, result, render), rows=result.rows, private=result.private
        )
        self.emitted = True
        self.causes.append(code)
        return code

    def progress(self, title: str, *, total: int | None = None, unit: str = "") -> Progress:
        """Start reporting progress on stderr; use as a context manager."""
        return Progress(self.output.stderr, self.output.progress, title, total=total, unit=unit)

    def note_no_costs(self, result: Result) -> None:
        """Say at once that the file a benchmark wrote is of no use to --costs, where that is not told by the exit code."""
        from hicachectl.bench_data import no_costs_note

        if self.output.file is None or result.exit_code is not ExitCode.OK:
            return
        said = no_costs_note(result.data, self.output.file)
        if said is not None:
            self.note(said)

    def note(self, text: str) -> None:
        """Say something to the person on stderr."""
        self.output.stderr.print(text, "dim")

    def took(self, effective: Effective) -> Effective:
        """Remember the configuration a command works with, and say at once which settings file had a part in it."""
        from hicachectl.settings_file import settings_words

        self._effective = effective
        words = settings_words(effective)
        if words is not None:
            self.note(words)
        return effective

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before a change. Returns when the answer is yes or `yes` was given on the line.

        Raises UsageError when nobody can be asked, or the answer is no.
        """
        if yes:
            return
        if not self.output.interactive:
            raise UsageError(
                f"{question} needs an answer",
                why="there is no terminal to ask on, and --yes was not given",
                hint="add --yes to go on without a question, or --dry-run to see what would happen",
                code="HC-NEED-YES",
            )
        self.output.stderr.write(f"{question} [y/N] ")
        if self.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError(
                "not confirmed", why="the answer was not yes", hint="nothing was changed", code="HC-NEED-YES"
            )

    def start(self, command: str, *, changes_host: bool) -> None:
        """Begin a command whose line has parsed: final flags, log, and what --root allows. Raises UsageError."""
        from hicachectl.log import configure

        self.flags, self.command, self._output = self.parsed_flags, command, None
        if self.flags.root == "":
            raise UsageError(
                "--root is empty",
                where="--root",
                why="it names a recorded host, and an empty name would mean this one",
                hint="leave --root out for this host, or give it a folder or an archive",
            )
        if self.flags.output_file and not self.flags.replace and command not in _OWN_FORCE:
            require_replaceable(Path(self.flags.output_file), command)
        if self.root is not None:
            if changes_host:
                self.refuse_root(f"hicachectl {command}", does="changes this host")
            if not _is_there(self.root):
                raise UsageError(
                    "there is no such folder or archive", where=str(self.root), why="--root or HICACHECTL_ROOT names it"
                )
        configure(
            self.output.stderr,
            verbose=self.flags.verbose,
            as_json=self.flags.log_format == "json",
            subject=lambda: self.subject,
        )

    def refuse_root(self, command: str, *, does: str = "measures this host") -> None:
        """Stop a command that works on the host itself when --root (or HICACHECTL_ROOT) is set. Raises UsageError."""
        if self.flags.root is not None:
            raise UsageError(
                f"{command} {does} and cannot work on a snapshot",
                where=self.flags.root,
                why="--root or HICACHECTL_ROOT stands for another host",
                hint=f"run {command} without --root, on the host itself",
                code="HC-ROOT-REFUSED",
            )

    def fail(self, error: HicacheError, *, trace: str | None = None) -> ExitCode:
        """Print an error: three lines on stderr, and a failed document on stdout when nothing was printed yet."""
        from hicachectl.envelope import diagnostic_of
        from hicachectl.render.error import error_lines
        from hicachectl.render.screen import OutputFailed

        if self._effective is not None:
            from hicachectl.settings_file import name_settings

            name_settings(error, self._effective)
        for text, style in error_lines(error, trace=trace):
            self.output.stderr.print(text, style)
        if isinstance(error, OutputFailed) and self.output.file is None:
            self.emitted = True  # stdout took a part of the document, or nothing: no second one may follow
        if not self.emitted and self.output.format.for_machines:
            failed = Result(
                schema=f"hicachectl.{self.command.replace(' ', '-') or 'cli'}/1",
                data=None,
                diagnostics=(diagnostic_of(error, source=trace),),
                exit_code=error.exit_code,
            )
            if error.code == "HC-OUTPUT" and error.where == str(self.output.file):
                self.output.file = None
            root = self.root if self.root is None or os.path.isdir(self.root) else None
            origin = read_origin(root)  # an archive may be what failed: only its name is known then
            if self.root is not None and root is None:
                origin = Origin(
                    origin.tool_version, None, None, origin.collected_at, str(self.root),
                    {"host": "not read", "boot_id": "not read"},
                )  # fmt: skip
            document = self._with_settings(envelope(failed, origin))
            self.output.document(document, lambda screen: None, rows=None, private=False)
            self.emitted = True
        self.causes.append(error.exit_code)
        return error.exit_code

    def _with_settings(self, document: Envelope) -> Envelope:
        """Return the document with the settings file that had a part in it, where one had."""
        if self._effective is None:
            return document
        from hicachectl.settings_file import settings_document

        found = settings_document(self._effective)
        return document if found is None else {**document, "settings_file": found}

    def _screen(self, screen: object, result: Result, render: Render) -> None:
        from hicachectl.render.findings import print_findings
        from hicachectl.render.screen import Screen

        assert isinstance(screen, Screen)
        if self._effective is not None:
            from hicachectl.settings_file import settings_words

            words = settings_words(self._effective)
            if words is not None:
                screen.paragraph("", words)
        render(screen, result.data)
        findings = [self._with_root(d) for d in result.diagnostics if d.severity is not Severity.FAILURE]
        if not result.draws_findings:
            print_findings(screen, findings)
        if status_of(result.diagnostics) is Status.FAILED:
            screen.print(
                "FAILED: " + "; ".join(d.message for d in result.diagnostics if d.severity is Severity.FAILURE), "error"
            )

    def _with_root(self, finding: Diagnostic) -> Diagnostic:
        """A command to run next, with the recording's name as it was given: the document says SNAPSHOT, as names move."""
        if finding.hint is None or not self.flags.root:
            return finding
        return replace(finding, hint=finding.hint.replace("--root SNAPSHOT", f"--root {quote(self.flags.root)}"))

    def require_version(self, schema: str) -> None:
        """Check --schema against the document of a command, also before long work. Raises UsageError for another one."""
        wanted = self.flags.schema
        if wanted is None or f"hicachectl.{wanted.removeprefix('hicachectl.')}" == schema:
            return
        raise UsageError(
            f"{wanted} is not a document of this command",
            where="--schema",
            why=f"it prints {schema.removeprefix('hicachectl.')}",
            hint="leave --schema out, or see: hicachectl schema",
        )


def read_origin(root: Path | None, *, now: datetime | None = None) -> Origin:
    """Say which host and moment a document speaks of. Reads two small files under `root` (None: the live host).

    A snapshot's name is its folder's; what cannot be read is None with a reason.
    """
    base = root or Path("/")
    unknown: dict[str, str] = {}

    def read(name: str, relative: str) -> str | None:
        try:
            return (base / relative).read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            unknown[name] = f"{base / relative}: {error.strerror}"
            return None

    host = os.uname().nodename if root is None else read("host", "proc/sys/kernel/hostname")
    boot_id = read("boot_id", "proc/sys/kernel/random/boot_id")
    moment = now or datetime.now(timezone.utc)
    return Origin(
        tool_version=__version__,
        host=host,
        boot_id=boot_id,
        collected_at=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        source="live" if root is None else root.resolve().name,
        unknown=unknown,
    )


def _is_there(root: Path) -> bool:
    """Whether --root names something. Raises UsageError where that may not be looked at, or no file can have the name."""
    try:
        return root.exists()
    except OSError as error:
        name = str(root)
        raise UsageError(
            "cannot read it",
            where=name if len(name) <= 200 else f"{name[:200]}...",
            why=f"{error.strerror}; --root or HICACHECTL_ROOT names it",
            hint="name a readable folder or archive",
        ) from error


def origin_of(root: HostRoot, *, now: datetime | None = None) -> Origin:
    """Say which host and moment the facts of a root speak of. Reads two small files of it.

    A snapshot's moment is the one it was recorded at, where it says so.
    """
    hostname, boot_id = root.text("/proc/sys/kernel/hostname"), root.text("/proc/sys/kernel/random/boot_id")
    facts = {"host": hostname, "boot_id": boot_id}
    return Origin(
        tool_version=__version__,
        host=hostname.value,
        boot_id=boot_id.value,
        collected_at=root.collected_at or (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source="live" if root.name is None else root.name,
        unknown={name: f"{fact.source}: {fact.reason}" for name, fact in facts.items() if fact.value is None},
    )

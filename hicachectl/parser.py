"""The command tree: typer groups and commands, loaded when called, each with the global flags and our help pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import typer
import typer.core
import typer.main

from hicachectl.context import Context
from hicachectl.errors import ExitCode, UsageError
from hicachectl.flags import GLOBAL_FLAGS, Flag
from hicachectl.pages import page_of
from hicachectl.registry import COMMANDS, PLANNED, Entry
from hicachectl.render.help import command_help, option_rows, root_help

__all__ = ["build_root", "load_command"]

_PREFIX = "hicachectl_global_"


def build_root(commands: Sequence[Entry] = COMMANDS) -> Any:
    """Make the root group of `commands`. Imports none of them."""
    root = _Root(name="hicachectl", params=_global_params(), rich_markup_mode=None)
    root.entries = {entry.name: entry for entry in commands}
    root.context_settings = {"help_option_names": ["-h", "--help"]}
    return root


def load_command(entry: Entry) -> Any:
    """Import a command and make its parser. Raises UsageError when its module is not installed."""
    name = entry.name
    if find_spec(entry.module) is None:
        raise UsageError(
            f"the command {name} is not in this build", why=f"{entry.module} is not installed", hint="hicachectl --help"
        )
    module = import_module(entry.module)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name)(module.command)
    app._add_completion = False
    command = typer.main.get_command(app)
    command.name = name
    _prepare(command, name)
    return command


class _Root(typer.core.TyperGroup):
    """Lists commands from the registry and imports one only when it is called."""

    entries: dict[str, Entry]
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        if entry is None:
            if ctx.resilient_parsing or cmd_name.startswith("-"):
                return None
            near = get_close_matches(cmd_name, self.list_commands(ctx), n=1)
            if cmd_name in PLANNED:
                raise UsageError(
                    f"the command {cmd_name!r} is planned and not there yet",
                    why=PLANNED[cmd_name],
                    hint="hicachectl --help lists the commands there are",
                )
            raise UsageError(
                f"there is no command {cmd_name!r}",
                why=f"the nearest name is {near[0]!r}" if near else None,
                hint=f"hicachectl {near[0]} --help" if near else "hicachectl --help lists the commands",
            )
        if self._listing:
            return typer.core.TyperCommand(name=entry.name, help=entry.summary, rich_markup_mode=None)
        return load_command(entry)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False

    def get_help(self, ctx: Any) -> str:
        cli: Context = ctx.find_root().obj
        _show(cli, root_help(option_rows(ctx, self.get_params(ctx)), list(self.entries.values()), cli.output.width))


def _prepare(command: Any, path: str) -> None:
    """Give a command and its subcommands the global flags, our help, and the checks before a call."""
    taken = {text for param in command.params for text in [*param.opts, *param.secondary_opts]}
    command.params.extend(p for p in _global_params() if not taken.intersection(p.opts))
    command.rich_markup_mode = None
    command.no_args_is_help = False  # a missing word is an error with nothing on stdout
    command.get_help = lambda ctx: _help(command, path, ctx)
    children = getattr(command, "commands", None)
    if children is not None:
        for name, child in children.items():
            _prepare(child, f"{path} {name}")
        if command.invoke_without_command:
            command.invoke = _checked_group(command.invoke, path)
    else:
        command.invoke = _checked(command.invoke, path)


def _checked(invoke: Callable[[Any], Any], path: str) -> Callable[[Any], Any]:
    def run(ctx: Any) -> Any:
        cli: Context = ctx.find_root().obj
        cli.start(path, changes_host=page_of(path).changes_host is not None)
        returned = invoke(ctx)
        if isinstance(returned, ExitCode):
            cli.causes.append(returned)
        return returned

    return run


def _checked_group(invoke: Callable[[Any], Any], path: str) -> Callable[[Any], Any]:
    """A group that is a command itself when no word follows it."""
    alone = _checked(invoke, path)

    def run(ctx: Any) -> Any:
        return invoke(ctx) if ctx.args or ctx._protected_args else alone(ctx)

    return run


def _show(cli: Context, text: str) -> NoReturn:
    """Write a help page through our own screen (pipes, encodings) instead of the parser's, and end the command."""
    cli.output.stdout.print(text)
    raise typer.Exit


def _help(command: Any, path: str, ctx: Any) -> NoReturn:
    cli: Context = ctx.find_root().obj
    common = [p for p in command.params if str(p.name).startswith(_PREFIX)]
    own = [p for p in command.get_params(ctx) if p not in common]
    children = getattr(command, "commands", {})
    page = command_help(
        path,
        usage=f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}",
        text=inspect.cleandoc(command.help or ""),
        arguments=option_rows(ctx, [p for p in own if p.param_type_name == "argument"]),
        options=option_rows(ctx, [p for p in own if p.param_type_name == "option"]),
        common=option_rows(ctx, common),
        commands=[(name, child.get_short_help_str(200)) for name, child in children.items() if not child.hidden],
        width=cli.output.width,
    )
    _show(cli, page)


def _global_params() -> list[Any]:
    """Make the parser's options of the global flags; their values land in `Context.parsed_flags`."""

    def holder() -> None: ...

    signature: list[inspect.Parameter] = []
    for flag in GLOBAL_FLAGS:
        kind: Any = str
        extra: dict[str, Any] = {}
        default: Any = None
        if flag.choices:
            kind = _words(flag)
        elif flag.name == "verbose":
            kind, default, extra = int, 0, {"count": True}
        elif flag.metavar is None:
            kind, default = bool, False
        option = typer.Option(
            default,
            *flag.spellings,
            help=flag.help,
            show_default=False,
            metavar=None if flag.choices else flag.metavar,
            **extra,
        )
        parameter = inspect.Parameter(
            _PREFIX + flag.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind
        )
        signature.append(parameter)
    holder.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    holder.__annotations__ = {p.name: p.annotation for p in signature}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(holder)
    params = list(typer.main.get_command(app).params)
    for param in params:
        param.expose_value = False
        param.callback = _take
    return params


def _words(flag: Flag) -> Any:
    make: Any = Enum  # called as a function; the checker takes a call of Enum for a class statement
    return make(flag.name, {word: word for word in flag.choices})


def _take(ctx: Any, param: Any, value: Any) -> Any:
    source = ctx.get_parameter_source(param.name)
    if getattr(source, "name", "") == "COMMANDLINE" and not ctx.resilient_parsing:
        cli: Context = ctx.find_root().obj
        cli.parsed_flags.set(str(param.name).removeprefix(_PREFIX), value.value if isinstance(value, Enum) else value)
    return value

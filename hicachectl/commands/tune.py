"""`hicachectl tune`: host settings planned, applied, verified and rolled back. Alone it guides through all of it.

This file holds the guide, `plan` and `show`; `tune_apply.py` what writes, `tune_runs.py` what looks back, `tune_unit.py` what
keeps a plan over boots.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicachectl.commands import tune_apply, tune_runs, tune_size, tune_unit
from hicachectl.context import Context, origin_of
from hicachectl.envelope import Diagnostic, Result, Severity, envelope
from hicachectl.errors import ExitCode, UsageError
from hicachectl.flags import Format
from hicachectl.interrupt import asked_to_stop
from hicachectl.profiles import profile_names

if TYPE_CHECKING:
    from hicachectl.tune_choices import Permissions
    from hicachectl.tuning.choices import Choices
    from hicachectl.tuning.plan import Plan
    from hicachectl.tuning.session import Session

_HUGE, _NUMA, _PCIE, _ALLOW = "Huge pages", "NUMA and limits", "PCI Express", "What the plan may do"
Text = str | None


app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


def _set(flag: str, help_text: str, panel: str, metavar: str) -> Any:
    return typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


ProfileOption = Annotated[
    Text,
    typer.Option("--profile", help="Profile above kv-host, which lies below every one.", metavar="NAME|FILE", show_default=False, autocompletion=profile_names),
]  # fmt: skip
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only this setting, or this one at one place. Can be given several times.", metavar="KNOB[@ADDRESS]", show_default=False),
]  # fmt: skip
BoundOption = Annotated[
    bool,
    typer.Option("--bound", help="Pools and ranks are bound to nodes: NUMA balancing may go off.", rich_help_panel=_ALLOW),
]  # fmt: skip
InGuestOption = Annotated[
    bool,
    typer.Option("--in-guest", help="Registers may be written in a virtual machine: its devices are passed through to it.", rich_help_panel=_ALLOW),
]  # fmt: skip
PlanFile = Annotated[
    Path, typer.Argument(readable=False, metavar="PLAN", help="A saved plan: tune plan --output-file PLAN.")
]


@app.callback()
def tune(
    ctx: typer.Context,
    profile: ProfileOption = None,
    only: OnlyOption = None,
    bound: BoundOption = False,
    in_guest: InGuestOption = False,
    yes: tune_apply.YesOption = False,
    dry_run: tune_apply.DryRunOption = False,
    state_dir: tune_apply.StateDirOption = None,
) -> None:
    """Tune this host for a KV cache, step by step: look, plan, show the differences, ask, apply, verify.

    Every value is recorded before it is changed, so what was done can be undone, after a crash and by another person too.
    Nothing outlives a reboot without the files of: hicachectl tune unit.
    """
    from hicachectl.tune_choices import Permissions

    cli: Context = ctx.obj
    if ctx.invoked_subcommand is not None:
        given = [f for f, v in (("--profile", profile), ("--only", only), ("--bound", bound), ("--in-guest", in_guest), ("--yes", yes), ("--dry-run", dry_run), ("--state-dir", state_dir)) if v]  # fmt: skip
        if given:
            raise UsageError(
                f"{given[0]} stands before {ctx.invoked_subcommand}",
                where="hicachectl tune",
                why="there it belongs to the guide and would be ignored",
                hint=f"hicachectl tune {ctx.invoked_subcommand} {given[0]}",
            )
        return
    _guide(cli, {}, profile, tuple(only or ()), Permissions(bound, in_guest=in_guest), yes, dry_run, state_dir)


@app.command()
def plan(
    ctx: typer.Context,
    profile: ProfileOption = None,
    only: OnlyOption = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 when something would change.")] = False,
    thp_enabled: Annotated[Text, _set("--thp-enabled", "always, madvise or never.", _HUGE, "WORD")] = None,
    thp_defrag: Annotated[Text, _set("--thp-defrag", "auto, auto:SIZE, always, defer, defer+madvise, madvise or never.", _HUGE, "WORD")] = None,
    thp_shmem: Annotated[Text, _set("--thp-shmem", "advise and others, for memfd and shared memory.", _HUGE, "WORD")] = None,
    thp_sizes: Annotated[Text, _set("--thp-sizes", "Single sizes, such as 64kB=madvise.", _HUGE, "SIZE=WORD,...")] = None,
    khugepaged_defrag: Annotated[Text, _set("--khugepaged-defrag", "1 lets khugepaged compact.", _HUGE, "0|1")] = None,
    khugepaged_pages_to_scan: Annotated[Text, _set("--khugepaged-pages-to-scan", "Pages of one round.", _HUGE, "N")] = None,
    tmpfs_huge: Annotated[Text, _set("--tmpfs-huge", "huge= of /dev/shm.", _HUGE, "WORD")] = None,
    numa_balancing: Annotated[Text, _set("--numa-balancing", "0 is written with --bound only.", _NUMA, "N")] = None,
    numa_zone_reclaim: Annotated[Text, _set("--numa-zone-reclaim", "report, or none.", _NUMA, "WORD")] = None,
    numa_interleave_weight: Annotated[Text, _set("--numa-interleave-weight", "offer, auto, memory or 0=3,1=1.", _NUMA, "WEIGHTS")] = None,
    limits_memlock: Annotated[Text, _set("--limits-memlock", "report, or the bytes of all pools.", _NUMA, "SIZE")] = None,
    limits_hugetlb: Annotated[Text, _set("--limits-hugetlb", "report, or the bytes of all pools.", _NUMA, "SIZE")] = None,
    limits_cgroup: Annotated[Text, _set("--limits-cgroup", "report, or the bytes of all pools.", _NUMA, "SIZE")] = None,
    pcie_ido_request: Annotated[Text, _set("--pcie-ido-request", "on or off: ID-based ordering of requests.", _PCIE, "WORD")] = None,
    pcie_ido_completion: Annotated[Text, _set("--pcie-ido-completion", "on or off, for completions.", _PCIE, "WORD")] = None,
    pcie_relaxed_ordering: Annotated[Text, _set("--pcie-relaxed-ordering", "on or off.", _PCIE, "WORD")] = None,
    pcie_read_request: Annotated[Text, _set("--pcie-read-request", "Bytes, 128 to 4096.", _PCIE, "N")] = None,
    acs_p2p_redirect: Annotated[Text, _set("--acs-p2p-redirect", "off loses isolation.", _PCIE, "WORD")] = None,
    recipes: Annotated[Text, _set("--recipes", "Further recipes by id, such as a vendor's.", _PCIE, "ID,...")] = None,
    bound: BoundOption = False,
    online: Annotated[bool, typer.Option("--online", help="Packet order may change while a process holds an accelerator.", rich_help_panel=_ALLOW)] = False,
    allow_isolation_loss: Annotated[bool, typer.Option("--allow-isolation-loss", help="ACS redirect may be cleared: devices are no longer isolated.", rich_help_panel=_ALLOW)] = False,
    persist_files: Annotated[bool, typer.Option("--persist-files", help="Recipes of module parameters may write their file.", rich_help_panel=_ALLOW)] = False,
    in_guest: InGuestOption = False,
) -> None:  # fmt: skip
    """Show what would change on this host, from what to what, why, and what would undo it; write nothing.

    Wanted values come from flags, HICACHECTL_TUNE_*, hicache.yaml, the profile, and the profile kv-host below it; none in
    any of them leaves a setting alone. --output-file saves the plan (0600), which is what apply takes; the screen is
    printed all the same. Works without root: what could not be read is a skip with its reason.
    """
    from hicachectl.tune_choices import Permissions

    flags = {
        "thp.enabled": thp_enabled, "thp.defrag": thp_defrag, "thp.shmem": thp_shmem, "thp.sizes": thp_sizes,
        "khugepaged.defrag": khugepaged_defrag, "khugepaged.pages_to_scan": khugepaged_pages_to_scan, "tmpfs.huge": tmpfs_huge,
        "numa.balancing": numa_balancing, "numa.zone_reclaim": numa_zone_reclaim, "numa.interleave_weight": numa_interleave_weight,
        "limits.memlock": limits_memlock, "limits.hugetlb": limits_hugetlb, "limits.cgroup": limits_cgroup,
        "pcie.ido_request": pcie_ido_request, "pcie.ido_completion": pcie_ido_completion,
        "pcie.relaxed_ordering": pcie_relaxed_ordering, "pcie.read_request": pcie_read_request,
        "acs.p2p_redirect": acs_p2p_redirect, "recipes": recipes,
    }  # fmt: skip
    cli: Context = ctx.obj
    permissions = Permissions(bound, allow_isolation_loss, online, persist_files, in_guest)
    session = cli.tune_session(online=online)
    made = _made(session, _choices(cli, session, flags, profile, tuple(only or ()), permissions))
    cli.subject = made.id
    result = _plan_result(session, made, exit_code=exit_code)
    origin = origin_of(session.root)
    saved = cli.output.save(envelope(result, origin)) if cli.output.file is not None else None

    if saved is not None and cli.output.format in (Format.YAML, Format.TSV):
        cli.note(f"{saved} is JSON, the one form that tune apply reads")

    def render(screen: Any, _: object) -> None:
        _draw_plan(cli, screen, session, made, saved=None if saved is None else str(saved))

    cli.emit(result, render=render, origin=origin)


@app.command()
def show(
    ctx: typer.Context,
    file: PlanFile,
    as_shell: Annotated[
        bool, typer.Option("--as-shell", help="Print the commands that do the same, and those that undo it.")
    ] = False,
) -> None:
    """Show a saved plan, also one that no longer fits this host: a banner says what moved.

    --as-shell is for change tickets: exact commands and their undo. They check, record and read back nothing.
    """
    from hicachectl.render.tune_plan import PlanShown, draw_plan
    from hicachectl.render.tune_shell import draw_shell
    from hicachectl.tune_data import explained, show_data
    from hicachectl.tuning.plan_file import read_plan
    from hicachectl.tuning.shell_lines import shell_steps

    cli: Context = ctx.obj
    made = read_plan(file)
    cli.subject = made.id
    session = cli.tune_session()
    moved = _moved(session, made)
    steps = () if moved else shell_steps(made)  # commands for another host are not even printed
    data = show_data(made, moved, steps)

    def render(screen: Any, _: object) -> None:
        if as_shell:
            draw_shell(screen, made, steps, moved)
        else:
            draw_plan(
                screen,
                PlanShown(made, moved=moved, saved=str(file), as_root=os.geteuid() == 0, recorded=cli.root is not None),
            )

    cli.emit(Result("hicachectl.tune-show/1", data, facts=explained(data), rows="/steps"), render=render)


app.command("apply")(tune_apply.apply)
app.command("verify")(tune_runs.verify)
app.command("status")(tune_runs.status)
app.command("history")(tune_runs.history)
app.command("rollback")(tune_apply.rollback)
app.command("unit")(tune_unit.unit)
app.command("size")(tune_size.size)
if find_spec("hicachectl.commands.tune_recipe") is not None:
    app.add_typer(import_module("hicachectl.commands.tune_recipe").app, name="recipe")


def _guide(
    cli: Context, flags: dict[str, Text], profile: Text, only: tuple[str, ...], permissions: Any, yes: bool, dry_run: bool, state_dir: Path | None,
) -> None:  # fmt: skip
    """Plan, show, ask, apply, verify: one document at the end, and what happens on the way."""
    from hicachectl.render.tune_apply import draw_applied, draw_summary
    from hicachectl.render.tune_verify import draw_verify
    from hicachectl.tune_data import apply_data, explained, plan_data, verify_data
    from hicachectl.tuning.apply import ApplyOptions

    if not (cli.output.interactive or yes or dry_run):
        raise UsageError(
            "tune alone asks before it changes anything",
            why="there is no terminal to ask on, and --yes was not given",
            hint="hicachectl tune plan, or hicachectl tune --yes",
            code="HC-NEED-YES",
        )
    session = cli.tune_session(state_dir)
    made = _made(session, _choices(cli, session, flags, profile, only, permissions))
    cli.subject = made.id
    talk = cli.output.stdout if tune_apply.streams(cli) else cli.output.stderr
    _draw_plan(cli, talk, session, made, saved=None, guided=True)
    data: dict[str, Any] = {
        "plan": plan_data(made), "apply": None, "apply_reason": "nothing has to be changed", "verify": None,
        "verify_reason": "nothing was applied",
    }  # fmt: skip
    error = report = checked = None
    codes = [ExitCode.OK]
    if dry_run:
        data["apply_reason"] = "--dry-run"
    elif made.changes:
        cli.confirm(f"Make these {len(made.changes)} changes on {made.about.host or 'this host'}?", yes=yes)
        with asked_to_stop() as stop:
            report = tune_apply.run_apply(cli, session, made, ApplyOptions(), talk, stop)
        data |= {"apply": apply_data(report), "apply_reason": None}
        draw_summary(talk, report)
        error = report.error()
        if error is None:
            checked = session.verify(report.run_id) if report.run_id else session.verify_plan(made)
            codes.append(tune_runs.code_of(checked))
            draw_verify(talk, checked, int(codes[-1]))
            data |= {"verify": verify_data(checked), "verify_reason": None}
    result = Result("hicachectl.tune/1", data, facts=explained(data), exit_code=max(codes))

    def render(screen: Any, _: object) -> None:
        """What was told on the way, once more in a file; on stdout it stands already."""
        if screen is talk:
            return
        _draw_plan(cli, screen, session, made, saved=None, guided=True)
        if report is not None:
            draw_applied(screen, report)
        if checked is not None:
            draw_verify(screen, checked, int(codes[-1]))

    cli.emit(result if error is None else result.with_error(error), render=render)
    if error is not None:
        raise error


def _choices(
    cli: Context,
    session: Session,
    flags: dict[str, Text],
    profile: Text,
    only: tuple[str, ...],
    permissions: Permissions,
) -> Choices:
    from hicachectl.config import BASE_PROFILE, load_config
    from hicachectl.tune_choices import choices_of
    from hicachectl.tune_session import recipe_problems, recipe_words

    given = {f"tune.{name}": value for name, value in flags.items()}
    effective = load_config(given, env=cli.environ, path=cli.config_path, profile=profile, base_profile=BASE_PROFILE)
    try:
        return choices_of(effective, permissions, only, recipe_words(session))
    except UsageError as error:
        broken = recipe_problems(session.root)
        if broken and "no such recipe" in error.what:
            raise broken[0] from error
        raise


def _made(session: Session, choices: Choices) -> Plan:
    """Plan, and refuse a word of --only that names nothing."""
    from hicachectl.tune_only import check_only, without_only
    from hicachectl.tune_session import recipe_words, settled

    choices = settled(session, choices)
    made = session.plan(choices)
    knobs = {ident: knob for ident, (knob, _) in recipe_words(session).items()}
    check_only(made, [knob.name for knob in session.knobs], knobs, lambda: session.plan(without_only(choices)))
    return made


def _plan_result(session: Session, made: Plan, *, exit_code: bool) -> Result:
    from hicachectl.tune_data import explained, plan_data

    data = plan_data(made)
    code = ExitCode.DIFFERS if exit_code and made.changes else ExitCode.OK
    unread = _nothing_read(session, made)
    if unread and exit_code:
        code = ExitCode.UNSUPPORTED
    found = (*unread, *_left_out(session))
    return Result(
        "hicachectl.tune-plan/1", data, diagnostics=found, facts=explained(data), exit_code=code, rows="/items", private=True
    )  # fmt: skip


def _left_out(session: Session) -> tuple[Diagnostic, ...]:
    """Say which vendor recipes are wrong: they are in no plan."""
    from hicachectl.tune_session import recipe_problems

    return tuple(
        Diagnostic(p.code, Severity.WARN, f"a recipe is left out of this plan: {p.what}", subject=p.where, hint=p.hint)
        for p in recipe_problems(session.root)
    )


def _nothing_read(session: Session, made: Plan) -> tuple[Diagnostic, ...]:
    """Say so where nothing of the host could be read: a plan without changes then says nothing about it."""
    from hicachectl.tuning.findings import judge
    from hicachectl.tuning.host.read import read_machine
    from hicachectl.tuning.item import ItemKind

    if any(item.kind in (ItemKind.CHANGE, ItemKind.SAME) for item in made.items):
        return ()
    found = [f for f in judge(read_machine(session.root)) if f.code == "HC-NOTHING-READ"]
    return tuple(Diagnostic(f.code, Severity(f.severity), f.message, subject=f.subject, hint=f.hint) for f in found)


def _draw_plan(
    cli: Context, screen: Any, session: Session, made: Plan, *, saved: str | None, guided: bool = False
) -> None:
    from hicachectl.render.topo_screen import Seen
    from hicachectl.render.tune_plan import PlanShown, draw_plan
    from hicachectl.topo_data import seen

    look = Seen(None, made.about.made_at) if cli.root is None else seen(session.root, origin_of(session.root))
    draw_plan(screen, PlanShown(made, look, saved=saved, as_root=os.geteuid() == 0, line=cli.again(), guided=guided))


def _moved(session: Session, made: Plan) -> tuple[str, ...]:
    """What no longer fits: the fingerprint, and each change that this host would not be planned now."""
    from hicachectl.tuning.fingerprint import moved
    from hicachectl.tuning.plan import differences

    fresh = session.plan(made.choices)
    changed = moved(made.fingerprint, fresh.fingerprint)
    if made.about.host != fresh.about.host:
        changed = (f"host {made.about.host or 'unknown'} -> {fresh.about.host or 'unknown'}", *changed)
    others = (
        f"{d.id}: the plan says {d.was}, this host now {d.now or 'has no such item'}" for d in differences(made, fresh)
    )
    return (*changed, *others)

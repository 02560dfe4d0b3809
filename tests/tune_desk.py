"""A made-up host and an operator at it who types `hicachectl tune ...`. Writes go to that host only."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
from cli_runner import QUIET, Ran, Terminal
from tuned_host import KNOBS, TunedHost, accelerators, ido_knob, make_host

from hicachectl.app import run_cli
from hicachectl.context import Context
from hicachectl.envelope import unexplained_nulls
from hicachectl.schemas_io import document_schema
from hicachectl.tuning.choices import Choice, Choices
from hicachectl.tuning.host.model import Machine
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.item import Item
from hicachectl.tuning.session import Session
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.state import StateDir
from hicachectl.tuning.target import Target

__all__ = ["BOOT_ID", "THP", "Desk", "IdoWords", "change_of", "document"]

THP = "/sys/kernel/mm/transparent_hugepage"

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class IdoWords:
    """The made-up knob of both IDO bits under the name and with the words of the real one."""

    name = "pcie.ido-request"

    def targets(self, machine: Machine, choices: Choices) -> tuple[Target, ...]:
        return ido_knob().targets(machine, self._in_bits(choices))

    def items(self, sight: Sight, choices: Choices) -> tuple[Item, ...]:
        found = ido_knob().items(sight, self._in_bits(choices))
        return tuple(
            replace(i, knob=self.name, id=f"{self.name}@{i.subject}", uplink="U0", probe="d2h-concurrent")
            for i in found
        )

    def _in_bits(self, choices: Choices) -> Choices:
        on = choices.wanted.get(self.name)
        wanted = {} if on is None else {"pcie.ido": Choice("0x0300" if on.value == "on" else "0", on.reason, on.origin)}
        return replace(choices, wanted=wanted)


class Desk:
    """A made-up host and an operator at it: `call` runs a command line there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host: TunedHost = make_host(folder, knobs=(*KNOBS[:4], IdoWords()))
        self.host.root.at(f"{THP}/enabled").write_text("[always] madvise never\n")
        self.host.root.at(f"{THP}/defrag").write_text("always defer defer+madvise [madvise] never\n")
        self.plan = folder / "plan.json"
        self.in_use: str | None = None

    def session(self, cli: Context, state_dir: Path | None, online: bool, plans: bool) -> Session:
        refuse = lambda item: None if online or not item.ordering else self.in_use  # noqa: E731
        made = replace(self.host.session, refuse=refuse, knobs=self.host.session.knobs if plans else ())
        if not cli.flags.root:
            return made if state_dir is None else replace(made, state=StateDir(state_dir))
        return replace(made, root=cli.host_root())

    def call(
        self, *argv: str, tty: bool = False, stdin: str = "", stdout: io.StringIO | None = None, **env: str
    ) -> Ran:
        make = Terminal if tty else io.StringIO
        out, err = stdout or make(), make()
        words = [str(self.plan) if word == "PLAN" else word for word in argv]
        config = ["--config", str(self.folder / "hicache.yaml")]
        environ = {**QUIET, "COLUMNS": "200", **env}
        code = run_cli([*words, *config], environ, make(stdin), out, err, open_session=self.session)
        return Ran(code, out.getvalue(), err.getvalue())

    def make_plan(self, *flags: str) -> Any:
        ran = self.call("tune", "plan", "--output-file", "PLAN", *flags)
        assert ran.code == 0, ran.err
        return json.loads(self.plan.read_text())

    def addresses(self) -> list[str]:
        return accelerators(read_machine(self.host.root))


def document(ran: Ran, name: str) -> Any:
    found = ran.json
    jsonschema.validate(found, document_schema(name)[1])
    assert (found["schema"], found["exit_code"]) == (f"hicachectl.{name}/1", ran.code)
    assert unexplained_nulls(found["data"] or {}) == []
    return found["data"]


def change_of(desk: Desk) -> str:
    plan = json.loads(desk.plan.read_text())["data"]
    ids = [i["subject"] for i in plan["items"] if i["kind"] == "change" and i["knob"] == "pcie.ido-request"]
    return str(ids[-1])

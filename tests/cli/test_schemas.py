"""Every command's document fits the schema that `hicachectl schema` prints, when it works and when it fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_runner import Ran, call
from hosts.builder import write_shape
from hosts.shapes import SHAPES
from small_traces import conversations, write_trace
from tune_values import save_plan

from hicachectl.envelope import unexplained_nulls
from hicachectl.parser import load_command
from hicachectl.registry import COMMANDS
from hicachectl.schemas_io import document_schema, schema_names

_SIZE = ["tune", "size", "--geometry", "tiny-4k", "--state-dir", "state", "--trace"]
_MODEL = ["bench", "model", "--geometry", "tiny-4k", "--device", "cpu"]

# one line a command that shows most of its document; a new command needs one here
LINES: dict[str, list[list[str]]] = {
    "topo": [
        ["topo"],
        *(
            ["topo", "--root", shape]
            for shape in ("8n8x-4up16", "cpuset-container", "no-vendor", "empty", "garbage", "sparse-ids")
        ),
    ],
    "topo matrix": [
        ["topo", "matrix"],
        ["topo", "matrix", "--root", "8n8x-4up16"],
        ["topo", "matrix", "--root", "no-vendor"],
    ],
    "topo snapshot": [["topo", "snapshot", "x.tar.zst"], ["topo", "snapshot", "y.tar.zst", "--root", "8n8x-4up16"]],
    "topo diff": [
        ["topo", "diff", "2n8x"],
        ["topo", "diff", "8n8x-4up16", "config64"],
        ["topo", "diff", "empty", "empty"],
    ],
    "tune plan": [
        ["tune", "plan"],
        *(["tune", "plan", "--root", shape] for shape in ("8n8x-4up16", "2n4x-plx", "no-vendor", "empty", "garbage")),
    ],
    "tune show": [["tune", "show", "plan.json"], ["tune", "show", "plan.json", "--root", "8n8x-4up16"]],
    "tune verify": [["tune", "verify", "plan.json", "--root", "8n8x-4up16"]],
    "tune status": [["tune", "status", "--state-dir", "state"]],
    "tune history": [["tune", "history", "--state-dir", "state"]],
    "tune unit": [["tune", "unit", "plan.json"], ["tune", "unit", "plan.json", "--engine", "sglang.service"]],
    "tune size": [
        [*_SIZE, "trace.jsonl", "--policies"],
        [*_SIZE, "chats.jsonl", "--device-slots", "4"],
        [*_SIZE, "trace.jsonl", "--steps", "none"],
        [*_SIZE, "chats.jsonl", "--l2", "exclusive", "--l3", "infinite", "--concurrency", "2"],
    ],
    # these write: their documents are checked on made-up hosts in test_tune*.py
    "tune": [],
    "tune apply": [],
    "tune rollback": [],
    "tune recipe list": [
        ["tune", "recipe", "list"],
        *(["tune", "recipe", "list", "--root", shape] for shape in ("8n8x-4up16", "no-vendor", "empty", "garbage")),
    ],
    "tune recipe show": [
        ["tune", "recipe", "show", "pcie-ido-request"],
        ["tune", "recipe", "show", "acs.p2p-redirect", "--root", "8n8x-4up16"],
    ],
    "tune recipe validate": [["tune", "recipe", "validate", "./broken.yaml"]],
    "tune recipe new": [["tune", "recipe", "new", "vendor-order"]],
    "tune recipe checklist": [["tune", "recipe", "checklist", "hygon"], ["tune", "recipe", "checklist", "kunlun"]],
    "run": [["run", "--limit", "4"]],
    "bench link": [
        ["bench", "link", "--seconds", "0.02", "--rounds", "1"],
        ["bench", "link", "--device", "cpu", "--node", "all", "--time-budget", "0"],
    ],
    "bench pool": [
        ["bench", "pool", "--size", "8MiB", "--rounds", "2", "--threads", "1", "--device", "cpu"],
        [
            "bench",
            "pool",
            "--size",
            "4MiB",
            "--rounds",
            "1",
            "--threads",
            "1",
            "--device",
            "cpu",
            "--kind",
            "tmpfs",
            "--tmpfs",
            "missing",
        ],
        ["bench", "pool", "--size", "4MiB", "--device", "cpu", "--time-budget", "0"],
    ],
    "bench copy": [
        [
            "bench",
            "copy",
            "--device",
            "cpu",
            "--geometry",
            "tiny-4k",
            "--pages",
            "4",
            "--rounds",
            "2",
            "--layout",
            "page_first,layer_first",
        ],
        ["bench", "copy", "--device", "cpu", "--pages", "2", "--rounds", "1", "--backend", "uva"],
        ["bench", "copy", "--device", "cpu", "--time-budget", "0"],
    ],
    "bench store": [
        [
            "bench",
            "store",
            "--geometry",
            "tiny-4k",
            "--size",
            "8KiB",
            "--batch",
            "1,2",
            "--threads",
            "1",
            "--rounds",
            "2",
        ],
        ["bench", "store", "--geometry", "tiny-4k", "--size", "256KiB", "--path", "new", "--no-fsync", "--rounds", "1"],
        ["bench", "store", "--geometry", "tiny-4k", "--size", "256KiB", "--time-budget", "0"],
    ],
    "bench model": [
        [*_MODEL, "--rounds", "2", "--lengths", "512,1024,2048"],
        [*_MODEL, "--rounds", "2", "--lengths", "512,1024", "--path", "none", "--prefill", "configured"],
        [*_MODEL, "--rounds", "2", "--lengths", "512,1024", "--prefill-file", "prefill.csv"],
        [*_MODEL, "--time-budget", "0"],
    ],
    "trace curve": [
        ["trace", "curve", "trace.jsonl"],
        ["trace", "curve", "trace.jsonl", "--definition", "D2", "--count", "warm-half", "--geometry", "tiny-4k"],
        ["trace", "curve", "trace.jsonl", "--definition", "D3", "--policy", "opt"],
        ["trace", "curve", "trace.jsonl", "--policy", "fifo", "--capacities", "1,5"],
    ],
    "trace info": [["trace", "info", "trace.jsonl"]],
    "trace convert": [["trace", "convert", "trace.jsonl", "out.jsonl.gz"]],
    "trace synth": [["trace", "synth", "agent", "out.jsonl", "--requests", "20"]],
    "config show": [["config", "show"], ["config", "show", "--origin", "--profile", "cpu-demo"]],
    "config path": [["config", "path"]],
    "profile list": [["profile", "list"]],
    "profile show": [["profile", "show", "cpu-demo"], ["profile", "show", "nvidia-h200"]],
    "profile validate": [["profile", "validate", "cpu-demo"], ["profile", "validate", "./broken.yaml"]],
    "schema": [["schema"], ["schema", "run"], ["schema", "config", "show"]],
    "explain": [["explain"], ["explain", "HC-BUG"], ["explain", "exit-codes"]],
    "completion": [["completion", "bash"], ["completion", "fish"]],
    "version": [["version"]],
}


def leaves() -> Iterator[str]:
    def walk(command: Any, path: str) -> Iterator[str]:
        children = getattr(command, "commands", None)
        if children is None or command.invoke_without_command:
            yield path
        if children is not None:
            for name, child in children.items():
                yield from walk(child, f"{path} {name}")

    for entry in COMMANDS:
        if find_spec(entry.module) is not None:
            yield from walk(load_command(entry), entry.name)


PATHS = sorted(leaves())
CALLS = [(path, line) for path in PATHS for line in LINES.get(path, [])]


def validate(ran: Ran) -> Any:
    document = ran.json
    _, schema = document_schema(document["schema"])
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.yaml").write_text("name: broken\nrevisoin: 1\n")
    (tmp_path / "prefill.csv").write_text("tokens,seconds\n1000,0.04\n4000,0.13\n16000,0.6\n32000,1.5\n")
    save_plan(tmp_path / "plan.json")
    write_trace(tmp_path / "trace.jsonl", conversations(6, 4, 2))
    write_trace(tmp_path / "chats.jsonl", conversations(20, 4, 2))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up hosts that the lines above name, in one folder."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in {word for lines in LINES.values() for line in lines for word in line} & set(SHAPES):
        write_shape(name, folder / name)
    return folder


@pytest.mark.parametrize("path", PATHS)
def test_every_command_has_a_schema_and_a_line_here(path: str) -> None:
    assert path in LINES
    assert path.replace(" ", "-") in {name.name for name in schema_names()}


@pytest.mark.parametrize(("path", "line"), CALLS, ids=[" ".join(line) for _, line in CALLS])
def test_a_document_fits_its_schema_and_every_null_has_a_reason(path: str, line: list[str], hosts: Path) -> None:
    ran = call(*(str(hosts / word) if word in SHAPES else word for word in line), "-o", "json")
    document = validate(ran)
    assert document["schema"] == f"hicachectl.{path.replace(' ', '-')}/1"
    assert document["exit_code"] == ran.code
    assert document["data"] is not None
    assert unexplained_nulls(document["data"]) == []


@pytest.mark.parametrize("path", PATHS)
def test_a_failed_command_prints_a_document_of_the_same_name(path: str) -> None:
    ran = call(
        *path.split(),
        "-o",
        "json",
        "--root",
        "missing",
        *(["x"] if path.endswith((" show", " validate")) and path != "config show" else []),
        *(["x"] if path in {"tune apply", "tune unit"} else []),
        *(["a-b"] if path == "tune recipe new" else []),
        *(["hygon"] if path == "tune recipe checklist" else []),
        *(["bash"] if path == "completion" else []),
        *(["x"] if path in {"trace curve", "trace info"} else []),
        *(["agent", "x"] if path in {"trace convert", "trace synth"} else []),
        *(["x.tar.zst"] if path in {"topo snapshot", "topo diff"} else []),
    )
    document = validate(ran)
    assert (document["schema"], document["status"], document["exit_code"]) == (
        f"hicachectl.{path.replace(' ', '-')}/1",
        "failed",
        2,
    )


@pytest.mark.parametrize("name", schema_names(), ids=str)
def test_every_schema_is_a_valid_schema_and_refuses_an_empty_document(name: Any) -> None:
    _, schema = document_schema(str(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid({})
    assert schema["properties"]["schema"]["const"] == f"hicachectl.{name}"


def test_the_schema_refuses_what_the_envelope_may_not_be() -> None:
    _, schema = document_schema("version")
    good = call("version", "-o", "json").json
    checker = jsonschema.Draft202012Validator(schema)
    assert checker.is_valid(good)
    finding = {"code": "HC-IDO-OFF", "severity": "note", "subject": None, "message": "m", "hint": None, "source": None}
    for change in (
        {"status": "fine"},
        {"exit_code": 12},
        {"collected_at": "2026-11-29 14:02"},
        {"schema": "hicachectl.version/2"},
        {"data": None},
        {"diagnostics": [finding]},
        {"status": "failed"},
        {"status": "findings", "diagnostics": [{**finding, "code": "ido off"}]},
    ):
        assert not checker.is_valid({**copy.deepcopy(good), **change}), change
    assert checker.is_valid({**good, "status": "findings", "diagnostics": [finding]})
    assert checker.is_valid({**good, "new_field": 1})


def test_schema_prints_the_bare_schema_and_names_the_nearest_document() -> None:
    printed = json.loads(call("schema", "version").out)
    assert printed == document_schema("version/1")[1]
    assert call("schema", "hicachectl.version/1").out == call("schema", "version").out
    wrong = call("schema", "verison")
    assert wrong.code == 2
    assert "version" in wrong.err
    assert call("schema", "version/9").code == 2


def test_schema_without_a_name_lists_all_documents() -> None:
    assert call("schema").out.split() == [str(name) for name in schema_names()]

"""`tune recipe`: list, show, validate, new and checklist, by the words of the command line; nothing of it changes a host."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_runner import QUIET
from recipe_looks import describe, root_of

from hicachectl.app import run_cli
from hicachectl.envelope import unexplained_nulls
from hicachectl.profiles import recipe_names
from hicachectl.registry import Entry
from hicachectl.schemas_io import document_schema
from hicachectl.tuning.checklists import CHECKLISTS
from hicachectl.tuning.recipe_fields import blanks
from hicachectl.tuning.recipe_load import parse_recipe
from hicachectl.tuning.recipe_template import TEMPLATE_METHODS, recipe_template
from hicachectl.tuning.target import Method
from hicachectl.yaml_marks import parse_marked

COMMANDS = (Entry("tune", "Change host settings.", "Set up", package="fakes"),)


def call(*argv: str, **environ: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run_cli(
        ("tune", "recipe", *argv), {**QUIET, "COLUMNS": "100", **environ}, io.StringIO(), out, err, commands=COMMANDS
    )
    return code, out.getvalue(), err.getvalue()


def document(*argv: str) -> Any:
    code, out, _ = call(*argv, "-o", "json")
    found = json.loads(out)
    jsonschema.validate(found, document_schema(f"tune recipe {argv[0]}")[1])
    assert found["exit_code"] == code
    assert unexplained_nulls(found["data"]) == []
    return found


@pytest.fixture
def host(tmp_path: Path) -> str:
    return str(root_of("8n8x-4up16", tmp_path).path)


# -- list and show ----------------------------------------------------------------------------------------------------


def test_list_says_of_each_recipe_whether_it_holds_here(host: str) -> None:
    found = {r["id"]: r for r in document("list", "--root", host)["data"]["recipes"]}
    assert tuple(found) == recipe_names()
    assert (found["pcie-ido-request"]["n_places"], found["pcie-ido-request"]["mode"]) == (8, "offer")
    assert (found["rc-ordering-policy"]["n_places"], found["rc-ordering-policy"]["mode"]) == (4, "report")
    assert found["amd-lclk-dpm"]["n_places"] == 0
    assert (found["intel-ddio-ways"]["n_places"], found["nvidia-ro"]["n_places"]) == (0, 0)
    assert found["amd-lclk-dpm"]["reason"] == "the CPU is HygonGenuine, the recipe is for AuthenticAMD"


@pytest.mark.parametrize("width", ["80", "100"])
def test_list_fits_the_screen_and_names_every_recipe(host: str, width: str) -> None:
    code, out, _ = call("list", "--root", host, COLUMNS=width)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[1 : 1 + len(recipe_names())]] == list(recipe_names())
    assert all(len(line) <= int(width) for line in lines)


@pytest.mark.parametrize("name", recipe_names())
def test_show_says_what_is_written_and_never_more_than_80_columns(host: str, name: str) -> None:
    found = document("show", name, "--root", host)["data"]
    parts = {part["name"]: part["value"] for part in found["parts"]}
    assert {"knob", "applies to", "reached by", "writes", "risk"} <= set(parts)
    assert ("report" in parts) == (found["mode"] == "report") == parts["writes"].startswith("nothing")
    code, out, _ = call("show", name, "--root", host, COLUMNS="80")
    assert code == 0
    words = " ".join(out.split())
    for value in (*parts.values(), *found["sources"]):
        assert value in words or len(max(value.split(), key=len)) > 60
    assert all(len(line) <= 80 for line in out.splitlines())


def test_show_tells_the_register_the_bits_and_the_places(host: str) -> None:
    found = document("show", "pcie.read-request", "--root", host)["data"]
    parts = {part["name"]: part["value"] for part in found["parts"]}
    assert parts["reached by"] == "pci-config per-function: capability 0x10 + 0x08, 16 bits"
    assert parts["writes"] == "0x5000 into the bits 0x7000, no other; bits 0x8000 are always written as 0"
    assert found["words"]["4096"] == "0x5000"
    assert [place["uplink"] for place in found["places"]] == ["U0", "U0", "U1", "U1", "U2", "U2", "U3", "U3"]


def test_show_names_the_nearest_recipe(host: str) -> None:
    code, out, err = call("show", "pcie-ido-reqest", "--root", host)
    assert (code, out) == (2, "")
    assert "pcie-ido-request" in err


def test_show_takes_a_file(tmp_path: Path, host: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(filled("vendor-order", Method.PCI_CONFIG))
    found = document("show", str(path), "--root", host)["data"]
    assert (found["id"], found["path"]) == ("vendor-order", str(path))


def test_a_vendors_recipe_of_the_host_is_listed_and_one_that_others_may_write_ends_with_2(tmp_path: Path) -> None:
    folder = tmp_path / "etc/hicachectl/recipes.d"
    folder.mkdir(parents=True)
    path = folder / "a.yaml"
    path.write_text(filled("vendor-order", Method.PCI_CONFIG))
    path.chmod(0o666)
    code, _, err = call("list", "--root", str(tmp_path))
    assert code == 2
    assert "HC-PROFILE" in err
    assert "is not trusted" in err


# -- validate ---------------------------------------------------------------------------------------------------------


def test_validate_lists_every_problem_with_its_line(tmp_path: Path) -> None:
    good, wrong = tmp_path / "good.yaml", tmp_path / "wrong.yaml"
    text = filled("vendor-order", Method.PCI_CONFIG)
    good.write_text(text)
    wrong.write_text(
        text.replace("quiesce: required", "quiesce: now")
        .replace("title:", "titel:")
        .replace("vendor-order", "vendor-other")
    )
    found = document("validate", str(good), str(wrong), str(tmp_path / "missing.yaml"))
    assert found["exit_code"] == 2
    assert [r["ok"] for r in found["data"]["recipes"]] == [True, False, False]
    lines = wrong.read_text().splitlines()
    subjects = [d["subject"] for d in found["diagnostics"]]
    assert f"{wrong}:{lines.index(next(x for x in lines if x.startswith('titel:'))) + 1}" in subjects
    assert f"{wrong}:{lines.index(next(x for x in lines if 'quiesce' in x)) + 1}" in subjects
    assert str(tmp_path / "missing.yaml") in subjects
    code, out, _ = call("validate", str(good))
    assert (code, out.splitlines()[0]) == (0, f"ok     {good}  vendor-order")
    assert f"sudo install -D -o root -g root -m 0644 {good} -t /etc/hicachectl/recipes.d" in out
    assert "sudo hicachectl tune plan --recipes vendor-order" in out


def test_validate_tells_of_an_id_that_is_taken(tmp_path: Path) -> None:
    first, second, shipped = (tmp_path / f"{name}.yaml" for name in ("a", "b", "c"))
    first.write_text(filled("vendor-order", Method.MSR))
    second.write_text(filled("vendor-order", Method.MSR))
    shipped.write_text(filled("vendor-order", Method.MSR).replace("id: vendor-order", "id: pcie-ido-request"))
    found = document("validate", str(first), str(second), str(shipped))
    assert [r["ok"] for r in found["data"]["recipes"]] == [True, False, False]
    assert [d["subject"] for d in found["diagnostics"]] == [str(second), str(shipped)]


# -- new --------------------------------------------------------------------------------------------------------------

FILLED = {
    "bits of the wanted value": "0x0100", "bits of the other value": "0x0000", "bits that are ours": "0x0100",
    "the value of one of the words, hex": "0x0100", "text of the wanted value": '"1"', "text of the other value": '"0"',
    "the text of one of the words": '"1"', "vendor id": "1d94", "device id": '"14??"', "accelerator, rdma-nic": "bridge",
    "endpoint, root-port": "root-port", "per-function or": "per-root-port", "bytes from the start": "0x0180", "number of the MSR": "0xc8b",
    "per-cpu or": "per-socket", "SMN address": "0x13b10118", "distance of each": "[0x0, 0x100000]", "absolute path": "/sys/kernel/x",
    "module>": "vendor", "parameter>": "order", "name of the option": "write ordering", "why it is only": "a menu", "what an operator": "set it",
    "what it lets": "orders writes", "vendor-confidential,": "vendor-confidential", "hygon, amd": "hygon", "family, a number": "24",
    "models, a number": '"4-7"', "low, medium": "high", "document, revision": "manual 3.1, page 7", "date, such": "2026-11-29",
}  # fmt: skip


def filled(recipe_id: str, method: Method) -> str:
    """A template with every blank filled in."""

    def fill(blank: re.Match[str]) -> str:
        (value,) = [value for start, value in FILLED.items() if blank[1].startswith(start) or f"{blank[1]}>" == start]
        return value

    return re.sub(r'"<([^<>"]+)>"', fill, recipe_template(recipe_id, method))


@pytest.mark.parametrize("method", TEMPLATE_METHODS)
def test_a_template_is_refused_blank_by_blank_and_is_a_recipe_once_they_are_filled(
    method: Method, tmp_path: Path
) -> None:
    code, out, _ = call("new", "vendor-order", "--method", method.value)
    assert code == 0
    assert out == recipe_template("vendor-order", method)
    recipe, problems = parse_recipe(out.encode(), "a.yaml")
    assert recipe is None
    n_blanks = len(re.findall(r'"<[^<>]+>"', out))
    assert len(problems) == n_blanks
    for problem in problems:
        line = int((problem.where or "").rpartition(":")[2])
        assert problem.what.removesuffix(" is a blank") in out.splitlines()[line - 1]
    recipe, problems = parse_recipe(filled("vendor-order", method).encode(), "a.yaml")
    assert problems == []
    assert recipe is not None
    assert (recipe.id, recipe.reach.method) == ("vendor-order", method)


def test_each_blank_that_is_left_is_refused_by_itself() -> None:
    text = recipe_template("vendor-order", Method.SMN_DEBUGFS)
    all_filled = filled("vendor-order", Method.SMN_DEBUGFS).splitlines()
    for number, line in enumerate(text.splitlines()):
        if '"<' in line:
            one_left = "\n".join([*all_filled[:number], line, *all_filled[number + 1 :]])
            recipe, problems = parse_recipe(one_left.encode(), "a.yaml")
            assert recipe is None
            assert {problem.where for problem in problems} == {f"a.yaml:{number + 1}"}


def test_new_writes_a_file_when_asked_and_counts_its_blanks(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    code, out, err = call("new", "vendor-order", "--output-file", str(path))
    assert (code, out) == (0, "")
    assert str(path) in err
    assert path.read_text() == recipe_template("vendor-order", Method.PCI_CONFIG)
    data = document("new", "vendor-order")["data"]
    assert data["n_blanks"] == len(blanks(parse_marked(data["text"], "a")))


@pytest.mark.parametrize("name", ["Vendor", "vendor", "thp-enabled", "limits-x", "vendor order", "pcie-ido-request"])
def test_new_refuses_an_id_that_cannot_be_or_is_taken(name: str) -> None:
    code, out, err = call("new", name)
    assert (code, out) == (2, "")
    assert "tune recipe new vendor-" in err


# -- checklist --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["hygon", "kunlun"])
def test_the_checklist_asks_everything_and_says_why_and_what_next(vendor: str) -> None:
    data = document("checklist", vendor)["data"]
    assert [q["topic"] for q in data["questions"]] == [q.topic for q in CHECKLISTS[vendor].questions]
    code, out, _ = call("checklist", vendor, COLUMNS="80")
    words = " ".join(out.split())
    assert code == 0
    for question in data["questions"]:
        assert question["ask"] in words
        assert question["why"] in words
    commands = [line for line in data["then"] if line.startswith(("hicachectl", "sudo"))]
    assert commands
    assert all(len(line) <= 80 or line.strip() in data["then"] for line in out.splitlines())


def test_hygon_is_asked_for_document_processors_access_addresses_fields_and_persistence() -> None:
    topics = {question.topic for question in CHECKLISTS["hygon"].questions}
    assert topics >= {
        "document", "processors", "access", "addresses", "fields", "neighbours", "when", "interaction", "firmware option", "persistence",
        "sample", "errata",
    }  # fmt: skip
    assert {question.topic for question in CHECKLISTS["kunlun"].questions} >= {
        "id",
        "implemented",
        "requester",
        "two dies",
    }


def test_no_vendor_is_an_error_that_names_both() -> None:
    code, out, err = call("checklist", "nvidia")
    assert (code, out) == (2, "")
    assert "hygon" in err
    assert "kunlun" in err
    code, out, err = call("checklist")
    assert (code, out) == (2, "")
    assert "lists for hygon and kunlun" in err


# -- what the first look of an operator found -----------------------------------------------------------------------------


def test_a_template_never_replaces_what_was_filled_in_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("my work\n")
    code, _, err = call("new", "vendor-order", "--output-file", str(path))
    assert (code, path.read_text(), "--force" in err) == (2, "my work\n", True)
    assert call("new", "vendor-order", "--output-file", str(path), "--force")[0] == 0
    assert path.read_text().startswith("# Fill in")


@pytest.mark.parametrize(
    ("method", "old", "new", "says"),
    [
        (Method.MSR, "vendor: hygon", "vendor: hygone", "did you mean 'hygon'?"),
        (Method.SMN_DEBUGFS, "offset: 0x13b10118", "offset: 13b10044", "hex begins with 0x"),
        (Method.SMN_DEBUGFS, "offset: 0x13b10118", "offset: 0x13b10043", "not aligned"),
        (Method.SMN_DEBUGFS, "[0x0, 0x100000]", "[0x0, 0x100002]", "not a multiple of 4"),
        (Method.SMN_DEBUGFS, 'family: 24', "family: any", "family must not be any"),
        (Method.MSR, "checked: 2026-11-29", "checked: 2026-13-41", "not a date"),
        (Method.MSR, "checked: 2026-11-29", "checked: 9999-01-01", "and today is"),
    ],
)  # fmt: skip
def test_validate_refuses_what_an_operator_slips_in(
    method: Method, old: str, new: str, says: str, tmp_path: Path
) -> None:
    text = filled("vendor-order", method)
    assert text.count(old) == 1
    path = tmp_path / "a.yaml"
    path.write_text(text.replace(old, new))
    found = document("validate", str(path))
    assert found["exit_code"] == 2
    (problem,) = found["diagnostics"]
    assert says in f"{problem['message']} {problem['hint']}"


def test_a_value_outside_the_mask_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    text = filled("vendor-order", Method.PCI_CONFIG)
    path.write_text(text.replace("  value: 0x0100", "  value: 0x0300"))
    assert len(document("validate", str(path))["diagnostics"]) == 1


def test_an_unknown_recipe_is_answered_with_those_there_are(host: str) -> None:
    _, _, err = call("show", "nope", "--root", host)
    assert "recipes here: acs-p2p-redirect, " in err


def test_list_counts_no_place_that_a_plan_refuses(tmp_path: Path) -> None:
    guest = replace(
        describe("8n8x-4up16"), cpu_flags="fpu lm hypervisor", dmi=("QEMU", "Standard PC"), hostname="guest"
    )
    found = {r["id"]: r for r in document("list", "--root", str(root_of(guest, tmp_path).path))["data"]["recipes"]}
    assert found["pcie-ido-request"]["n_places"] == 0
    assert "virtual machine" in found["pcie-ido-request"]["reason"]
    amd = replace(describe("8n8x-4up16"), cpu_vendor="AuthenticAMD", cpu_family=25, cpu_model=17, hostname="amd")
    root = root_of(amd, tmp_path)
    found = {r["id"]: r for r in document("list", "--root", str(root.path))["data"]["recipes"]}
    assert (found["amd-lclk-dpm"]["n_places"], found["amd-lclk-dpm"]["reason"]) == (0, "/dev/hsmp is not there")
    code, out, _ = call("list", "--root", str(root.path), COLUMNS="160")
    assert (code, "HERE: places of this host" in out, "keep the clock of the I/O hub" in out) == (0, True, True)

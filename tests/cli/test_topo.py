"""`topo` from the command line: everywhere, for everybody, quickly, and the same from a recording."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import QUIET, call, command_line, spawn
from hosts.builder import write_shape
from shared_data import shared_path

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "rich", "psutil", "libnuma", "numa", "zstandard"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = ["hicachectl", *sys.argv[1:]]
from hicachectl.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    for name in ("8n8x-4up16", "config64", "empty"):
        write_shape(name, folder / name)
    return folder


def without_moment(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("source", "collected_at")}


def test_topo_works_where_torch_numpy_and_the_rest_cannot_be_imported(hosts: Path) -> None:
    for line in (
        ["topo"],
        ["topo", "-o", "json"],
        ["topo", "matrix", "--root", str(hosts / "8n8x-4up16")],
        ["topo", "-o", "wide"],
    ):
        ran = subprocess.run(
            [sys.executable, "-c", BLOCK, *line], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr


def test_topo_takes_less_than_0_4_s_of_the_processor() -> None:
    times = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command_line("topo"), env=QUIET, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if times[-1] < 0.4:
            return
    pytest.fail(f"slower each time: {times}")


def test_topo_loads_nothing_heavy() -> None:
    program = "import sys\nsys.argv = ['hicachectl', 'topo']\nfrom hicachectl.__main__ import main\ntry:\n    main()\nfinally:\n    print('LOADED', *[m for m in ('torch', 'numpy', 'rich', 'yaml', 'tarfile', 'zstandard') if m in sys.modules])\n"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=QUIET, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.splitlines()[-1] == "LOADED"


def test_the_header_says_live_or_snapshot_and_its_age(hosts: Path, tmp_path: Path) -> None:
    assert " LIVE 20" in call("topo").out.splitlines()[0]
    os.utime(hosts / "config64", (1_700_000_000, 1_700_000_000))
    head = "\n".join(call("topo", "--root", str(hosts / "config64")).out.splitlines()[:2])
    assert "SNAPSHOT config64, " in head
    assert "y old (2023-11-14)" in head
    path = tmp_path / "new.tar.zst"
    assert call("topo", "snapshot", str(path)).code == 0
    head = "\n".join(call("topo", "--root", str(path)).out.splitlines()[:2])
    assert "SNAPSHOT new, " in head
    assert " s old (20" in head or " min old (20" in head


def test_a_snapshot_replayed_gives_the_json_stored_in_it_but_for_source_and_moment(hosts: Path, tmp_path: Path) -> None:
    import io

    import zstandard

    for root in ([], ["--root", str(hosts / "8n8x-4up16")], ["--root", str(hosts / "empty")]):
        path = tmp_path / "x.tar.zst"
        assert call("topo", "snapshot", str(path), *root, "--force").code == 0
        raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            member = tar.extractfile("topo.json")
            assert member is not None
            stored = json.load(member)
        replayed = call("topo", "--root", str(path), "-o", "json")
        assert replayed.code == 0
        assert without_moment(replayed.json) == without_moment(stored)
        assert replayed.json["collected_at"] == stored["collected_at"]
        assert replayed.json["source"] == "x"


def test_a_snapshot_of_a_snapshot_is_the_same_host(hosts: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.tar.zst", tmp_path / "2.tar.zst"
    call("topo", "snapshot", str(first), "--root", str(hosts / "8n8x-4up16"))
    call("topo", "snapshot", str(second), "--root", str(first))
    ran = call("topo", "diff", str(first), str(second), "--all")
    assert ran.code == 0, ran.out
    assert "nothing differs" in ran.out


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("warn", 3), ("error", 0)])
def test_findings_exit_with_3_only_when_asked_for(fail_on: str | None, code: int, hosts: Path) -> None:
    line = ["topo", "--root", str(hosts / "8n8x-4up16"), "-o", "json"] + (["--fail-on", fail_on] if fail_on else [])
    ran = call(*line)
    assert (ran.code, ran.json["exit_code"], ran.json["status"]) == (code, code, "findings")
    assert {f["severity"] for f in ran.json["diagnostics"]} == {"warn", "note"}


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("warn", 5), ("error", 5)])
@pytest.mark.parametrize("name", ["empty", "garbage"])
def test_a_host_of_which_nothing_was_read_passes_no_gate(
    name: str, fail_on: str | None, code: int, tmp_path: Path
) -> None:
    root = write_shape(name, tmp_path / "h")
    ran = call("topo", "--root", str(root), "-o", "json", *(["--fail-on", fail_on] if fail_on else []))
    assert (ran.code, ran.json["exit_code"], ran.json["status"]) == (code, code, "findings")
    (found,) = [d for d in ran.json["diagnostics"] if d["code"] == "HC-NOTHING-READ"]
    assert (found["severity"], found["subject"], found["hint"]) == (
        "error",
        "host",
        "on that host: hicachectl topo snapshot FILE.tar.zst",
    )
    assert "/sys/devices/system/node" in found["message"]
    assert "/sys/bus/pci/devices" in found["message"]


def no_pci(root: Path) -> None:
    shutil.rmtree(root / "sys/bus/pci")


def no_listing(root: Path) -> None:
    shutil.rmtree(root / "sys/bus/pci/devices")
    (root / "sys/bus/pci/devices").mkdir()


def no_nodes(root: Path) -> None:
    shutil.rmtree(root / "sys/devices/system/node")


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("warn", 5), ("error", 5)])
@pytest.mark.parametrize("hide", [no_pci, no_listing, no_nodes])
def test_a_host_of_which_devices_or_nodes_were_not_read_passes_no_gate(
    hide: Callable[[Path], None], fail_on: str | None, code: int, tmp_path: Path
) -> None:
    root = write_shape("8n8x-4up16", tmp_path / "h")
    hide(root)
    ran = call("topo", "--root", str(root), "-o", "json", *(["--fail-on", fail_on] if fail_on else []))
    assert (ran.code, ran.json["exit_code"]) == (code, code)
    assert [d["severity"] for d in ran.json["diagnostics"] if d["code"] == "HC-PART-READ"] == ["error"]


def test_accelerators_that_were_not_read_are_not_counted_as_none(tmp_path: Path) -> None:
    root = write_shape("8n8x-4up16", tmp_path / "h")
    no_listing(root)
    text = call("topo", "--root", str(root)).out
    why = "not known: empty, but /sys/devices has pci0000:20 (/sys/bus/pci/devices)"
    assert "8 nodes, ? accelerators, ? uplinks" in text
    assert f"ACCEL {why}" in text
    assert next(line for line in text.splitlines() if line.startswith("accelerators")).split()[1:] == ["?"] * 8
    text = call("topo", "matrix", "--root", str(root)).out
    assert "MATRIX  ? accelerators, 8 nodes" in text
    assert f"accelerators {why}" in text
    assert "no accelerator\n" not in text


def test_a_host_without_pci_has_no_accelerator_and_no_finding_about_it(tmp_path: Path) -> None:
    root = write_shape("8n8x-4up16", tmp_path / "h")
    no_listing(root)
    for bus in (root / "sys/devices").glob("pci*"):
        shutil.rmtree(bus)
    ran = call("topo", "--root", str(root), "--fail-on", "error")
    assert ran.code == 0
    assert "ACCEL none" in ran.out


@pytest.mark.shared
def test_display_devices_of_an_unread_vendor_are_not_called_no_accelerator() -> None:
    archive = str(shared_path("topologies/hwloc") / "nvidiagpunumanodes.tar.bz2")
    ran = call("topo", "--root", archive, "--fail-on", "error", "-o", "json")
    (found,) = [d for d in ran.json["diagnostics"] if d["code"] == "HC-KIND-UNKNOWN"]
    assert (ran.code, found["severity"]) == (3, "error")
    assert "vendor of 6 display devices unreadable" in found["message"]
    assert "? accelerators" in call("topo", "--root", archive).out


def test_two_hosts_of_which_nothing_was_read_are_not_called_the_same(hosts: Path, tmp_path: Path) -> None:
    ran = call("topo", "diff", str(hosts / "empty"), str(hosts / "empty"), "-o", "json")
    assert (ran.code, [d["code"] for d in ran.json["diagnostics"]]) == (5, ["HC-NOTHING-READ"])
    assert ran.json["data"]["n_unread_on_both"] > 10
    root = write_shape("8n8x-4up16", tmp_path / "h")
    no_pci(root)
    ran = call("topo", "diff", str(root), str(root), "-o", "json")
    assert (ran.code, [d["code"] for d in ran.json["diagnostics"]]) == (5, ["HC-PART-READ"])
    assert call("topo", "diff", str(root), str(hosts / "8n8x-4up16")).code == 3


def test_the_matrix_of_what_was_not_read_says_why(hosts: Path) -> None:
    data = call("topo", "matrix", "--root", str(hosts / "empty"), "-o", "json").json["data"]
    assert data["accelerators"] == data["nodes"] == []
    assert data["accelerators_reason"] == "no such file (/sys/bus/pci/devices)"
    assert data["nodes_reason"] == "no such file (/sys/devices/system/node)"
    data = call("topo", "matrix", "--root", str(hosts / "8n8x-4up16"), "-o", "json").json["data"]
    assert data["maybe_accelerators"] == []
    assert {"accelerators_reason", "nodes_reason"} & {*data} == set()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["--fail-on", "warn", "snapshot", "x.tar.zst"], "hicachectl topo --fail-on warn, and topo snapshot by itself"),
        (["--wake", "matrix"], "hicachectl topo matrix --wake"),
        (["--wake", "diff", "x"], "hicachectl topo diff wakes nothing"),
    ],
)
def test_an_option_of_topo_before_a_command_below_it_is_not_dropped(line: list[str], hint: str) -> None:
    ran = call("topo", *line, "-o", "json")
    assert (ran.code, ran.json["diagnostics"][0]["hint"]) == (2, hint)


def test_an_empty_root_is_not_this_host_and_an_empty_variable_is_none(hosts: Path) -> None:
    for line in (["topo", "--root", ""], ["topo", "--root="], ["topo", "matrix", "--root", ""], ["--root", "", "topo"]):
        ran = call(*line, "-o", "json")
        assert (ran.code, ran.json["diagnostics"][0]["message"].partition(" (")[0]) == (2, "--root is empty")
    assert call("version", env={"HICACHECTL_ROOT": ""}).code == 0


def test_the_screen_of_a_recording_names_it_in_the_commands_to_run_next(hosts: Path) -> None:
    root = str(hosts / "8n8x-4up16")
    text = call("topo", "--root", root, env={"COLUMNS": "300"}).out
    assert f"-> hicachectl tune plan --root {root}\n" in text
    assert "-> on that host: lscpu | grep -i numa\n" in text
    assert "SNAPSHOT\n" not in text
    assert {d["hint"] for d in call("topo", "--root", root, "-o", "json").json["diagnostics"]} >= {
        "hicachectl tune plan --root SNAPSHOT"
    }


def test_a_snapshot_says_what_it_lacks(hosts: Path, tmp_path: Path) -> None:
    def lacks(name: str) -> dict[str, str]:
        ran = call(
            "topo", "snapshot", str(tmp_path / "x.tar.zst"), "--force", "--root", str(hosts / name), "-o", "json"
        )
        assert ran.code == 0
        return {d["code"]: d["message"] for d in ran.json["diagnostics"]}

    assert lacks("8n8x-4up16") == {}
    assert lacks("empty")["HC-NOTHING-READ"].startswith("neither nodes nor devices recorded: no such file")
    assert "ends after 64 bytes" in lacks("config64")["HC-NEED-ROOT"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["topo", "diff", "nope"], "why: argument A names it"),
        (["topo", "diff", "live", "nope"], "why: argument B names it"),
        (["topo", "diff", "live", "live"], "both sides are the same host"),
        (["topo", "snapshot", "/tmp/a folder/plain.txt"], "next: hicachectl topo snapshot '/tmp/a folder/plain.txt.tar.zst'"),
        (["topo", "snapshot", "/tmp/x.tar.gz"], "next: hicachectl topo snapshot /tmp/x.tar.zst"),
        (["topo", "--fail-on", "note"], "Invalid value for '--fail-on': 'note' is not one of"),
        (["topo", "--root", "x.xml"], "it is no tar archive of a recorded host"),
    ],
)  # fmt: skip
def test_an_error_names_what_was_given_and_what_to_type(
    line: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.xml").write_text("<topology/>" * 100)
    ran = call(*line, env={"COLUMNS": "200"})
    assert ran.code == 2
    assert words in ran.err


def test_a_recording_is_told_to_be_taken_as_root_and_a_live_host_to_be_looked_at_as_root(
    hosts: Path, tmp_path: Path
) -> None:
    def hints(*line: str) -> set[str]:
        return {d["hint"] for d in call("topo", "-o", "json", *line).json["diagnostics"] if d["code"] == "HC-NEED-ROOT"}

    as_root = "take the snapshot as root: sudo hicachectl topo snapshot FILE.tar.zst"
    assert hints("--root", str(hosts / "config64")) == {as_root}
    call("topo", "snapshot", str(tmp_path / "x.tar.zst"), "--root", str(hosts / "config64"))
    assert hints("--root", str(tmp_path / "x.tar.zst")) == {as_root}
    assert hints() <= {"sudo hicachectl topo"}


def test_help_says_when_fail_on_exits_with_which_code() -> None:
    text = " ".join(call("topo", "--help").out.split())
    assert (
        "Exit with 3 when a finding weighs this much or more, with 5 when nodes or devices could not be read." in text
    )
    assert " 5 hardware, kernel or container lacks it" in text


def test_the_findings_in_data_are_those_among_the_diagnostics(hosts: Path) -> None:
    document = call("topo", "--root", str(hosts / "8n8x-4up16"), "-o", "json").json
    assert document["data"]["findings"] == [d for d in document["diagnostics"] if d["code"].startswith("HC-")]


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "tsv"])
def test_every_form_works_live_and_recorded(form: str, hosts: Path) -> None:
    for line in (["topo"], ["topo", "matrix"], ["topo", "diff", str(hosts / "config64"), str(hosts / "8n8x-4up16")]):
        ran = call(*line, "-o", form)
        assert ran.code in (0, 3), ran.err
        assert ran.out


def test_diff_exits_with_3_when_something_differs_and_says_what(hosts: Path) -> None:
    ran = call("topo", "diff", str(hosts / "config64"), str(hosts / "8n8x-4up16"), "-o", "json")
    assert ran.code == 3
    places = {change["place"]: change for change in ran.json["data"]["changes"]}
    assert places["/devices/0000:23:00.0"]["what"] == "added"
    assert places["/host/hostname"]["b"] == "8n8x-4up16"


@pytest.mark.parametrize(
    "line", [["topo", "snapshot", "x.zip"], ["topo", "--root", "x.zip"], ["topo", "diff", "nowhere"]]
)
def test_a_file_that_cannot_be_used_is_a_usage_error(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if line[-1] == "x.zip" and "--root" in line:
        (tmp_path / "x.zip").write_bytes(b"PK\x03\x04")
    ran = call(*line, "-o", "json")
    assert (ran.code, ran.json["status"]) == (2, "failed")
    assert "HC-USAGE" in ran.err


@pytest.mark.parametrize("line", [["topo", "--root"], ["version", "--root"], ["topo", "diff", "live"]])
def test_a_root_that_no_file_can_be_is_a_usage_error(line: list[str]) -> None:
    ran = call(*line, "a" * 5000, "-o", "json")
    assert (ran.code, ran.json["status"]) == (2, "failed")
    assert "File name too long" in ran.err
    assert len(ran.err) < 1000


@pytest.mark.parametrize("command", ["topo", "version"])
def test_a_root_that_may_not_be_looked_at_is_a_usage_error(command: str, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root to become somebody else")
    (tmp_path / "locked/a").mkdir(parents=True)
    (tmp_path / "locked").chmod(0)
    ran = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command_line(command, "-o", "json"), "--root", str(tmp_path / "locked/a")],
        env=QUIET, cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    (tmp_path / "locked").chmod(0o755)
    if "Permission denied" in ran.stderr and "HC-" not in ran.stderr:
        pytest.skip("this interpreter cannot be run by another user")
    assert (ran.returncode, json.loads(ran.stdout)["status"]) == (2, "failed")
    assert "Permission denied" in ran.stderr


@pytest.mark.parametrize("name", ["nobody", "capless"])
def test_topo_works_unprivileged(name: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else: the other tests run unprivileged then")
    drop = (
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if name == "nobody"
        else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    )
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    ran = subprocess.run(
        [*drop, *command_line("topo", "-o", "json")],
        env=QUIET,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "Permission denied" in ran.stderr and "hicachectl" not in ran.stderr:
        pytest.skip("this interpreter cannot be run by another user")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    reasons = {note.get("reason") for note in document["data"]["facts"].values()}
    if document["data"]["devices"]:
        assert any(reason and "root" in reason for reason in reasons)


def test_topo_works_in_a_namespace_without_sys() -> None:
    hide = 'mount -t tmpfs none /sys && exec "$@"'
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *command_line("topo", "-o", "json")],
        env=QUIET, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if ran.returncode != 0 and not ran.stdout:
        pytest.skip(f"no mount namespace here: {ran.stderr.strip()[:80]}")
    document = json.loads(ran.stdout)
    assert document["data"]["nodes"] == []
    assert document["data"]["facts"]["/nodes"]["reason"] == "no such file"


def test_topo_works_in_an_empty_root(hosts: Path) -> None:
    ran = spawn("topo", "--root", str(hosts / "empty"))
    assert ran.returncode == 0
    assert "NODE not known: no such file (/sys/devices/system/node)" in ran.stdout


def test_the_other_commands_take_an_archive_as_root_too(hosts: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.zst"
    call("topo", "snapshot", str(path), "--root", str(hosts / "8n8x-4up16"))
    document = call("version", "--root", str(path), "-o", "json").json
    assert (document["host"], document["source"]) == ("8n8x-4up16", "x")


@pytest.mark.shared
def test_every_recorded_machine_gives_a_valid_document() -> None:
    import jsonschema

    from hicachectl.envelope import unexplained_nulls
    from hicachectl.schemas_io import document_schema

    checker = jsonschema.Draft202012Validator(document_schema("topo")[1])
    archives = sorted(shared_path("topologies/hwloc").glob("*.tar.bz2"))
    assert archives
    for archive in archives:
        ran = call("topo", "--root", str(archive), "-o", "json")
        assert ran.code == 0, (archive.name, ran.err)
        checker.validate(ran.json)
        assert unexplained_nulls(ran.json["data"]) == []
        assert ran.json["source"] == archive.name.removesuffix(".tar.bz2")


def test_help_of_topo_lists_its_commands_and_topo_alone_is_a_command() -> None:
    text = call("topo", "--help").out
    for name in ("matrix", "snapshot", "diff"):
        assert f"\n  {name} " in text
    assert call("topo", "nonsense").code == 2

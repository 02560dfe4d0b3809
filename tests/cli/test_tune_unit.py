"""`hicachectl tune unit`: files that bring a plan back at boot, and what keeps them from it."""

from __future__ import annotations

from pathlib import Path

from tune_desk import BOOT_ID, THP, Desk, document

from hicachectl.commands.tune_unit import running_program


def test_unit_prints_files_that_apply_the_plan_before_the_engine(desk: Desk) -> None:
    desk.make_plan()
    ran = desk.call("tune", "unit", "PLAN", "--engine", "sglang.service")
    assert ran.code == 0
    assert "Before=sglang.service\n" in ran.out
    assert "WantedBy=sglang.service\n" in ran.out
    assert (
        "RequiredBy=sglang.service\n"
        in desk.call("tune", "unit", "PLAN", "--engine", "sglang.service", "--require").out
    )
    assert f"tune apply {desk.plan} --yes --after-boot" in ran.out
    data = document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")
    assert [file["path"] for file in data["files"] if not file["instead"]] == [
        "/etc/systemd/system/hicachectl-tune.service",
        "/etc/systemd/system/hicachectl-tune-verify.service",
        "/etc/systemd/system/hicachectl-tune-verify.timer",
    ]
    assert f"w {THP}/defrag - - - - defer+madvise" in ran.out
    assert not desk.host.kernel.log
    for said in ("update of the kernel", "exit 8", "systemctl disable", "rollback lasts until the next boot"):
        assert said in ran.out


def test_unit_says_what_keeps_the_plan_from_coming_back(desk: Desk) -> None:
    desk.make_plan()
    fitting = document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")
    assert [w for w in fitting["warnings"] if "lies in a folder" not in w] == []
    desk.host.root.at(BOOT_ID).write_text("another\n")  # that is what it is for
    assert document(desk.call("tune", "unit", "PLAN", "-o", "json"), "tune-unit")["warnings"] == fitting["warnings"]
    desk.host.root.at("/proc/sys/kernel/osrelease").write_text("6.99.0\n")
    desk.host.root.at("/proc/sys/kernel/hostname").write_text("other\n")
    stale = desk.call("tune", "unit", "PLAN")
    assert "# WARNING: STALE, the unit will end with exit 8: kernel " in stale.out
    assert "# WARNING: the plan was made for host small, this is other" in stale.out
    for line, what in ((["--engine", "x"], "name of a unit"), (["--require"], "--require needs --engine")):
        ran = desk.call("tune", "unit", "PLAN", *line)
        assert (ran.code, what in ran.err) == (2, True)


def test_unit_writes_its_files_into_a_folder_and_replaces_none(desk: Desk) -> None:
    desk.make_plan()
    folder = desk.folder / "boot"
    ran = desk.call("tune", "unit", "PLAN", "--output-dir", str(folder))
    assert ran.code == 0, ran.err
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "hicachectl-tune.service",
        "hicachectl-tune-verify.service",
        "hicachectl-tune-verify.timer",
        "fstab",
    }
    assert f"sudo install -m 0644 -t /etc/systemd/system {folder}/hicachectl-tune.service" in ran.out
    again = desk.call("tune", "unit", "PLAN", "--output-dir", str(folder))
    assert (again.code, "replaces no file" in again.err) == (2, True)


def test_the_unit_starts_the_copy_that_made_it(tmp_path: Path) -> None:
    copy = tmp_path / "venv/bin/hicachectl"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert running_program(str(copy), "/usr/bin/python3") == (str(copy),)
    for started in ("/x/hicachectl/__main__.py", "/usr/bin/pytest", "-c"):
        assert running_program(started, "/usr/bin/python3") == ("/usr/bin/python3", "-m", "hicachectl")

"""The traps of mapped folders: what is in the wheel is what is in the folders. No network: no build isolation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hicachectl import __version__

ROOT = Path(__file__).parents[1]
MAP = {
    "hicachectl": "hicachectl",
    "tuning": "hicachectl/tuning",
    "runtime": "hicachectl/runtime",
    "profiles": "hicachectl/profiles",
}
ENV = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"}


def folder_files() -> dict[str, Path]:
    """Every file a user needs, by its place in the wheel."""
    files = {}
    for folder, place in MAP.items():
        for path in sorted((ROOT / folder).rglob("*")):
            relative = path.relative_to(ROOT / folder)
            if path.is_file() and "__pycache__" not in relative.parts and not path.name.startswith("."):
                files[f"{place}/{relative.as_posix()}"] = path
    return files


def run(*argv: str, cwd: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", *argv], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, so that nothing stale in build/ or an egg-info can help."""
    copy = tmp_path_factory.mktemp("source")
    for folder in MAP:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), ".", cwd=source)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_exactly_the_files_of_the_four_folders(wheel: zipfile.ZipFile) -> None:
    expected = folder_files()
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == set(expected)
    for name, path in expected.items():
        assert wheel.read(name) == path.read_bytes(), name


def test_the_wheel_has_one_top_level_name_one_script_and_the_license(wheel: zipfile.ZipFile) -> None:
    info = f"hicachectl-{__version__}.dist-info"
    assert wheel.read(f"{info}/top_level.txt").decode().split() == ["hicachectl"]
    assert "hicachectl = hicachectl.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in wheel.read(f"{info}/METADATA").decode()


def test_the_version_is_the_same_in_the_package_and_in_the_metadata(wheel: zipfile.ZipFile) -> None:
    assert re.search(
        rf"^Version: {re.escape(__version__)}$",
        wheel.read(f"hicachectl-{__version__}.dist-info/METADATA").decode(),
        re.M,
    )
    assert re.search(rf'^version = "{re.escape(__version__)}"$', (ROOT / "pyproject.toml").read_text(), re.M)


def test_a_wheel_from_the_source_archive_is_the_same(source: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    run("build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), ".", cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            assert not member.name.startswith(("/", ".."))
        tar.extractall(tmp_path) if sys.version_info < (3, 12) else tar.extractall(tmp_path, filter="data")
    run(
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        ".",
        cwd=archive.with_name(archive.name[:-7]),
    )
    (path,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(path).namelist()) == sorted(wheel.namelist())


def test_the_unpacked_wheel_runs_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hicachectl; assert hicachectl.__file__.startswith(sys.argv[1])\n"
        "sys.argv = ['hicachectl', 'explain', 'HC-BUG']\nfrom hicachectl.__main__ import main; main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("HC-BUG")


def test_every_dependency_has_an_exact_pin() -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, exact, version = line.partition("==")
        assert exact, line
        assert version, line
        pins[name.lower().replace("_", "-")] = version
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    wanted = {m.lower().replace("_", "-") for m in re.findall(r'^  "([A-Za-z0-9_-]+)', project, re.M)}
    assert wanted == set(pins)
    assert pins["torch"] == "2.13.0"

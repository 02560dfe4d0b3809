"""Who may import whom (docs/design.md#arrows), read off the source with ast; and what is loaded when everything is."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "hicachectl": "hicachectl",
    "tuning": "hicachectl.tuning",
    "runtime": "hicachectl.runtime",
    "profiles": "hicachectl.profiles",
}

PLAIN_LEAVES = {f"hicachectl.{name}" for name in ("errors", "units", "held_signals", "device_names")}
KERNEL_LEAVES = {
    "hicachectl.linux_calls"
}  # system calls that pools and the proofs of tune both make; nothing decides by it
YAML_LEAVES = {"hicachectl.yaml_marks"}  # YAML with the line of every value: tuning and the screen read files by it
LEAVES = PLAIN_LEAVES | KERNEL_LEAVES | YAML_LEAVES
# values in, values out: no clock, no files, no torch
PURE = {
    f"hicachectl.runtime.{name}"
    for name in (
        "keys",
        "keytable",
        "tree",
        "node",
        "tree_keys",
        "tree_check",
        "eviction",
        "decide",
        "cost",
        "write_policy",
        "ghost",
        "seen",
        "least_squares",
        "probes.fits",
        "probes.break_even",
    )
}
PURE |= {
    "hicachectl.runtime.memory.budget",
    "hicachectl.runtime.probes.link_math",
    "hicachectl.runtime.probes.link_cases",
}
PURE |= {
    f"hicachectl.tuning.{name}"
    for name in (
        "findings",
        "finding",
        "hints",
        "judge_links",
        "judge_ordering",
        "judge_numa",
        "judge_memory",
        "judge_host",
        "placement",
        "assignment",
        "plan",
        "fingerprint",
        "knobs",
        "gain",
        "proofs.proof",
        "proofs.huge_share",
        "knobs.recipe",
        "recipe_fields",
        "recipe_gates",
        "recipe_match",
        "recipe_parse",
        "recipe_parse_access",
        "recipe_parse_match",
        "recipe_parse_write",
        "recipe_place",
        "recipe_rules",
        "recipe_template",
        "checklists",
        "host.pcie_caps",
        "host.iommu",
        "knobs.setting",
        "knobs.thp_sizes",
        "knobs.thp",
        "knobs.khugepaged",
        "knobs.tmpfs",
        "knobs.numa_balancing",
        "knobs.zone_reclaim",
        "knobs.weighted_interleave",
        "knobs.limits",
        "knobs.table",
        "sizing.levels",
        "sizing.economics",
        "sizing.plateau",
        "sizing.engine_flags",
        "sizing.step_rules",
    )
}
WORDS = {
    "hicachectl.runtime.tiers",
    "hicachectl.runtime.reasons",
    "hicachectl.tuning.host.facts",
    "hicachectl.tuning.host.model",
    "hicachectl.tuning.host.gaps",
    "hicachectl.tuning.host.uplinks",
    *(f"hicachectl.tuning.{name}" for name in ("target", "choices", "item", "sight", "outcome", "recipe")),
}  # values, enums and names only; held to the same rules
FROM_YAML = {"hicachectl.tuning.recipe_fields", "hicachectl.tuning.recipe_parse"}  # a parsed document, as a value
MEMORY = "hicachectl.runtime.memory"
MOVES_BYTES = (MEMORY, *(f"hicachectl.runtime.{name}" for name in ("transfer", "probes", "engines")))
ONLY_WHEN_CALLED = {"prometheus_client", "zstandard", "msgpack"}  # runtime: inside the function that needs them
GUARDED = {
    "numa": "hicachectl.runtime.memory.numa",
    "libnuma": "hicachectl.runtime.memory.numa",
    "triton": "hicachectl.runtime.transfer.triton_kernels",
}  # absent on many hosts
IMPURE = {
    "time", "datetime", "os", "pathlib", "io", "sys", "random", "secrets", "threading", "queue", "socket", "subprocess", "shutil",
    "tempfile", "signal", "ctypes", "mmap", "multiprocessing", "asyncio", "logging", "torch", "glob", "fcntl", "importlib",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


@dataclass(frozen=True)
class Import:
    module: str
    target: str
    line: int
    in_function: bool
    for_types: bool

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def modules(*folders: str) -> dict[str, Path]:
    """Every module of these folders by its import name."""
    found = {}
    for folder in folders or FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([FOLDERS[folder], *(p for p in parts if p != "__init__")])] = path
    return found


ALL = modules()


def imports(module: str) -> Iterator[Import]:
    path = ALL[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, in_function, for_types)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    up = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*up, base]).rstrip(".")
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    yield Import(module, full if full in ALL else base, child.lineno, in_function, for_types)
            else:
                inside = in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                types = for_types or (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"))
                yield from walk(child, inside, types)

    yield from walk(tree, False, False)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def ours(found: Import) -> bool:
    return found.top == "hicachectl"


@pytest.mark.parametrize("module", sorted(LEAVES))
def test_the_leaves_import_only_each_other_and_the_standard_library(module: str) -> None:
    for found in imports(module):
        yaml = module in YAML_LEAVES and found.top == "yaml" and (found.in_function or found.for_types)
        assert found.target in PLAIN_LEAVES or found.top in sys.stdlib_module_names or yaml, found


@pytest.mark.parametrize("module", sorted(modules("runtime")))
def test_runtime_imports_the_leaves_itself_numpy_and_torch_where_bytes_move(module: str) -> None:
    for found in imports(module):
        if ours(found):
            plain = found.target in PLAIN_LEAVES or (found.target in KERNEL_LEAVES and within(module, MEMORY))
            assert plain or within(found.target, "hicachectl.runtime"), found
        elif found.top == "torch":
            assert found.for_types or any(within(module, package) for package in MOVES_BYTES), found
        elif found.top in ONLY_WHEN_CALLED:
            assert found.in_function or found.for_types, found
        elif found.top in GUARDED:
            assert found.module == GUARDED[found.top], found
        else:
            assert found.top == "numpy" or found.top in sys.stdlib_module_names, found


@pytest.mark.parametrize("module", sorted(modules("tuning")))
def test_tuning_reaches_runtime_from_sizing_alone_and_needs_neither_torch_nor_numpy(module: str) -> None:
    sizing = within(module, "hicachectl.tuning.sizing")
    for found in imports(module):
        if ours(found):
            others = {"hicachectl", "hicachectl.config", "hicachectl.profiles"}
            proofs = within(module, "hicachectl.tuning.proofs")
            allowed = found.target in (LEAVES if proofs else LEAVES - KERNEL_LEAVES) | others or within(
                found.target, "hicachectl.tuning"
            )
            assert allowed or (sizing and within(found.target, "hicachectl.runtime")), found
        assert found.top not in {"typer", "rich", "torch"}, found
        assert sizing or found.top != "numpy", found


@pytest.mark.parametrize("module", sorted(modules("profiles")))
def test_profiles_are_data(module: str) -> None:
    for found in imports(module):
        assert (
            found.target in PLAIN_LEAVES
            or within(found.target, "hicachectl.profiles")
            or found.top in sys.stdlib_module_names
        ), found


@pytest.mark.parametrize("module", sorted(modules("hicachectl")))
def test_the_screen_moves_no_bytes(module: str) -> None:
    for found in imports(module):
        assert found.top != "torch", found


@pytest.mark.parametrize(
    "module", ["hicachectl.app", *sorted(m for m in modules("hicachectl") if within(m, "hicachectl.commands"))]
)
def test_importing_a_command_loads_no_layer_below_and_no_heavy_library(module: str) -> None:
    reached, waiting = {module}, [module]
    while waiting:
        for found in imports(waiting.pop()):
            if found.in_function or found.for_types:
                continue
            assert not within(found.target, "hicachectl.runtime"), found
            assert not within(found.target, "hicachectl.tuning"), found
            assert found.top not in {"numpy", "yaml", "rich", "torch"}, found
            if found.target in ALL and found.target not in reached:
                reached.add(found.target)
                waiting.append(found.target)


@pytest.mark.parametrize("module", sorted((PURE | WORDS) & set(ALL)))
def test_decisions_use_no_clock_no_file_and_no_torch(module: str) -> None:
    for found in imports(module):
        assert found.top not in IMPURE, found
        if ours(found):
            assert found.target in (LEAVES - KERNEL_LEAVES) | PURE | WORDS, found
            assert found.target not in YAML_LEAVES or module in FROM_YAML, found
    for node in ast.walk(ast.parse(ALL[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, (module, node.lineno)


def test_the_decision_modules_of_the_design_are_where_it_says() -> None:
    for name in ("keys", "tree", "decide", "cost", "write_policy", "ghost", "seen"):
        assert f"hicachectl.runtime.{name}" in ALL


def test_nothing_imports_a_folder_under_its_own_name() -> None:
    for path in sorted(p for folder in (*FOLDERS, "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert not {n.partition(".")[0] for n in names} & {"runtime", "tuning", "profiles"}, (path, node.lineno)


@pytest.mark.parametrize("folder", ["runtime", "tuning", "tuning/sizing"])
def test_the_reading_order_lists_the_folder(folder: str) -> None:
    top, _, below = folder.partition("/")
    package = importlib.import_module(f"{FOLDERS[top]}.{below}".rstrip("."))
    listed = list(getattr(package, "READING_ORDER", None) or getattr(package, "__all__", ()))
    there = {p.stem for p in (ROOT / folder).glob("*.py")} | {
        p.parent.name for p in (ROOT / folder).glob("*/__init__.py")
    }
    assert sorted(listed) == sorted(there - {"__init__"})


def test_the_package_itself_holds_only_the_version() -> None:
    assert list(imports("hicachectl")) == []


@pytest.mark.parametrize("module", sorted(ALL))
def test_the_import_name_leads_to_the_file_in_this_checkout(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_bytes() == ALL[module].read_bytes()


IMPORT_ALL = """
import importlib, json, sys
blocked = set(json.loads(sys.argv[1]))
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
for name in json.loads(sys.argv[2]):
    importlib.import_module(name)
print(*[n for n in ("runtime", "tuning", "profiles") if n in sys.modules])
"""


def import_in_new_process(names: list[str], blocked: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    import json

    return subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(blocked), json.dumps(names)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_after_importing_everything_no_module_is_there_twice() -> None:
    names = [name for name in sorted(ALL) if not name.endswith("__main__")]
    ran = import_in_new_process(names, [], ROOT)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr


def test_the_folders_cannot_be_imported_by_their_own_names_from_elsewhere(tmp_path: Path) -> None:
    for name in ("runtime", "tuning"):
        ran = import_in_new_process([name], [], tmp_path)
        assert ran.returncode == 1
        assert "ModuleNotFoundError" in ran.stderr


def test_runtime_imports_with_numpy_and_torch_alone(tmp_path: Path) -> None:
    others = [
        "typer",
        "rich",
        "yaml",
        "pydantic",
        "prometheus_client",
        "zstandard",
        "msgpack",
        "psutil",
        "libnuma",
        "numa",
    ]
    ran = import_in_new_process(sorted(modules("runtime")), others, tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_decision_modules_import_without_torch(tmp_path: Path) -> None:
    ran = import_in_new_process(sorted((PURE | WORDS) & set(ALL)), ["torch"], tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("command", ["explain", "version", "schema", "profile list", "config show", "--help"])
def test_looking_up_works_where_torch_and_numpy_cannot_be_imported(command: str, tmp_path: Path) -> None:
    if command.split()[0] in {"profile", "config"} and find_spec(f"hicachectl.commands.{command.split()[0]}") is None:
        pytest.skip(f"the command {command} is not there yet")
    program = (
        IMPORT_ALL
        + f"\nsys.argv = ['hicachectl', *{command.split()!r}]\nfrom hicachectl.__main__ import main\nmain()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, '["torch", "numpy"]', "[]"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr

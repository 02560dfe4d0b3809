"""Plant known bugs in a copy of the tree, one at a time: each must turn the tests of the laws red, the copy itself green.

python tests/mutants/run.py [--keep] [NAME ...]

Each bug is an exact text replaced by another; it must occur exactly once in runtime/, so a bug that no longer fits is
found too. Exit code 1 when a bug survives or does not fit, or when the copy without a bug is red. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/laws/test_cache_laws.py", "tests/laws/test_tree_model.py", "tests/laws/test_cache_model.py")
STEPS = "6000"
LIMIT_S = 240


@dataclass(frozen=True)
class Mutant:
    """A bug: `old` becomes `new`, once, somewhere in runtime/."""

    name: str
    what: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "double free",
        "published slots stay the request's too, and are freed again at its release",
        "            request.allocated = None\n            if inserted.node.depth",
        "            if inserted.node.depth",
    ),
    Mutant(
        "lost lease",
        "a released request keeps its path pinned",
        "        request.lease.release()\n        del self._open",
        "        del self._open",
    ),
    Mutant(
        "early publish",
        "restored pages become visible before their copy is over",
        "        return ticket.copy.done\n",
        "        return True\n",
    ),
    Mutant(
        "host slots not split",
        "a node that splits keeps all host slots in its lower part",
        "            upper.slots[tier] = slots[:pages].copy()\n",
        "            if tier == HOST:\n                continue\n            upper.slots[tier] = slots[:pages].copy()\n",
    ),
    Mutant(
        "hit counted twice",
        "a request counts again for its whole path at each insertion",
        "        request.counted_pages = request.lease.n_pages\n",
        "",
    ),
)


def copy_tree(target: Path) -> None:
    """Lay the folders out as an installed package, so that the copy needs no installation; tests beside it."""
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
    shutil.copytree(ROOT / "hicachectl", target / "hicachectl", ignore=ignore)
    for part in ("tuning", "runtime", "profiles"):
        shutil.copytree(ROOT / part, target / "hicachectl" / part, ignore=ignore)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", target)


def plant(target: Path, mutant: Mutant) -> str | None:
    """Change the copy; returns why that is impossible, None when it was done."""
    found = [
        (path, text)
        for path in sorted((target / "hicachectl" / "runtime").rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
        if mutant.old in text
    ]
    count = sum(text.count(mutant.old) for _, text in found)
    if count != 1:
        return f"its text occurs {count} times in runtime/, not once"
    path, text = found[0]
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return None


def run_tests(target: Path) -> tuple[int, str]:
    """Run the tests of the laws on the copy; returns pytest's exit code and the first line that says why."""
    environment = dict(os.environ)
    environment.update(HICACHECTL_LAW_STEPS=STEPS, HICACHECTL_LAW_SHRINK="0", PYTHONDONTWRITEBYTECODE="1")
    environment["PYTHONPATH"] = str(target)
    where = "import hicachectl.runtime.tree as t; print(t.__file__)"
    ask = subprocess.run([sys.executable, "-c", where], cwd=target, env=environment, capture_output=True, text=True)
    if not ask.stdout.startswith(str(target)):
        return 99, f"the copy is not what is imported: {ask.stdout or ask.stderr}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", "120", "-p", "no:cacheprovider", *TESTS]
    try:
        done = subprocess.run(
            command, cwd=target, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 98, f"no end within {LIMIT_S} s"
    why = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E  ") and "Error" in line]
    why += [line.split(".", 2)[-1] for line in done.stdout.splitlines() if "errors.InvariantBroken" in line]
    return done.returncode, why[0] if why else done.stdout.strip().splitlines()[-1]


def main() -> int:
    """Run the copy without a bug and with each; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="bugs to plant, all without")
    parser.add_argument("--keep", action="store_true", help="keep the copies")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    if not chosen:
        parser.error(f"no such bug; there are: {', '.join(m.name for m in MUTANTS)}")
    bad = 0
    print(f"{'bug':<22}{'result':<10}{'seconds':>8}  why", flush=True)
    for mutant in (None, *chosen):
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="hicachectl-mutant-"))
        try:
            copy_tree(folder)
            why = plant(folder, mutant) if mutant else None
            code, line = (0, why) if why else run_tests(folder)
        finally:
            if not options.keep:
                shutil.rmtree(folder)
        if mutant is None:
            name, fine, result = "(none)", code == 0, "green" if code == 0 else "RED"
        else:
            # 1: tests failed. Anything else (nothing collected, a usage error, a timeout) proves nothing.
            name, fine = mutant.name, code == 1
            result = "red" if fine else ("NO FIT" if why else "SURVIVED")
        bad += not fine
        print(f"{name:<22}{result:<10}{time.monotonic() - began:>8.1f}  {line[:120]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

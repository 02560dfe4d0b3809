"""Puts a `Session` together for this machine or a recording of it: every knob, every recipe, who else sets things, proofs, locks."""

from __future__ import annotations

import os
import pwd
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hicachectl import __version__
from hicachectl.errors import HicacheError
from hicachectl.prove_load import Loads
from hicachectl.tuning.access import read_doors
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.holders import gate
from hicachectl.tuning.host.read import read_machine
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.kernel import Kernel, LiveKernel
from hicachectl.tuning.knobs import Knob
from hicachectl.tuning.knobs.recipe import RecipeKnob
from hicachectl.tuning.knobs.table import MEMORY_KNOBS
from hicachectl.tuning.knobs.thp import DEFRAG, settle
from hicachectl.tuning.proofs import prove_effect
from hicachectl.tuning.prove import Prover
from hicachectl.tuning.recipe_load import RECIPES_FOLDER, load_recipes
from hicachectl.tuning.session import Session
from hicachectl.tuning.sight import Sight
from hicachectl.tuning.state import DEFAULT_STATE_DIR, StateDir

if TYPE_CHECKING:
    from hicachectl.context import Context

__all__ = ["live_session", "make_session", "recipe_problems", "recipe_words", "settled", "utc_now", "who_calls"]


def live_session(cli: Context, state_dir: Path | None, online: bool, plans: bool) -> Session:
    """Make the session of the host the command line looks at. Reads recipes where it `plans`, and nothing else yet.

    Raises UsageError for a --root that is none.
    """
    root = cli.host_root()
    return make_session(root, LiveKernel(root), StateDir(state_dir or DEFAULT_STATE_DIR), online=online, plans=plans)


def make_session(
    root: HostRoot, kernel: Kernel, state: StateDir, *, online: bool = False, plans: bool = True
) -> Session:
    """Make a session on any root with any kernel. Reads the recipes below the root, where it is to plan.

    A vendor's recipe that is wrong is left out, so that it stops nothing it is not about: `recipe_problems` tells of it.
    """
    recipes = load_recipes(root=root, on_problem=lambda problem: None) if plans else ()
    knobs: tuple[Knob, ...] = (*MEMORY_KNOBS, *map(RecipeKnob, recipes)) if plans else ()
    loads = Loads(root)
    return Session(
        root=root,
        kernel=kernel,
        state=state,
        knobs=knobs,
        clock=utc_now,
        sleep=time.sleep,
        who=who_calls(),
        pid=os.getpid(),
        tool_version=__version__,
        recipes={recipe.id: recipe.sha256 for recipe in recipes},
        refuse=gate(root, online=online),
        observe=lambda item: prove_effect(item, root),
        measure=Prover(loads.probes).measure,
        cannot_measure=loads.refusal,
    )


def recipe_problems(root: HostRoot) -> tuple[HicacheError, ...]:
    """Return what is wrong with the vendor recipes of a host, a problem a file that was left out. Reads files."""
    found: list[HicacheError] = []
    if root.exists(str(RECIPES_FOLDER)):
        load_recipes(root=root, on_problem=found.append)
    return tuple(found)


def settled(session: Session, choices: Choices) -> Choices:
    """Return the choices with what the host itself decides settled, so that the saved plan asks nobody again. Reads the host."""
    target = DEFRAG.target
    sight = Sight(read_machine(session.root), {}, doors=read_doors(session.root, [target]))
    return settle(choices, sight)


def recipe_words(session: Session) -> dict[str, tuple[str, str]]:
    """Return the knob of each recipe of a session and the word it stands for when it is named alone, by its id. Pure."""
    return {
        knob.recipe.id: (knob.name, knob.recipe.words[0][0] if knob.recipe.words else "on")
        for knob in session.knobs
        if isinstance(knob, RecipeKnob)
    }


def utc_now() -> str:
    """Return the time, UTC, in RFC 3339 to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def who_calls() -> str:
    """Return who runs this: the user's name, and behind sudo the one who called it. Reads the user database and the environment."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"uid {os.geteuid()}"
    before = os.environ.get("SUDO_USER")
    return f"{name} ({before})" if before and before != name else name

"""The session of a host: what it is made of, and what must work without the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.kernel import FakeKernel, FakeRoot
from hosts.builder import write_shape

from hicachectl.errors import ProfileError
from hicachectl.profiles import recipe_data
from hicachectl.tune_session import make_session, recipe_problems, recipe_words, utc_now, who_calls
from hicachectl.tuning.recipe_load import load_recipes
from hicachectl.tuning.state import StateDir


def root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(write_shape("8n8x-4up16", tmp_path / "8n8x-4up16"))


def test_looking_back_and_undoing_need_no_recipe_so_a_broken_one_never_stops_them(tmp_path: Path) -> None:
    host = root(tmp_path)
    folder = host.at("/etc/hicachectl/recipes.d")
    folder.mkdir(parents=True, mode=0o700)
    (folder / "vendor.yaml").write_text("id: [")
    with pytest.raises(ProfileError):
        load_recipes(root=host, owner=os.getuid())
    made = make_session(host, FakeKernel(host), StateDir(tmp_path / "state"), plans=False)
    assert (made.knobs, made.recipes, made.states()) == ((), {}, ())


@pytest.mark.skipif(os.getuid() != 0, reason="recipes of a host belong to root")
def test_a_broken_recipe_is_left_out_and_told_and_the_good_ones_stay(tmp_path: Path) -> None:
    host = root(tmp_path)
    assert recipe_problems(host) == ()
    folder = host.at("/etc/hicachectl/recipes.d")
    folder.mkdir(parents=True, mode=0o700)
    good = recipe_data("nvidia-ro").decode().replace("id: nvidia-ro", "id: vendor-ro")
    (folder / "a.yaml").write_text("id: [")
    (folder / "b.yaml").write_text(good)
    (folder / "c.yaml").write_text(good)
    (folder / "b.yaml").chmod(0o600)
    (folder / "c.yaml").chmod(0o600)
    made = make_session(host, FakeKernel(host), StateDir(tmp_path / "state"))
    assert "vendor-ro" in made.recipes
    problems = recipe_problems(host)
    assert [str(p.where).rpartition("/")[2].partition(":")[0] for p in problems] == ["a.yaml", "c.yaml"]
    folder.chmod(0o777)
    (one,) = recipe_problems(host)
    assert "is not trusted" in one.what
    assert "vendor-ro" not in make_session(host, FakeKernel(host), StateDir(tmp_path / "state")).recipes


def test_every_recipe_has_a_hash_and_a_word_it_stands_for(tmp_path: Path) -> None:
    host = root(tmp_path)
    made = make_session(host, FakeKernel(host), StateDir(tmp_path / "state"))
    words = recipe_words(made)
    assert words["pcie-ido-request"] == ("pcie.ido-request", "on")
    assert words["pcie-mrrs"][0] == "pcie.read-request"
    assert set(words) == set(made.recipes)
    assert all(len(digest) == 64 for digest in made.recipes.values())


def test_no_two_knobs_have_one_name(tmp_path: Path) -> None:
    host = root(tmp_path)
    names = [knob.name for knob in make_session(host, FakeKernel(host), StateDir(tmp_path / "state")).knobs]
    assert len(names) == len(set(names))


def test_who_and_when_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    plain = who_calls()
    monkeypatch.setenv("SUDO_USER", "alice")
    assert who_calls() == f"{plain} (alice)"
    assert utc_now().endswith("Z")
    assert len(utc_now()) == 20

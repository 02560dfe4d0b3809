"""From the settings to what `tune plan` wants: each value with its reason and the place that set it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.config import BASE_PROFILE, load_config
from hicachectl.config_keys import catalogue
from hicachectl.errors import UsageError
from hicachectl.profiles_io import load_profile
from hicachectl.tune_choices import KEY_OF_KNOB, Permissions, choices_of
from hicachectl.tuning.choices import Choices
from hicachectl.tuning.knobs.setting import leave_alone
from hicachectl.tuning.knobs.table import MEMORY_KNOBS

MINE = """\
name: mine
revision: 7
summary: a test
values:
  tune.thp.enabled: {value: never, reason: this host must not, source: here, confidence: assumed}
  tune.tmpfs.huge: {value: null, reason: left to the platform team, source: here, confidence: assumed}
"""


RECIPES = {
    "rc-order": ("rc.order", "relaxed"),
    "amd-lclk-dpm": ("amd.lclk-dpm", "fixed"),
    "pcie-ido-request": ("pcie.ido-request", "on"),
}


def choices(
    folder: Path, text: str = "", *, env: dict[str, str] | None = None, profile: str | None = None, **flags: str
) -> Choices:
    file = folder / "hicache.yaml"
    file.write_text(text)
    given = {f"tune.{name.replace('__', '.')}": value for name, value in flags.items()}
    return choices_of(
        load_config(given, env=env or {}, path=file, profile=profile, base_profile=BASE_PROFILE), recipes=RECIPES
    )


def test_every_tune_key_has_a_knob_and_kv_host_says_something_of_each() -> None:
    keys = {name for name in catalogue() if name.startswith("tune.")}
    assert keys == {*KEY_OF_KNOB.values(), "tune.thp.sizes", "tune.recipes"}
    assert set(load_profile(BASE_PROFILE).values) == keys - {"tune.recipes"}


def test_a_value_comes_from_flag_variable_file_named_profile_and_base_in_this_order(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    base = choices(tmp_path)
    assert (base.profile, base.wanted["thp.enabled"].value) == ("kv-host", "madvise")
    assert base.wanted["thp.enabled"].origin.startswith("kv-host.yaml:")
    named = choices(tmp_path, profile=str(mine))
    assert (named.profile, named.revision, named.origins["base"]) == ("mine", 7, "kv-host rev 2")
    assert (named.wanted["thp.enabled"].value, named.wanted["thp.enabled"].reason) == ("never", "this host must not")
    text = "tune: {thp: {enabled: always}}\n"
    assert choices(tmp_path, text, profile=str(mine)).wanted["thp.enabled"].origin == f"{tmp_path}/hicache.yaml:1"
    env = {"HICACHECTL_TUNE_THP_ENABLED": "madvise"}
    assert (
        choices(tmp_path, text, env=env, profile=str(mine)).wanted["thp.enabled"].origin
        == "HICACHECTL_TUNE_THP_ENABLED"
    )
    flag = choices(tmp_path, text, env=env, profile=str(mine), thp__enabled="never").wanted["thp.enabled"]
    assert (flag.value, flag.origin, flag.reason) == ("never", "--thp-enabled", "set by flag --thp-enabled")


def test_null_in_any_place_leaves_a_setting_alone_and_the_origin_says_who(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    assert "tmpfs.huge" not in choices(tmp_path, profile=str(mine)).wanted
    found = choices(tmp_path, "tune:\n  pcie:\n    ido_request: null\n")
    assert "pcie.ido-request" not in found.wanted
    assert found.origins["tune.pcie.ido_request"] == f"left alone by file {tmp_path}/hicache.yaml:3"
    assert "pcie.ido-completion" not in found.wanted  # the base profile's null


def test_sizes_and_recipes_become_a_knob_each(tmp_path: Path) -> None:
    found = choices(tmp_path, thp__sizes="64kB=madvise,2048kB=inherit", recipes="rc-order=strict,amd-lclk-dpm").wanted
    assert (found["thp.size.64kB"].value, found["thp.size.2048kB"].value) == ("madvise", "inherit")
    assert (found["rc.order"].value, found["amd.lclk-dpm"].value) == ("strict", "fixed")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("thp__sizes", "64kB=madvise,64kB=never", "twice"),
        ("recipes", "rc-order,rc-order=strict", "twice"),
        ("recipes", "rc-odrer", "no such recipe"),
        ("acs__p2p_redirect", "on", "not off or null"),
        ("recipes", "pcie-ido-request", "twice"),
        ("thp__sizes", "64=madvise", "not SIZE=WORD"),
        ("pcie__read_request", "1000", "not 128, 256"),
        ("limits__memlock", "much", "not report, or the bytes"),
        ("pcie__ido_request", "true", "not one of on, off"),
        ("numa__balancing", "4", "from 0 to 3"),
        ("numa__interleave_weight", "0=256x", "not offer, auto"),
    ],
)
def test_a_value_that_fits_no_knob_is_refused(tmp_path: Path, name: str, value: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        choices(tmp_path, **{name: value})
    assert what in str(caught.value)


def test_permissions_are_flags_and_only_takes_ids(tmp_path: Path) -> None:
    effective = load_config({}, env={}, cwd=tmp_path, base_profile=BASE_PROFILE)
    found = choices_of(
        effective, Permissions(bound=True, persist_files=True), only=("thp", "pcie.ido-request@0000:95:00.0")
    )
    assert (found.bound, found.online, found.persist_files) == (True, False, True)
    assert found.origins["persist-files"] == "flag --persist-files"
    for word in ("", "@0000:95:00.0", "pcie@"):
        with pytest.raises(UsageError, match="names no setting"):
            choices_of(effective, only=(word,))


def test_what_a_remedy_tells_to_set_is_a_key() -> None:
    for knob in (*(k.name for k in MEMORY_KNOBS if k.name != "thp.size"), "thp.size.64kB", *KEY_OF_KNOB):
        (key,) = (word for word in leave_alone(knob).split() if word.startswith("tune."))
        assert key in catalogue(), knob


@pytest.mark.parametrize("word", ["auto", "auto:64GiB", "defer"])
def test_defrag_takes_auto_with_and_without_a_size(tmp_path: Path, word: str) -> None:
    assert choices(tmp_path, thp__defrag=word).wanted["thp.defrag"].value == word


@pytest.mark.parametrize("word", ["auto:", "auto:much", "auto:-1", "sometimes"])
def test_defrag_takes_nothing_else(tmp_path: Path, word: str) -> None:
    with pytest.raises(UsageError, match=r"tune\.thp\.defrag is"):
        choices(tmp_path, thp__defrag=word)


def test_the_base_profile_lets_room_decide_and_huge_pages_follow_the_file_above(tmp_path: Path) -> None:
    wanted = choices(tmp_path).wanted
    assert wanted["thp.defrag"].value == "auto"
    assert wanted["thp.size.2048kB"].value == "inherit"

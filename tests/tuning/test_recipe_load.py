"""Recipes are read strictly: every rule has a file that breaks it, refused with its line; nothing wider than meant gets through."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hicachectl.errors import PermissionDenied, ProfileError
from hicachectl.profiles import recipe_data, recipe_names
from hicachectl.tuning.host.root import HostRoot
from hicachectl.tuning.recipe import Precheck, Recipe, Scope, Status, knob_of
from hicachectl.tuning.recipe_load import load_recipes, load_shipped, parse_recipe
from hicachectl.tuning.target import Method

IDO = recipe_data("pcie-ido-request").decode()
READ_REQUEST = recipe_data("pcie-mrrs").decode()
ACS = recipe_data("acs-p2p-redirect").decode()
PAYLOAD = recipe_data("pcie-mps").decode()
MODULE = recipe_data("nvidia-ro").decode()
HSMP = recipe_data("amd-lclk-dpm").decode()
MSR = recipe_data("intel-ddio-ways").decode()
_MODULE_REACH = "method: module-param, scope: host, module: nvidia, parameter: NVreg_EnablePCIERelaxedOrderingMode"
MOUNT = (
    MODULE.replace(_MODULE_REACH, "method: mount, scope: host, path: /mnt/pool").replace('"1"', '"advise"').replace('"0"', '"never"')
)  # fmt: skip
SYSFS = MODULE.replace(_MODULE_REACH, "method: sysfs, scope: host, path: /sys/kernel/x")
HERE = os.getuid()


def parsed(text: str, name: str = "a.yaml") -> Recipe:
    recipe, problems = parse_recipe(text.encode(), name)
    assert problems == []
    assert recipe is not None
    return recipe


def changed(text: str, old: str, new: str) -> str:
    """Replace the one place that `old` stands at."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# -- what the shipped ones say ----------------------------------------------------------------------------------------


def test_every_shipped_recipe_loads_under_the_name_of_its_file() -> None:
    shipped = load_shipped()
    assert tuple(recipe.id for recipe in shipped) == recipe_names()
    assert all(recipe.shipped and recipe.sources for recipe in shipped)


def test_the_registers_and_masks_are_those_of_the_public_table() -> None:
    table = {
        r.id: (r.reach.capability, r.reach.extended, r.reach.offset, r.reach.width, r.mask, r.value)
        for r in load_shipped()
    }
    assert table == {
        "pcie-ido-request": (0x10, None, 0x28, 16, 0x0100, 0x0100),
        "pcie-ido-completion": (0x10, None, 0x28, 16, 0x0200, 0x0200),
        "pcie-relaxed-ordering": (0x10, None, 0x08, 16, 0x0010, 0x0010),
        "pcie-mrrs": (0x10, None, 0x08, 16, 0x7000, 0x5000),
        "pcie-mps": (0x10, None, 0x08, 16, 0x00E0, None),
        "pcie-ext-tag": (0x10, None, 0x08, 16, 0x0100, None),
        "pcie-10bit-tag": (0x10, None, 0x28, 16, 0x1000, None),
        "acs-p2p-redirect": (None, 0x0D, 0x06, 16, 0x001C, 0),
        "intel-ddio-port": (None, None, 0x180, 8, 0x88, None),
        "intel-ddio-ways": (None, None, 0xC8B, 64, 0x7FF, None),
        "amd-lclk-dpm": (None, None, 0x12, 16, 0x0303, 0x0101),
        "nvidia-ro": (None, None, None, None, None, "1"),
        "mlx-wr-ordering": (None, None, None, None, None, None),
        "rc-ordering-policy": (None, None, None, None, None, None),
    }


def test_a_write_to_device_control_always_forces_the_reset_bit_to_0() -> None:
    for recipe in load_shipped():
        at_control = (recipe.reach.capability, recipe.reach.offset) == (0x10, 0x08)
        assert bool(recipe.forbidden & 0x8000) == at_control, recipe.id
    assert parsed(changed(READ_REQUEST, ", forbid_mask: 0x8000", "")).forbidden == 0x8000


def test_what_is_only_reported_elsewhere_is_marked_experimental() -> None:
    experimental = {r.id for r in load_shipped() if r.status is Status.EXPERIMENTAL}
    assert experimental == {
        "amd-lclk-dpm", "intel-ddio-port", "intel-ddio-ways", "mlx-wr-ordering", "nvidia-ro", "rc-ordering-policy",
    }  # fmt: skip


def test_changes_of_packet_order_are_marked_and_the_others_are_not() -> None:
    written = {r.knob: r.risk.ordering for r in load_shipped() if not r.reports_only}
    assert {knob for knob, ordering in written.items() if ordering} == {
        "pcie.ido-request", "pcie.ido-completion", "pcie.relaxed-ordering", "nvidia.ro",
    }  # fmt: skip


def test_the_first_dash_of_an_id_becomes_the_knobs_dot_unless_the_recipe_names_one() -> None:
    assert knob_of("acs-p2p-redirect") == "acs.p2p-redirect"
    named = {r.id: r.knob for r in load_shipped() if r.knob != knob_of(r.id)}
    assert named == {"pcie-mrrs": "pcie.read-request", "pcie-mps": "pcie.payload"}


def test_all_parts_of_a_recipe_are_read() -> None:
    recipe = parsed(IDO)
    assert (recipe.status, recipe.reach.method, recipe.reach.scope) == (
        Status.PUBLIC,
        Method.PCI_CONFIG,
        Scope.PER_FUNCTION,
    )
    assert recipe.reach.min_version == 2
    assert recipe.match.shared_upstream == 2
    assert (recipe.match.kernel.oldest, recipe.match.kernel.lockdown) == ((3, 0), ("none",))
    assert recipe.match.pci is not None
    assert (recipe.match.pci.kinds, recipe.match.pci.port_types) == (("accelerator",), ("endpoint", "legacy"))
    assert recipe.words == (("on", 0x0100), ("off", 0))
    assert (recipe.read_back.tries, recipe.read_back.delay_s) == (3, 0.05)
    assert recipe.effect is not None
    assert (recipe.effect.probe, recipe.effect.min_gain, recipe.effect.max_loss) == ("d2h-concurrent", 1.10, 0.03)
    assert (recipe.survives_reboot, recipe.survives_flr, recipe.reapply) == (False, False, "systemd")
    assert dict(recipe.prechecks)[Precheck.CONFIG_READABLE] == 256
    assert recipe.on_not_implemented == "skip"
    assert recipe.sha256 == hashlib.sha256(IDO.encode()).hexdigest()


def test_the_example_of_the_documents_is_a_recipe() -> None:
    text = """
schema: hicachectl.recipe/1
id: pcie-ido-request
title: let the accelerator mark requests for ID-based ordering
status: public
match:
  cpu: {vendor: any, family: any, model: any}
  pci: {vendor: any, device: any, class: "0x12????|0x0302??", port_type: [endpoint]}
  kernel: {min: "3.0", lockdown: none}
  topology: {shared_upstream: ">=2"}
access: {method: pci-config, anchor: {cap: 0x10, min_version: 2}, offset: 0x28, width: 16, scope: per-function}
write: {mask: 0x0100, value: 0x0100, forbid_mask: 0x0000}
on_not_implemented: skip
precheck: [{config_readable: 256}, {transactions_pending: 0}, {not_vfio_bound: true}]
verify:
  readback: {mask: 0x0100, value: 0x0100, tries: 2, delay_ms: 50}
  effect: {probe: d2h-concurrent, min_gain: 1.10, max_loss: 0.03}
revert: {from: journal}
persist: {survives_reboot: false, survives_flr: false, reapply: systemd}
risk: {level: medium, reboot_needed: false, hazards: [data-ordering], quiesce: recommended}
source: [{kind: code, ref: "pciutils lib/header.h PCI_EXP_DEVCTL2_IDO_REQ_EN", checked: 2026-11-29}]
"""
    recipe = parsed(text)
    assert recipe.match.pci is not None
    assert recipe.match.pci.classes == ("12????", "0302??")
    assert recipe.words == (("on", 0x0100),)


# -- what is refused, with its line -----------------------------------------------------------------------------------

REFUSED = [
    # text, old, new, part of the line that is named, part of the message
    (IDO, "title: let", "titel: let", "titel:", "unknown key 'titel'"),
    (IDO, "offset: 0x28", "ofset: 0x28", "access:", "unknown key 'ofset'"),
    (IDO, "min_version: 2", "minversion: 2", "access:", "unknown key 'minversion'"),
    (IDO, "{not_virtual: true}", "{not_virtuel: true}", "precheck:", "unknown key 'not_virtuel'"),
    (IDO, "hicachectl.recipe/1", "hicachectl.recipe/2", "schema:", "reads hicachectl.recipe/1"),
    (IDO, "id: pcie-ido-request", "id: PCIe", "id: PCIe", "not small letters"),
    (IDO, "id: pcie-ido-request", "id: thp-enabled", "id: thp", "no recipe's"),
    (IDO, "status: public", "status: official", "status:", "not one of public"),
    (IDO, ", width: 16", "", "access:", "'width' of access is missing"),
    (IDO, ", offset: 0x28", "", "access:", "'offset' of access is missing"),
    (IDO, "width: 16", "width: 12", "access:", "width is 12"),
    (IDO, "width: 16", "width: 32", "access:", "Device Status 2"),
    (IDO, "offset: 0x28", "offset: 0x29", "access:", "not aligned"),
    (IDO, "write: {mask: 0x0100, ", "write: {", "write:", "'mask' of write is missing"),
    (IDO, "write: {mask: 0x0100, value: 0x0100", "write: {mask: 0x0100, value: 0x0300", "write:", "outside the mask"),
    (IDO, "write: {mask: 0x0100", "write: {mask: 0x0000", "write:", "mask is"),
    (IDO, "forbid_mask: 0x0000", "forbid_mask: 0x0100", "write:", "share bits"),
    (IDO, "words: {on: 0x0100", "words: {on: 0x0300", "words:", "inside the mask"),
    (IDO, "words: {on: 0x0100, off: 0x0000}", "words: {off: 0x0000}", "words:", "has no word"),
    (IDO, "words: {on: 0x0100, off: 0x0000}", "words: {on: 0x0100, yes: 0x0100}", "words:", "value of another word"),
    (IDO, "readback: {mask: 0x0100", "readback: {mask: 0x0300", "  readback:", "read back is what was written"),
    (IDO, "on_not_implemented: skip", "on_not_implemented: go", "on_not_implemented", "not one of skip, fail"),
    (IDO, "revert: {from: journal}", "revert: {from: default}", "revert:", "not one of journal"),
    (IDO, "access: {method: pci-config", "access: {method: pci-ecap", "access:", "extended capability"),
    (IDO, "scope: per-function", "scope: per-nbio", "access:", "scope is 'per-nbio'"),
    (IDO, "{cap: 0x10, min_version: 2}", "{cap: 0x11}", "access:", "only 0x10"),
    (IDO, "{cap: 0x10, min_version: 2}", "{cap: 0x10, ecap: 0x0d}", "access:", "either cap or ecap"),
    (IDO, ", anchor: {cap: 0x10, min_version: 2}", "", "access:", "lies in the header"),
    (IDO, 'min: "3.0"', "min: 3.0", "  kernel:", "not a text"),
    (IDO, '">=2"', '"2"', "  topology:", "not such as"),
    (IDO, "vendor: any, device", "vendor: 0xzz, device", "  pci:", "hex digits"),
    (IDO, "class: any", 'class: "0x12??"', "  pci:", "6 hex digits"),
    (IDO, "kind: accelerator", "kind: gpu", "  pci:", "not one of accelerator"),
    (IDO, "[endpoint, legacy]", "[endpoint, card]", "  pci:", "not one of endpoint"),
    (IDO, "family: any", 'family: "30-20"', "  cpu:", "numbers and ranges"),
    (IDO, ", kind: accelerator, port_type: [endpoint, legacy]", "", "  pci:", "say which functions"),
    (HSMP, "family: 25", "family: any", "  cpu:", "family must not be any"),
    (IDO, "level: medium", "level: some", "risk:", "not one of low"),
    (IDO, "checked: 2026-11-29}\n  - ", "checked: yesterday}\n  - ", "  - {kind: code", "not a date"),
    (IDO, "config_readable: 256", "config_readable: lots", "precheck:", "not a number"),
    (IDO, "transactions_pending: 0", "transactions_pending: 1", "precheck:", "not a number"),
    (IDO, "not_virtual: true", "not_virtual: false", "precheck:", "leave it out"),
    (IDO, "tries: 3", "tries: 0", "  readback:", "tries is 0"),
    (IDO, "min_gain: 1.10", "min_gain: 0.5", "  effect:", "min_gain is 0.5"),
    (READ_REQUEST, "write: {mask: 0x7000, value: 0x5000, forbid_mask: 0x8000}", "write: {mask: 0xf000, value: 0x5000}", "write:", "function level reset"),
    (READ_REQUEST, "width: 16", "width: 32", "access:", "cleared by writing 1"),
    (READ_REQUEST, "offset: 0x08, width: 16", "offset: 0x09, width: 8", "access:", "16 bits at 0x08"),
    (READ_REQUEST, "offset: 0x08, width: 16", "offset: 0x08, width: 8", "access:", "16 bits at 0x08"),
    (READ_REQUEST, "write: {mask: 0x7000, value: 0x5000, ", "write: {mask: 0x7010, value: 0x5000, ", "write:", "relaxed_ordering_allowed"),
    (READ_REQUEST, "write: {mask: 0x7000, value: 0x5000, ", "write: {mask: 0x7020, value: 0x5000, ", "write:", "payload size"),
    (READ_REQUEST, "write: {mask: 0x7000, value: 0x5000, ", "write: {mask: 0x7100, value: 0x5000, ", "write:", "extended tags"),
    (IDO, "write: {mask: 0x0100, value: 0x0100", "write: {mask: 0x1100, value: 0x0100", "write:", "10-bit tags"),
    (ACS, ", {isolation_loss_allowed: true}", "", "write:", "isolation_loss_allowed"),
    (ACS, "offset: 0x06", "offset: 0x04", "access:", "read-only"),
    (ACS, "{ecap: 0x0d}", "{ecap: 0x23}", "access:", "only 0x0d"),
    (PAYLOAD, "readback: {mask: 0x00e0}", "readback: {tries: 2}", "  readback:", "needs the mask"),
    (PAYLOAD, "readback: {mask: 0x00e0}", "readback: {mask: 0xe0000}", "  readback:", "within 16 bits"),
    (PAYLOAD, '"256": 0x0020', '"256": 0x0120', "words:", "outside the mask"),
    (MSR, "width: 64", "width: 32", "access:", "width is 32"),
    (MSR, "offset: 0xc8b", "offset: 0xc8b, anchor: {cap: 0x10}", "access:", "msr has no anchor"),
    (HSMP, "offset: 0x12", "offset: 0x05", "access:", "cannot be undone"),
    (HSMP, "instances: [0, 1, 2, 3]", "instances: [0, 0]", "access:", "different numbers"),
    (MODULE, "parameter: NVreg_EnablePCIERelaxedOrderingMode", 'parameter: "a b"', "access:", "letters, digits"),
    (MODULE, 'write: {value: "1"}', "write: {value: 1}", "write:", "not a text"),
    (MODULE, 'write: {value: "1"}', 'write: {value: "1", mask: 0x1}', "write:", "unknown key 'mask'"),
    (MODULE, 'write: {value: "1"}', 'write: {value: "1\\ninstall nvidia /bin/evil"}', "write:", "one word"),
    (MODULE, 'off: "0"', 'off: "0 b=1"', "words:", "one word"),
    (MODULE, 'off: "0"', 'off: "0\\\\"', "words:", "one word"),
    (MOUNT, 'on: "advise"', 'on: "advise,size=1k"', "words:", "never, always, within_size or advise"),
    (MOUNT, 'off: "never"', 'off: "deny"', "words:", "never, always, within_size or advise"),
    (MOUNT, 'write: {value: "advise"}', 'write: {value: "advise,size=1k"}', "write:", "never, always, within_size or advise"),
    (SYSFS, 'write: {value: "1"}', 'write: {value: "1\\n2"}', "write:", "one line"),
    (IDO, "offset: 0x28", "offset: 0x3c", "access:", "past the PCI Express capability"),
    (ACS, "offset: 0x06", "offset: 0x28", "access:", "past the access control capability"),
    (MODULE, "module: nvidia", "module: nvidia, width: 8", "access:", "module-param has no width"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "old", "new", "at", "says"), REFUSED, ids=[f"{new[:40]}" for _, _, new, _, _ in REFUSED]
)
def test_a_wrong_recipe_is_refused_with_its_line(text: str, old: str, new: str, at: str, says: str) -> None:
    wrong = changed(text, old, new)
    recipe, problems = parse_recipe(wrong.encode(), "a.yaml")
    assert recipe is None
    found = [p for p in problems if says in p.what]
    assert found, [str(p) for p in problems]
    assert found[0].where == f"a.yaml:{line_of(wrong, at)}"


@pytest.mark.parametrize("key", ["schema", "id", "title", "status", "match", "access", "write", "verify", "revert", "risk", "source", "on_not_implemented"])  # fmt: skip
def test_a_recipe_without_one_of_its_parts_is_refused(key: str) -> None:
    document = {name: value for name, value in yaml.load(IDO, Loader=yaml.BaseLoader).items() if name != key}
    _, problems = parse_recipe(yaml.safe_dump(document).encode(), "a.yaml")
    assert any(f"key {key!r}" in p.what and "missing" in p.what for p in problems)


@pytest.mark.parametrize("method", ["bios", "nv-firmware"])
def test_a_firmware_setting_is_never_written(method: str) -> None:
    text = changed(recipe_data("mlx-wr-ordering").decode(), "write: null", 'write: {value: "1"}')
    text = changed(text, "method: nv-firmware, scope: per-function", f"method: {method}, scope: host")
    recipe, problems = parse_recipe(text.encode(), "a.yaml")
    assert recipe is None
    assert any("only reported" in p.what and p.where == f"a.yaml:{line_of(text, 'write:')}" for p in problems)


def test_a_public_recipe_needs_a_source_and_a_confidential_one_does_not() -> None:
    bare = IDO[: IDO.index("source:")] + "source: []\n"
    _, problems = parse_recipe(bare.encode(), "a.yaml")
    assert [(p.what, p.where) for p in problems] == [
        ("a public recipe needs a source", f"a.yaml:{line_of(bare, 'source:')}")
    ]
    assert parsed(changed(bare, "status: public", "status: vendor-confidential")).sources == ()


def test_the_nearest_name_of_an_unknown_key_is_offered() -> None:
    _, problems = parse_recipe(changed(IDO, "offset: 0x28", "ofset: 0x28").encode(), "a.yaml")
    assert "did you mean 'offset'?" in [p.hint for p in problems]


def test_all_problems_are_told_in_the_order_of_lines() -> None:
    wrong = changed(changed(IDO, "status: public", "status: x"), "level: medium", "level: y")
    _, problems = parse_recipe(wrong.encode(), "a.yaml")
    assert [p.where for p in problems] == [f"a.yaml:{line_of(wrong, 'status:')}", f"a.yaml:{line_of(wrong, 'risk:')}"]


def test_a_blank_of_a_template_is_refused_with_its_line() -> None:
    wrong = changed(IDO, "offset: 0x28", 'offset: "<offset, hex>"')
    _, problems = parse_recipe(wrong.encode(), "a.yaml")
    assert [(p.what, p.where) for p in problems] == [
        ("<offset, hex> is a blank", f"a.yaml:{line_of(wrong, 'access:')}")
    ]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b"a: [", b"a: &x 1\nb: *x\n", b"- 1\n", b"write: {}\n"])
def test_what_is_no_recipe_at_all_is_refused(data: bytes) -> None:
    recipe, problems = parse_recipe(data, "a.yaml")
    assert recipe is None
    assert problems


# -- laws -----------------------------------------------------------------------------------------------------------------

GOOD = {name: parsed(text) for name, text in (("ido", IDO), ("mrrs", READ_REQUEST), ("acs", ACS))}
TEXTS = {"ido": IDO, "mrrs": READ_REQUEST, "acs": ACS}


def never_wider(name: str, text: str) -> None:
    """An edited recipe is refused, or writes no bit that the good one does not, at the same width and never a reset bit."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    recipe, problems = parse_recipe(data, "a.yaml")
    assert (recipe is None) == bool(problems)
    if recipe is None or recipe.value is None:
        return
    good = GOOD[name]
    assert recipe.reach.method is good.reach.method
    assert recipe.reach.width == good.reach.width
    assert isinstance(recipe.value, int)
    assert recipe.mask == good.mask
    assert recipe.value & ~recipe.mask == 0
    assert all(isinstance(v, int) and v & ~recipe.mask == 0 for _, v in recipe.words)
    if recipe.reach.offset == 8 and recipe.reach.capability == 0x10:
        assert recipe.forbidden & 0x8000
        assert not recipe.mask & 0x8000


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(sorted(TEXTS)),
    st.integers(0, 3000),
    st.sampled_from(["drop", "put", "swap", "line"]),
    st.characters(),
)
@example("ido", IDO.index("0x0100, value") + 2, "swap", "1")
@example("mrrs", READ_REQUEST.index("0x7000, value") + 2, "swap", "f")
@example("acs", ACS.index("0x001c, value") + 5, "swap", "f")
def test_an_edited_recipe_is_refused_or_writes_no_more_than_before(name: str, at: int, how: str, char: str) -> None:
    text = TEXTS[name]
    at %= len(text)
    if how == "line":
        lines = text.splitlines(keepends=True)
        del lines[at % len(lines)]
        text = "".join(lines)
    else:
        text = text[:at] + ("" if how == "drop" else char) + text[at + (how != "put") :]
    never_wider(name, text)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a document, the inner ones too."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += leaves(item, (*at, key))
    return found


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 1 << 70), st.floats(), st.text(max_size=8), st.sampled_from([[], {}, [1], {"a": 1}, "0xffff", "any"])
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 500), ODD)
def test_a_recipe_with_any_other_value_somewhere_is_refused_or_writes_no_more(name: str, which: int, odd: Any) -> None:
    document = yaml.load(TEXTS[name], Loader=yaml.BaseLoader)
    paths = leaves(document)
    *way, last = paths[which % len(paths)]
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = odd
    never_wider(name, yaml.safe_dump(document, allow_unicode=True))


# -- the folder of a vendor -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "etc" / "hicachectl" / "recipes.d"
    made.mkdir(parents=True)
    made.chmod(0o755)
    return made


VENDOR = changed(
    changed(IDO, "id: pcie-ido-request", "id: hygon-rc-order"), "status: public", "status: vendor-confidential"
)


def put(folder: Path, name: str, text: str = VENDOR, mode: int = 0o644) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def load(folder: Path, owner: int = HERE) -> tuple[Recipe, ...]:
    root = HostRoot(folder.parents[2], name="made-up")
    return load_recipes(Path("/etc/hicachectl/recipes.d"), root=root, owner=owner)


def test_a_vendors_recipe_comes_after_the_shipped_ones_with_the_hash_of_its_bytes(folder: Path) -> None:
    path = put(folder, "b.yaml")
    *shipped, vendor = load(folder)
    assert [r.id for r in shipped] == list(recipe_names())
    assert (vendor.id, vendor.knob, vendor.shipped) == ("hygon-rc-order", "hygon.rc-order", False)
    assert vendor.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert vendor.where == str(path)


def test_a_folder_that_is_not_there_holds_no_recipes(tmp_path: Path) -> None:
    root = HostRoot(tmp_path, name="made-up")
    assert load_recipes(root=root) == load_shipped() == load_recipes(None)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o777, 0o620])
def test_a_file_that_others_may_write_is_refused_with_owner_mode_and_the_line_that_mends_it(
    folder: Path, mode: int
) -> None:
    path = put(folder, "a.yaml", mode=mode)
    with pytest.raises(ProfileError) as caught:
        load(folder)
    error = caught.value
    assert error.where == str(path)
    assert f"owner uid {HERE}, mode {mode:04o}" in error.what
    assert error.hint is not None
    assert f"chmod 0644 {path}" in error.hint


def test_a_file_of_another_owner_is_refused_with_the_line_that_mends_it(folder: Path) -> None:
    put(folder, "a.yaml")
    with pytest.raises(ProfileError) as caught:
        load(folder, owner=HERE + 1)
    assert caught.value.where == str(folder)  # the folder is looked at first
    assert f"owner uid {HERE}, mode 0755" in caught.value.what
    assert f"chown {HERE + 1} {folder}" in (caught.value.hint or "")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    put(folder, "a.yaml")
    folder.chmod(mode)
    with pytest.raises(ProfileError) as caught:
        load(folder)
    assert caught.value.where == str(folder)
    assert f"chmod 0755 {folder}" in (caught.value.hint or "")


def test_a_link_a_pipe_and_a_folder_are_no_recipes(folder: Path, tmp_path: Path) -> None:
    elsewhere = put(tmp_path, "elsewhere.yaml")
    (folder / "a.yaml").symlink_to(elsewhere)
    with pytest.raises(ProfileError, match="is a link"):
        load(folder)
    (folder / "a.yaml").unlink()
    os.mkfifo(folder / "a.yaml")
    with pytest.raises(ProfileError, match="is not a file"):
        load(folder)
    (folder / "a.yaml").unlink()
    (folder / "a.yaml").mkdir()
    with pytest.raises(ProfileError, match="is not a file"):
        load(folder)


def test_hidden_files_and_other_kinds_are_not_looked_at(folder: Path) -> None:
    put(folder, ".a.yaml.swp", "nonsense", 0o666)
    put(folder, "README", "nonsense", 0o666)
    assert load(folder) == load_shipped()


def test_a_vendors_recipe_never_replaces_another_one(folder: Path) -> None:
    put(folder, "a.yaml", IDO)
    with pytest.raises(ProfileError, match="id pcie-ido-request") as caught:
        load(folder)
    assert "profiles/recipes/pcie-ido-request.yaml" in caught.value.what
    put(folder, "a.yaml", changed(VENDOR, "title: let", "knob: pcie.ido-request\ntitle: let"))
    with pytest.raises(ProfileError, match=r"knob pcie\.ido-request"):
        load(folder)
    put(folder, "a.yaml")
    put(folder, "b.yml")
    with pytest.raises(ProfileError, match="id hygon-rc-order"):
        load(folder)


def test_the_first_problem_of_a_vendors_file_is_raised_with_its_line_and_how_many_more(folder: Path) -> None:
    wrong = changed(changed(VENDOR, "level: medium", "level: y"), "offset: 0x28", "ofset: 0x28")
    path = put(folder, "a.yaml", wrong)
    with pytest.raises(ProfileError) as caught:
        load(folder)
    assert caught.value.where == f"{path}:{line_of(wrong, 'access:')}"
    assert "3 more" in (caught.value.hint or "")


@pytest.mark.skipif(HERE == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_says_so(folder: Path) -> None:
    put(folder, "a.yaml", mode=0o000)
    with pytest.raises(PermissionDenied):
        load(folder)


def test_a_recipe_of_a_mount_and_one_of_a_file_are_recipes() -> None:
    assert parsed(MOUNT).words == (("on", "advise"), ("off", "never"))
    assert parsed(SYSFS.replace('"1"', '"1 2 3"')).value == "1 2 3"

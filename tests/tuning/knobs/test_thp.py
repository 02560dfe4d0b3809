"""Transparent huge pages: the word that counts, the numbers behind auto, and why a place is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts.spec import GIB, HostSpec, NodeSpec
from knob_looks import THP, items, look, one, small, wants

from hicachectl.tuning.item import Item, ItemKind
from hicachectl.tuning.knobs.thp import has_room, settle
from hicachectl.tuning.knobs.thp_sizes import effective, pinned_word
from hicachectl.tuning.sight import Sight


def thp(**files: str | None) -> dict[str, str]:
    """Return the folder's files: `/` is written __ and - is written _, None takes a file away."""
    found = dict(small().thp)
    for name, text in files.items():
        path = name.replace("__", "/").replace("hugepages_", "hugepages-")
        found.pop(path, None)
        if text is not None:
            found[path] = text
    return found


def with_thp(**files: str | None) -> HostSpec:
    return small(thp=thp(**files))


def test_never_becomes_madvise_and_a_mapping_will_show_it(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    item = one(look(tmp_path, with_thp(enabled="always madvise [never]"), choices), choices, "thp.enabled")
    assert (item.kind, item.old, item.wanted, item.new) == (ItemKind.CHANGE, "never", ("madvise",), "madvise")
    assert (item.proof, item.undo) == ("thp-anonymous", "yes: never is written back")
    assert any("restart the engine" in note for note in item.notes)
    assert "effective for the huge size after this plan: madvise" in item.notes


def test_madvise_is_the_same_and_always_is_not(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    assert one(look(tmp_path / "a", small(), choices), choices, "thp.enabled").kind is ItemKind.SAME
    item = one(look(tmp_path / "b", with_thp(enabled="[always] madvise never"), choices), choices, "thp.enabled")
    assert (item.kind, item.new) == (ItemKind.CHANGE, "madvise")


def test_a_value_the_command_line_pins_is_a_skip_and_no_pass(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    spec = replace(with_thp(enabled="always madvise [never]"), cmdline="ro transparent_hugepage=never")
    item = one(look(tmp_path, spec, choices), choices, "thp.enabled")
    assert (item.kind, item.code, item.old) == (ItemKind.SKIP, "HC-PINNED", "never")
    assert (
        item.reason is not None
        and "PINNED: transparent_hugepage=never" in item.reason
        and "madvise is wanted" in item.reason
    )
    assert item.remedy is not None and "set tune.thp.enabled to null" in item.remedy
    assert item.owners[0].name == "kernel command line"


def test_a_pinned_value_that_is_the_wanted_one_is_the_same_and_says_who_set_it(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    item = one(look(tmp_path, small(cmdline="transparent_hugepage=madvise"), choices), choices, "thp.enabled")
    assert item.kind is ItemKind.SAME
    assert "set by transparent_hugepage=madvise on the kernel command line" in item.notes


def test_a_kernel_without_huge_pages_is_unsupported(tmp_path: Path) -> None:
    choices = wants(
        "thp.enabled=madvise", "thp.defrag=auto", "thp.shmem=advise", "thp.size.2048kB=inherit", "khugepaged.defrag=1"
    )
    found = items(look(tmp_path, small(thp={}), choices), choices)
    assert len(found) == 5
    for item in found:
        assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")
        assert item.reason is not None and "CONFIG_TRANSPARENT_HUGEPAGE" in item.reason


def test_a_container_that_hides_the_folder_is_sent_to_the_host(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    item = one(look(tmp_path, small(thp={}, container=True), choices), choices, "thp.enabled")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-CONTAINER")
    assert item.remedy == "run hicachectl on the host, outside of the container"


def read_only(spec: HostSpec, folder: Path, words: str) -> HostSpec:
    """Return the host with one more mount in its table: /sys or /proc/sys, read-only."""
    from hosts.builder import build_root

    table = (build_root(folder / "plain", spec) / "proc/self/mountinfo").read_text(encoding="utf-8")
    return replace(spec, files={"/proc/self/mountinfo": f"{table}{words}\n".encode()})


@pytest.mark.parametrize(("container", "code"), [(True, "HC-CONTAINER"), (False, "HC-DENIED")])
def test_a_read_only_sys_is_told_in_the_plan(container: bool, code: str, tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise", "thp.shmem=never", "numa.balancing=1")
    spec = replace(with_thp(enabled="always madvise [never]"), container=container)
    sight = look(tmp_path, read_only(spec, tmp_path, "90 21 0:21 / /sys ro,nosuid - sysfs sysfs rw"), choices)
    item = one(sight, choices, "thp.enabled")
    assert (item.kind, item.code) == (ItemKind.SKIP, code)
    assert item.reason is not None and "read-only mount" in item.reason and "(/sys)" in item.reason
    assert one(sight, choices, "thp.shmem").kind is ItemKind.SAME  # what is there already needs no write
    assert one(sight, choices, "numa.balancing").kind is ItemKind.CHANGE  # /proc/sys is another mount


def test_a_word_the_kernel_does_not_offer_is_skipped_with_those_it_does(tmp_path: Path) -> None:
    choices = wants("thp.defrag=defer+madvise")
    item = one(look(tmp_path, with_thp(defrag="[always] madvise never"), choices), choices, "thp.defrag")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")
    assert item.reason == f"defer+madvise is not to be had: {THP}/defrag offers always, madvise, never"


def test_a_word_no_kernel_knows_is_skipped_even_where_nobody_read_the_offers(tmp_path: Path) -> None:
    choices = wants("thp.enabled=sometimes")
    sight = look(tmp_path, small(), choices)
    item = one(Sight(sight.machine, sight.values), choices, "thp.enabled")
    assert item.kind is ItemKind.SKIP
    assert item.reason == "sometimes is not to be had: the kernel documents always, madvise, never"


# -- defrag ------------------------------------------------------------------------------------------------------------


def roomy(*blocks: int | None) -> HostSpec:
    nodes = tuple(NodeSpec(i, f"{i}", 8 * GIB, 4 * GIB, free_huge_blocks=n) for i, n in enumerate(blocks))
    return small(nodes=nodes, thp=thp(defrag="always defer defer+madvise [madvise] never"))


@pytest.mark.parametrize(
    ("blocks", "choice", "word", "numbers"),
    [
        ((1024, 1024), "auto", "defer+madvise", "node 0 has 2.0 GiB in free huge blocks and 2.0 GiB are needed"),
        ((1024, 1023), "auto", "defer", "node 1 has 2.0 GiB in free huge blocks and 2.0 GiB are needed"),
        ((2048, 0), "auto", "defer", "node 1 has 0 B in free huge blocks"),
        ((1024, 1024), "auto:3GiB", "defer", "and 3.0 GiB are needed (the tightest of 2)"),
        ((512, 512), "auto:1GiB", "defer+madvise", "and 1.0 GiB are needed"),
    ],
)  # fmt: skip
def test_auto_compacts_in_the_fault_only_where_every_node_has_room(
    blocks: tuple[int, ...], choice: str, word: str, numbers: str, tmp_path: Path
) -> None:
    choices = wants(f"thp.defrag={choice}")
    item = one(look(tmp_path, roomy(*blocks), choices), choices, "thp.defrag")
    assert (item.kind, item.wanted) == (ItemKind.CHANGE, (word,))
    assert item.notes[0].startswith(f"auto: {word}, since ") and numbers in item.notes[0]
    assert item.proof == ""


def test_a_node_this_process_may_not_use_does_not_count(tmp_path: Path) -> None:
    choices = wants("thp.defrag=auto")
    item = one(look(tmp_path, replace(roomy(1024, 0), mems_allowed="0"), choices), choices, "thp.defrag")
    assert item.wanted == ("defer+madvise",)


def test_unknown_free_blocks_are_no_room_and_the_reason_is_told(tmp_path: Path) -> None:
    choices = wants("thp.defrag=auto")
    spec = replace(roomy(1024), files={"/proc/buddyinfo": b"nonsense\n"})
    item = one(look(tmp_path, spec, choices), choices, "thp.defrag")
    assert item.wanted == ("defer",)
    assert "free huge blocks of node 0 are not known" in item.notes[0] and "/proc/buddyinfo" in item.notes[0]


def test_auto_falls_back_to_defer_where_the_kernel_has_no_defer_madvise(tmp_path: Path) -> None:
    choices = wants("thp.defrag=auto")
    spec = replace(roomy(1024), thp=thp(defrag="always defer [madvise] never"))
    item = one(look(tmp_path, spec, choices), choices, "thp.defrag")
    assert (item.kind, item.wanted) == (ItemKind.CHANGE, ("defer",))
    assert "offers no defer+madvise" in item.notes[0]


def test_a_need_that_is_no_size_is_skipped(tmp_path: Path) -> None:
    choices = wants("thp.defrag=auto:much")
    item = one(look(tmp_path, small(), choices), choices, "thp.defrag")
    assert item.kind is ItemKind.SKIP and item.remedy == "write auto, or auto:SIZE such as auto:64GiB"


def test_no_node_is_no_room(tmp_path: Path) -> None:
    sight = look(tmp_path, small(nodes=()), wants("thp.defrag=auto"))
    assert has_room(sight.machine, None) == (False, "no memory node of this process is known")


# -- shmem_enabled -------------------------------------------------------------------------------------------------------


def shmem(tmp_path: Path, words: str, choice: str = "advise", **files: str | None) -> Item:
    choices = wants(f"thp.shmem={choice}")
    return one(look(tmp_path, with_thp(shmem_enabled=words, **files), choices), choices, "thp.shmem")


def test_memfd_gets_advise_and_the_notes_say_that_dev_shm_does_not(tmp_path: Path) -> None:
    item = shmem(tmp_path, "always within_size advise [never] deny force")
    assert (item.kind, item.new, item.proof) == (ItemKind.CHANGE, "advise", "thp-shmem")
    assert any("not /dev/shm" in note for note in item.notes)


@pytest.mark.parametrize("word", ["within_size", "always"])
def test_what_gives_more_than_advise_stays(word: str, tmp_path: Path) -> None:
    item = shmem(tmp_path, f"[{word}] advise never deny force")
    assert (item.kind, item.old) == (ItemKind.SAME, word)
    assert f"{word} does as well as advise" in item.notes


def test_never_is_never_alone(tmp_path: Path) -> None:
    item = shmem(tmp_path, "[always] within_size advise never deny force", "never")
    assert (item.kind, item.new, item.proof) == (ItemKind.CHANGE, "never", "")


def test_deny_is_changed_and_its_reach_is_told(tmp_path: Path) -> None:
    item = shmem(tmp_path, "always within_size advise never [deny] force")
    assert item.new == "advise" and any(note.startswith("deny overrides every tmpfs mount") for note in item.notes)


def test_a_file_of_the_huge_size_that_says_never_takes_the_proof_away(tmp_path: Path) -> None:
    item = shmem(
        tmp_path,
        "always within_size advise [never] deny force",
        hugepages_2048kB__shmem_enabled="always inherit within_size advise [never]",
    )
    assert item.proof == "" and any("follow their own file, which says never" in note for note in item.notes)


# -- sizes -------------------------------------------------------------------------------------------------------------

SIZE = "hugepages_2048kB__enabled"


def test_always_below_never_still_gives_huge_pages_and_is_told(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise", "thp.size.2048kB=inherit")
    spec = with_thp(enabled="always madvise [never]", **{SIZE: "[always] inherit madvise never"})
    size, above = items(look(tmp_path, spec, choices), choices)
    assert (size.id, size.kind, size.new) == ("thp.size.2048kB", ItemKind.CHANGE, "inherit")
    assert size.notes[0] == "effective for 2.0 MiB: always now, never after (enabled above says never)"
    assert size.proof == ""  # until the file above is written
    assert (above.id, above.proof) == ("thp.enabled", "thp-anonymous")


def test_the_file_above_proves_nothing_while_the_size_says_never(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise")
    spec = with_thp(enabled="always madvise [never]", **{SIZE: "always inherit madvise [never]"})
    item = one(look(tmp_path, spec, choices), choices, "thp.enabled")
    assert (item.kind, item.proof) == (ItemKind.CHANGE, "")
    assert (
        "effective for the huge size after this plan: never" in item.notes[0]
        and "thp.sizes: 2048kB=inherit" in item.notes[0]
    )


def test_a_size_that_only_filters_drop_does_not_count_as_changed(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise", "thp.size.2048kB=inherit", only=("thp.enabled",))
    spec = with_thp(enabled="always madvise [never]", **{SIZE: "always inherit madvise [never]"})
    assert one(look(tmp_path, spec, choices), choices, "thp.enabled").proof == ""


@pytest.mark.parametrize(
    ("files", "said"),
    [({"hugepages_2048kB__enabled": None, "hugepages_64kB__enabled": None, "hugepages_2048kB__shmem_enabled": None}, "Linux 6.8"), ({SIZE: None}, "hugepages-64kB")],
)  # fmt: skip
def test_a_size_this_kernel_has_not_is_skipped(files: dict[str, str | None], said: str, tmp_path: Path) -> None:
    choices = wants("thp.size.2048kB=madvise")
    item = one(look(tmp_path, with_thp(**files), choices), choices, "thp.size.2048kB")
    assert (item.kind, item.code) == (ItemKind.SKIP, "HC-UNSUPPORTED")
    assert item.reason is not None and said in item.reason


def test_a_size_pinned_at_boot_is_skipped_and_another_is_not(tmp_path: Path) -> None:
    choices = wants("thp.size.64kB=madvise", "thp.size.2048kB=madvise")
    found = items(look(tmp_path, small(cmdline="thp_anon=16K-64K:never"), choices), choices)
    assert [(item.kind, item.code) for item in found] == [(ItemKind.SKIP, "HC-PINNED"), (ItemKind.CHANGE, None)]
    assert found[0].reason is not None and "PINNED: thp_anon=16K-64K:never" in found[0].reason


@pytest.mark.parametrize(
    ("text", "n_kib", "word"),
    [("64K:always", 64, "always"), ("1M-2M:never", 2048, "never"), ("64K:always,2M:madvise", 2048, "madvise"), ("64K:always,2M:madvise", 64, "always"),
     ("x:always", 64, None), ("", 64, None), ("64:always", 64, None)],
)  # fmt: skip
def test_thp_anon_is_read_as_the_kernel_documents_it(text: str, n_kib: int, word: str | None) -> None:
    assert pinned_word(text, n_kib) == word


def test_only_inherit_follows() -> None:
    assert [effective(own, "madvise") for own in ("inherit", None, "never", "always")] == [
        "madvise",
        "madvise",
        "never",
        "always",
    ]


# -- khugepaged --------------------------------------------------------------------------------------------------------


def test_khugepaged_compacts_and_more_pages_than_asked_stay(tmp_path: Path) -> None:
    choices = wants("khugepaged.defrag=1", "khugepaged.pages-to-scan=4096")
    spec = with_thp(khugepaged__defrag="0", khugepaged__pages_to_scan="8192")
    compact, pages = items(look(tmp_path, spec, choices), choices)
    assert (compact.kind, compact.old, compact.new) == (ItemKind.CHANGE, "0", "1")
    assert (pages.kind, pages.old) == (ItemKind.SAME, "8192")


def test_fewer_pages_are_raised_and_nonsense_is_not_written(tmp_path: Path) -> None:
    choices = wants("khugepaged.pages-to-scan=16384")
    item = one(look(tmp_path / "a", small(), choices), choices, "khugepaged.pages-to-scan")
    assert (item.kind, item.old, item.new) == (ItemKind.CHANGE, "4096", "16384")
    odd = wants("khugepaged.pages-to-scan=-1")
    assert one(look(tmp_path / "b", small(), odd), odd, "khugepaged.pages-to-scan").kind is ItemKind.SKIP


def test_settled_choices_say_the_word_that_room_chose_so_that_a_fuller_host_still_fits_the_plan(tmp_path: Path) -> None:
    choices = wants("thp.defrag=auto", "thp.enabled=madvise")
    roomy_now, full = look(tmp_path / "a", roomy(1024), choices), look(tmp_path / "b", roomy(0), choices)
    settled = settle(choices, roomy_now)
    assert settled.wanted["thp.defrag"].value == "defer+madvise"
    assert "auto: defer+madvise, since node 0 has 2.0 GiB" in settled.wanted["thp.defrag"].reason
    assert settled.wanted["thp.enabled"] == choices.wanted["thp.enabled"]
    for sight in (roomy_now, full):
        assert one(sight, settled, "thp.defrag").wanted == ("defer+madvise",)
    assert settle(choices, full).wanted["thp.defrag"].value == "defer"
    assert settle(settled, full) == settled


def test_where_the_huge_size_says_never_the_file_above_is_no_pass(tmp_path: Path) -> None:
    spec = with_thp(**{SIZE: "always inherit madvise [never]"})
    alone = wants("thp.enabled=madvise")
    item = one(look(tmp_path / "a", spec, alone), alone, "thp.enabled")
    assert (item.kind, item.code, item.old) == (ItemKind.SKIP, "HC-THP-OFF", "madvise")
    assert item.reason is not None and "own file, which says never" in item.reason
    assert item.remedy is not None and "2048kB=inherit" in item.remedy
    both = wants("thp.enabled=madvise", "thp.size.2048kB=inherit")
    size, above = items(look(tmp_path / "b", spec, both), both)
    assert (size.kind, size.new, above.kind) == (ItemKind.CHANGE, "inherit", ItemKind.SAME)


def test_on_a_kernel_without_a_file_a_size_inherit_is_what_is_there_and_no_item(tmp_path: Path) -> None:
    choices = wants("thp.enabled=madvise", "thp.size.2048kB=inherit")
    none = dict.fromkeys(("hugepages_2048kB__enabled", "hugepages_64kB__enabled", "hugepages_2048kB__shmem_enabled"))
    assert [item.id for item in items(look(tmp_path, with_thp(**none), choices), choices)] == ["thp.enabled"]


def test_why_is_the_reason_of_the_choice_and_not_that_of_another_value(tmp_path: Path) -> None:
    choices = wants("thp.enabled=always", "khugepaged.defrag=0")
    for item in items(look(tmp_path / "a", small(), choices), choices):
        assert item.why == "a test"
    ours = wants("thp.enabled=madvise", "khugepaged.defrag=1")
    for item in items(look(tmp_path / "b", small(), ours), ours):
        assert "docs/facts.md#" in item.why

from __future__ import annotations

from pathlib import Path

import pytest

from hicachectl.errors import PermissionDenied, UsageError
from hicachectl.yaml_marks import MAX_FILE_BYTES, parse_marked, read_marked


def test_every_value_knows_its_line() -> None:
    doc = parse_marked("run:\n  seed: 1\n  compute:\n    a_s: 2.0\n    list: [1,\n      2]\n", "f.yaml")
    assert doc.where(("run", "seed")) == "f.yaml:2"
    assert doc.where(("run", "compute", "a_s")) == "f.yaml:4"
    assert doc.where(("run", "compute", "list", 1)) == "f.yaml:6"
    assert doc.where(("run", "compute", "absent")) == "f.yaml:3"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("no", "no"), ("yes", "yes"), ("true", True), ("False", False), ("", None), ("~", None), ("null", None),
        ("010", 10), ("0x10", "0x10"), ("1_000", "1_000"), ("1:30", "1:30"), ("-3", -3), ("1e-6", 1e-6), ("2.5", 2.5), (".5", 0.5),
        ("2026-11-29", "2026-11-29"), (".inf", ".inf"), (".nan", ".nan"), ("'512'", "512"), ('"~"', "~"), ("sample:10", "sample:10"),
    ],
)  # fmt: skip
def test_plain_words_follow_yaml_1_2_and_quoted_ones_stay_text(text: str, value: object) -> None:
    read = parse_marked(f"k: {text}\n", "f.yaml").value
    assert read == {"k": value}
    assert type(read["k"]) is type(value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3", "key 'a' is given twice"),
        ("a: &x 1\nb: *x\n", "f:1", "anchors and aliases"),
        ("a: !!python/object:os.system 1\n", "f:1", "tags are not used"),
        ("a: 1\n---\nb: 2\n", "f:2", "second document"),
        ("a:\n  1: x\n", "f:2", "key '1' is not text"),
        ("? [a]\n: 1\n", "f:1", "is not text"),
        ("a: [1\n", "f:2", "not YAML"),
        ("a: 1\n\tb: 2\n", "f:2", "not YAML"),
        ("a: 1\nb: \x07\n", "f:2", "not YAML"),
        ("[" * 20000, "f:1", "levels deep"),
    ],
)
def test_what_hides_a_mistake_is_refused_with_its_line(text: str, where: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_marked(text, "f")
    assert caught.value.where == where
    assert what in caught.value.what


def test_a_second_key_names_the_line_of_the_first() -> None:
    with pytest.raises(UsageError) as caught:
        parse_marked("run:\n  seed: 1\n  seed: 2\n", "f")
    assert caught.value.why == "first on line 2"


def test_a_missing_file_a_folder_a_huge_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    huge, binary = tmp_path / "huge.yaml", tmp_path / "binary.yaml"
    with huge.open("wb") as f:
        f.truncate(MAX_FILE_BYTES + 1)
    binary.write_bytes(b"a: \xff\n")
    for path, what in (
        (tmp_path / "absent.yaml", "no such file"), (huge / "x.yaml", "no such file"), (tmp_path, "folder"), (huge, "larger than"),
        (Path("/dev/zero"), "larger than"), (binary, "not UTF-8"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=what) as caught:
            read_marked(path)
        assert caught.value.where == str(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfrun:\n")
    assert read_marked(path).value == {"run": None}


def test_an_unreadable_file_is_a_matter_of_privilege() -> None:
    class Unreadable(type(Path())):  # type: ignore[misc]
        def open(self, mode: str) -> object:  # type: ignore[override]
            raise PermissionError(13, "Permission denied", str(self))

    with pytest.raises(PermissionDenied, match="cannot be read"):
        read_marked(Unreadable(__file__))


def test_an_empty_file_is_no_value() -> None:
    assert parse_marked("# nothing\n", "f").value is None

from __future__ import annotations

import pytest

from hicachectl.tuning.host.id_lists import parse_id_list, parse_id_mask


@pytest.mark.parametrize(
    ("text", "ids"),
    [("", ()), ("\n", ()), ("5", (5,)), ("0-3,8", (0, 1, 2, 3, 8)), ("2,0-1, 2", (0, 1, 2)), ("0,\n7", (0, 7))],
)
def test_a_list_gives_its_ids_once_and_sorted(text: str, ids: tuple[int, ...]) -> None:
    assert parse_id_list(text) == ids


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-4294967295", "1:2", "٣", "0x1"])
def test_what_is_no_list_is_refused_and_never_expanded(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an id|backwards"):
        parse_id_list(text)


@pytest.mark.parametrize(
    ("text", "ids"), [("0", ()), ("f", (0, 1, 2, 3)), ("1,00000003", (0, 1, 32)), ("00000000,8", (3,))]
)
def test_a_mask_has_its_highest_word_first(text: str, ids: tuple[int, ...]) -> None:
    assert parse_id_mask(text) == ids


@pytest.mark.parametrize("text", ["", "g", "123456789", "-1", "1,,1", "f" + ",00000000" * 3000])
def test_what_is_no_mask_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"mask|invalid literal"):
        parse_id_mask(text)

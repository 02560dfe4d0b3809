"""Prefill times: read strictly from an operator's file, or measured on layers of a model's shape."""

from __future__ import annotations

import pytest

from hicachectl.errors import UsageError
from hicachectl.runtime.geometry import PRESETS, KVKind, preset
from hicachectl.runtime.probes.fits import QUADRATIC, Timing, fit
from hicachectl.runtime.probes.prefill_file import parse_prefill
from hicachectl.runtime.probes.prefill_stack import SHAPES, ModelShape, model_shape, time_stack
from hicachectl.runtime.probes.stopping import ProbeStopped

SMALL = ModelShape("small", n_layers=3, hidden=32, n_heads=4, n_kv_heads=2, head_dim=8, intermediate=48)
WANTED = [Timing(1000, 0.0359), Timing(2000, 0.0667), Timing(2000, 1.0)]


class Clock:
    """A second passes at each look, `step` seconds when that is given."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.parametrize(
    "text",
    [
        "tokens,seconds\n1000,0.0359\n\n2000,0.0667\n2000,1\n",
        "\ufefftokens,seconds\r\n1000,0.0359\r\n2000,0.0667\r\n2000,1\r\n",
        "\ufeff[[1000, 0.0359], [2000, 0.0667], [2000, 1]]",
        "seconds, tokens\r\n0.0359,1000\r\n0.0667,2000\r\n1,2000\r\n",
        '[{"tokens": 1000, "seconds": 0.0359}, {"seconds": 0.0667, "tokens": 2000}, [2000, 1]]',
    ],
)
def test_csv_and_json_give_the_same_samples(text: str) -> None:
    assert parse_prefill(text, "times") == WANTED


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "the first line is ''", "t:1"),
        ("tokens,seconds\n", "no prefill time", "t"),
        ("tokens,ms\n1,2\n", "the first line is 'tokens,ms'", "t:1"),
        ("tokens,seconds\n1000\n", "1 values, not 2", "t:2"),
        ("tokens,seconds\n1000,1\n1e3,1\n", "tokens is 1000.0, not a whole number", "t:3"),
        ("tokens,seconds\n1000,fast\n", "seconds is 'fast', not a number from 1e-09 to 1e+06", "t:2"),
        ("tokens,seconds\n1000,nan\n", "seconds is nan", "t:2"),
        ("tokens,seconds\n1000,0\n", "seconds is 0, not a number from 1e-09 to 1e+06", "t:2"),
        ("tokens,seconds\n1000,1e-300\n", "seconds is 1e-300, not a number from 1e-09", "t:2"),
        ("tokens;seconds\n1000;1\n", "the first line is 'tokens;seconds'", "t:1"),
        ("[1000", "the file is no JSON", "t"),
        ('{"tokens": 1}', "the file is no list", "t"),
        ('[{"tokens": 1000, "s": 1}]', "is no pair", "t: item 0"),
        ("[[1000, 1], [true, 1]]", "tokens is True", "t: item 1"),
        ("[[1000, true]]", "seconds is True", "t: item 0"),
        ("[[-5, 1]]", "tokens is -5", "t: item 0"),
        (f"[[1{'0' * 400}, 1]]", "(401 characters), not a whole number from 1 to", "t: item 0"),
        (f"[[1, 1{'0' * 400}]]", "(401 characters), not a number from 1e-09 to 1e+06", "t: item 0"),
        (f"tokens,seconds\n1{'0' * 400},1\n", "(401 characters), not a whole number from 1 to", "t:2"),
        ("[" * 100_000, "nested too deep", "t"),
        (f"tokens,seconds\n{'1' * 200_000},1\n", "the file is no CSV: field larger than field limit", "t"),
    ],
)
def test_what_is_no_prefill_time_is_refused_with_its_place(text: str, what: str, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_prefill(text, "t")
    assert what in caught.value.what
    assert caught.value.where == where


def test_the_shapes_fit_the_geometries_they_are_named_after() -> None:
    for name, shape in SHAPES.items():
        geometry = preset(name, 64)
        assert geometry.kind is KVKind.GQA
        assert geometry.n_layers == shape.n_layers
        assert geometry.token_plane_bytes == shape.n_kv_heads * shape.head_dim * 2
        assert model_shape(name) is shape
    for name in set(PRESETS) - set(SHAPES):
        with pytest.raises(UsageError, match=f"the layers of {name} are not known"):
            model_shape(name)


def test_every_length_has_its_rounds_and_the_first_run_of_each_is_not_counted() -> None:
    clock = Clock()
    found = time_stack(SMALL, (64, 16, 32), rounds=2, clock=clock)
    assert [one.n_tokens for one in found.timings] == [16, 16, 32, 32, 64, 64]
    assert {one.seconds for one in found.timings} == {1.0}
    assert clock.now == 1 + 3 + 2 * 3 * 3  # the start, one look a length, two a run
    assert (found.left_out, found.dtype, found.shape) == ((), "float32", SMALL)
    assert fit(found.timings, QUADRATIC).n_samples == 6


def test_a_length_past_the_budget_is_left_out_with_all_longer_ones_and_the_reason() -> None:
    found = time_stack(SMALL, (16, 32, 64), rounds=1, budget_s=9.0, clock=Clock())
    assert {one.n_tokens for one in found.timings} == {16}
    (first, why), (second, also) = found.left_out
    assert (first, second) == (32, 64)
    assert why == "up to 8 s more, 6 of 9 s are used"
    assert "longer" in also


def test_without_time_no_layer_is_made() -> None:
    vast = ModelShape("vast", n_layers=1, hidden=1 << 40, n_heads=1, n_kv_heads=1, head_dim=1, intermediate=1)
    found = time_stack(vast, (32, 16), budget_s=0.0)
    assert (found.timings, [n for n, _ in found.left_out]) == ((), [16, 32])


def test_the_weights_of_a_layer_are_those_of_the_model() -> None:
    """Qwen3-8B has 8.2 billion parameters, 1.2 of them in the two tables of tokens."""
    shape = SHAPES["qwen3-8b"]
    assert shape.n_layers * shape.layer_weights == pytest.approx(8.2e9 - 2 * 151_936 * 4096, rel=0.01)


def test_a_prefill_stops_between_layers_when_asked() -> None:
    asked = iter([False] * 4)
    with pytest.raises(ProbeStopped):
        time_stack(SMALL, (16,), stop=lambda: next(asked, True))

"""Where bench model claims no break-even: two models, lengths without an answer, a slope that noise hides."""

from __future__ import annotations

import pytest

from hicachectl.bench_break_even import judged, slope_is_open, two_models
from hicachectl.bench_model_data import Model, Prefill, Tier
from hicachectl.errors import UsageError
from hicachectl.render.bench_model import even_words
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.probes.break_even import Verdict, break_even, saved_s
from hicachectl.runtime.probes.fits import LINE, Fit, Timing, fit

PREFILL = Fit.given(7.65e-3, 2.84e-5, 5.12e-10, "given")
CLEAR = tuple(Timing(n, (1e-5 + 2.7e-6 * n) * w) for n in (512, 2048, 8192) for w in (1.0, 1.02, 0.99))
FLAT = tuple(
    Timing(n, 5e-5 * w) for n, w in ((512, 1.0), (512, 1.3), (1024, 0.8), (1024, 1.1), (2048, 1.2), (2048, 0.9))
)


def model(*restores: tuple[Timing, ...]) -> Model:
    tiers = []
    for name, timings in zip(("host", "storage"), restores, strict=False):
        line = fit(timings, LINE)
        tiers.append(Tier(name, timings, line, break_even(line, PREFILL, 64), saved_s(line, PREFILL, (1024,))))
    return Model(tuple(tiers), Prefill("given", PREFILL, (), None), None, {})


def verdicts(found: Model) -> list[Verdict]:
    return [tier.break_even.verdict for tier in found.tiers if tier.break_even is not None]


def test_an_answer_stays_as_it_is() -> None:
    found = model(CLEAR)
    assert verdicts(found) == [Verdict.ALWAYS]
    assert judged(found, {"storage tier, 512 tokens", "host read, 512 B"}, None) == found


def test_two_models_are_a_demo_without_a_length_and_without_savings() -> None:
    found = judged(model(CLEAR, CLEAR), (), "two models")
    assert verdicts(found) == [Verdict.DEMO, Verdict.DEMO]
    for tier in found.tiers:
        assert tier.break_even is not None
        assert (tier.break_even.n_tokens, tier.break_even.reason, tier.saved) == (None, "two models", ())


def test_lengths_without_an_answer_leave_the_tier_they_belong_to_open() -> None:
    found = judged(model(CLEAR, CLEAR), {"storage tier, 512 tokens"}, None)
    assert verdicts(found) == [Verdict.ALWAYS, Verdict.OPEN]
    even = found.tiers[1].break_even
    assert even is not None
    assert even.reason == "no answer (HC-NO-ANSWER): storage tier, 512 tokens"
    assert found.tiers[1].saved
    assert verdicts(judged(model(CLEAR, CLEAR), {"prefill, 512 tokens"}, None)) == [Verdict.OPEN, Verdict.OPEN]


def test_a_slope_of_0_within_noise_is_no_always() -> None:
    assert slope_is_open(fit(FLAT, LINE))
    assert not slope_is_open(fit(CLEAR, LINE))
    assert verdicts(model(FLAT)) == [Verdict.ALWAYS]
    (tier,) = judged(model(FLAT), (), None).tiers
    assert tier.break_even is not None
    assert tier.break_even.verdict is Verdict.OPEN
    assert "not told apart from 0" in tier.break_even.reason
    words = even_words({"verdict": "open", "reason": "r", "n_tokens": None, "low_tokens": None, "high_tokens": None})
    assert words == "OPEN: r"


def test_pages_and_prefill_of_one_model_are_one_sum_and_others_are_named_with_their_bytes() -> None:
    qwen, tiny = preset("qwen3-8b", 64), preset("tiny-64k", 512)
    assert two_models(qwen, "qwen3-8b") is None
    assert two_models(tiny, "qwen3-8b") == (
        "the bytes moved are of tiny-64k (128 B a token), the prefill is of qwen3-8b (147 456 B a token)"
    )
    assert str(two_models(qwen, None)).endswith("the prefill is of a model that is not named")
    assert str(two_models(tiny, "tiny-64k")).endswith("the prefill is of a model that is not named")
    with pytest.raises(UsageError):
        two_models(tiny, "no-model")

"""Where bench model claims no break-even: two models, lengths without an answer, a slope that noise hides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hicachectl.bench_break_even import judged, slope_is_open, two_models, why_no_curve
from hicachectl.bench_model_data import Model, Prefill, Tier, model_costs, model_measures, model_of
from hicachectl.errors import UsageError
from hicachectl.render.bench_model import even_words
from hicachectl.runtime.cost import Path
from hicachectl.runtime.geometry import preset
from hicachectl.runtime.probes.break_even import Verdict, break_even, saved_s
from hicachectl.runtime.probes.fits import LINE, QUADRATIC, Fit, Timing, fit, resampled
from hicachectl.runtime.probes.restores import PathTiming, RestoreProbe

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


def test_never_is_not_claimed_where_some_refits_break_even() -> None:
    wobble = (1.02, 0.97, 1.01, 0.99, 1.03, 0.98, 1.0)
    lengths = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    restores = [Timing(n, (0.01 + 2.80e-5 * n) * w) for n, w in zip(lengths, wobble, strict=True)]
    prefills = [Timing(n, 2.75e-5 * n * w) for n, w in zip(lengths, reversed(wobble), strict=True)]
    line, curve = fit(restores, LINE), fit(prefills, LINE)
    draws = {"restore_draws": resampled(restores, LINE), "compute_draws": resampled(prefills, LINE, seed=1)}
    even = break_even(line, curve, 64, **draws)
    assert even.verdict is Verdict.NEVER
    assert even.low_tokens is not None
    one = Tier("host", tuple(restores), line, even, ())
    (tier,) = judged(Model((one,), Prefill("given", curve, tuple(prefills), None), None, {}), (), None).tiers
    assert tier.break_even is not None
    assert (tier.break_even.verdict, tier.break_even.n_tokens) == (Verdict.OPEN, None)
    assert "some refits break even, from " in tier.break_even.reason
    sure = replace(one, break_even=replace(even, low_tokens=None))
    assert verdicts(judged(Model((sure,), None, None, {}), (), None)) == [Verdict.NEVER]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((0.3, 0.2, 0.1, 0.05), "prefills of 4000 tokens take no longer than those of 1000"),
        ((0.1, 0.1002, 0.0999, 0.1003, 0.1001), "prefills of 5000 tokens take no longer than those of 1000"),
        ((0.1, 0.13, 0.08, 0.12, 0.09, 0.14), "prefills of 6000 tokens take no longer than those of 1000"),
        ((0.1, 9.0, 0.2, 8.0, 0.4), "off their curve, 50 % is the most that counts as an answer"),
    ],
)
def test_times_that_no_prefill_has_are_no_cost_and_no_break_even(seconds: tuple[float, ...], words: str) -> None:
    times = tuple(Timing(1000 * (i + 1), s) for i, s in enumerate(seconds))
    prefill = Prefill("times", fit(times, QUADRATIC), times, None, from_file=True)
    probe = RestoreProbe("cpu", "cpu", "asked for", None)
    probe.timings += [PathTiming(Path.HOST_READ, one.n_tokens // 64, one.n_tokens, one.seconds) for one in CLEAR]
    found = model_of(probe, 64, prefill, None, "--path none")
    _, why = model_costs(probe, found, model_measures(probe, found, 64, 3), "qwen3-8b")
    assert words in why["/costs/recompute"]
    (tier,) = judged(found, (), None).tiers
    assert tier.break_even is not None
    assert (tier.break_even.verdict, tier.saved) == (Verdict.OPEN, ())
    assert words in tier.break_even.reason


def test_times_that_grow_clearly_or_were_given_are_a_curve() -> None:
    for seconds in ((0.020, 0.021, 0.0205, 0.030, 0.060, 0.12), (0.1, 0.12, 0.15), (0.1, 0.11, 0.115, 0.125)):
        times = [Timing(1000 * (i + 1), s) for i, s in enumerate(seconds)]
        assert why_no_curve(fit(times, QUADRATIC)) is None
    assert why_no_curve(Fit.given(0.1, 0.0, 0.0, "given")) is None


def test_the_refits_of_restores_and_prefills_are_dealt_apart() -> None:
    """As many of both, with the same residuals in the same order: dealt by one seed their errors would cancel in what is saved."""
    wobble = (1.06, 0.95, 1.02, 0.97, 1.05, 0.96, 1.03, 0.94, 1.04, 0.98, 1.01, 0.99)
    lengths = (1024, 2048, 4096) * 4
    prefills = [Timing(n, 2e-5 * n * w) for n, w in zip(lengths, wobble, strict=True)]
    probe = RestoreProbe("cpu", "cpu", "asked for", None)
    probe.timings += [
        PathTiming(Path.HOST_READ, n // 64, n, 1.9e-5 * n * w) for n, w in zip(lengths, wobble, strict=True)
    ]
    prefill = Prefill("times", fit(prefills, QUADRATIC), tuple(prefills), None)
    (tier,) = model_of(probe, 64, prefill, None, None).tiers
    saved = tier.saved[1]
    assert (saved.n_tokens, saved.beyond_measured) == (4096, False)
    assert saved.interval_s is not None
    ours, theirs = resampled(tier.timings, LINE), resampled(prefills, QUADRATIC)
    restores = ours @ [1, 4096]
    computed = theirs[:, 1:] @ [4096, 4096**2]
    apart = 2 * 1.96 * math.hypot(restores.std(), computed.std())
    assert saved.interval_s.high - saved.interval_s.low == pytest.approx(apart, rel=0.12)


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

"""A verdict depends on where an interval lies, not a point; and no verdict comes about by accident."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from findings.finding import Expected, Finding
from findings.judging import Verdict, interval, judge, judge_quantity

NUMBERS = st.lists(st.floats(-10, 10), min_size=3, max_size=8)
ENDS = st.tuples(st.floats(-10, 10), st.floats(-10, 10)).map(sorted)


def expected(low: float | None = None, high: float | None = None) -> Expected:
    ends = {"above": low, "below": high}
    return Expected(why="because", **{key: end for key, end in ends.items() if end is not None})


def finding(**parts: dict[str, Expected]) -> Finding:
    return Finding(
        claim="a claim",
        source="a source",
        numbers="none",
        read="ours",
        size="small",
        minutes=1,
        trains=False,
        arms={"one": {}},
        seeds=[0, 1, 2],
        measure="a.function",
        control={"what": "wrong"},
        picture={"x": "x", "y": "y"},
        remark="",
        **parts,
    )


def verdict(values: dict[str, list[float]], **parts: dict[str, Expected]) -> Verdict:
    seeds = range(max(map(len, values.values())))
    by_seed = {seed: {name: numbers[seed] for name, numbers in values.items()} for seed in seeds}
    return judge(finding(**parts), by_seed).verdict


@given(NUMBERS, ENDS)
def test_it_passes_where_its_interval_lies_inside_and_fails_where_it_lies_outside(values, ends):
    low, high = ends
    judged, around = judge_quantity("x", expected(low, high), values, together=1), interval(values)
    inside = low <= around.low and around.high <= high
    outside = around.high < low or around.low > high
    assert judged.verdict == (Verdict.PASS if inside else Verdict.FAIL if outside else Verdict.INCONCLUSIVE)


def test_a_condition_that_is_undecided_is_not_called_unfulfilled():
    parts = {"expected": {"x": expected(low=0)}, "inconclusive": {"y": expected(high=2.0)}}
    for y, reason in (([3.0, 3.1, 3.2], "because"), ([1.9, 2.0, 2.1], "y: the interval crosses an end of ")):
        by_seed = {seed: {"x": 1.0 + seed / 10, "y": value} for seed, value in enumerate(y)}
        judgement = judge(finding(**parts), by_seed)
        assert judgement.verdict == Verdict.INCONCLUSIVE
        assert judgement.reason.startswith(reason)


@given(NUMBERS.filter(lambda values: len({*values}) > 1))
def test_the_interval_is_the_one_that_scipy_gives(values):
    theirs = ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values)[2:] == pytest.approx((theirs.low, theirs.high))


@given(NUMBERS, st.floats(-10, 10))
def test_what_passes_above_an_end_fails_below_it(values, end):
    above, below = (
        judge_quantity("x", e, values, 1).verdict for e in (expected(low=end), expected(high=end))
    )
    opposite = {Verdict.PASS: Verdict.FAIL, Verdict.FAIL: Verdict.PASS}
    around = interval(values)
    if not around.low == around.high == end:
        assert above == opposite.get(below, Verdict.INCONCLUSIVE)


@given(NUMBERS, ENDS, st.integers(2, 6))
def test_among_several_it_fails_only_where_a_wider_interval_lies_outside(values, ends, among):
    low, high = ends
    alone, of_several = (judge_quantity("x", expected(low, high), values, n).verdict for n in (1, among))
    assert (of_several == Verdict.PASS) == (alone == Verdict.PASS)
    assert of_several != Verdict.FAIL or alone == Verdict.FAIL


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.0, 1.0], Verdict.FAIL),  # a tie confirms no direction
        ([1.5, 1.5, 1.5], Verdict.PASS),
        ([1.5, 1.5], Verdict.INCONCLUSIVE),  # fewer than three seeds
        ([0.5], Verdict.INCONCLUSIVE),
        ([1.5, 1.5, math.nan], Verdict.INCONCLUSIVE),
        ([1.5, 1.5, math.inf], Verdict.INCONCLUSIVE),
    ],
)
def test_a_tie_too_few_seeds_and_a_non_finite_number_confirm_nothing(values, verdict):
    assert judge_quantity("x", expected(low=1), values, 1).verdict == verdict


def test_a_quantity_that_was_not_measured_decides_nothing():
    assert verdict({"x": [1, 1, 1]}, expected={"x": expected(0), "y": expected(0)}) == Verdict.INCONCLUSIVE


def test_all_quantities_must_pass_and_one_that_fails_is_enough():
    both = {"x": expected(low=0), "y": expected(low=0)}
    good, bad, wide = [1, 1.1, 0.9], [-1, -1.1, -0.9], [-1.0, 0.0, 1.0]
    assert verdict({"x": good, "y": good}, expected=both) == Verdict.PASS
    assert verdict({"x": good, "y": bad}, expected=both) == Verdict.FAIL
    assert verdict({"x": good, "y": wide}, expected=both) == Verdict.INCONCLUSIVE
    assert verdict({"x": bad, "y": wide}, expected=both) == Verdict.FAIL


def test_without_a_fulfilled_condition_a_finding_is_inconclusive_and_has_a_reason():
    parts = {"expected": {"x": expected(low=0)}, "inconclusive": {"y": expected(low=0)}}
    good, bad = [1, 1.1, 0.9], [-1, -1.1, -0.9]
    assert verdict({"x": good, "y": good}, **parts) == Verdict.PASS
    assert verdict({"x": good, "y": bad}, **parts) == Verdict.INCONCLUSIVE
    assert verdict({"x": bad, "y": bad}, **parts) == Verdict.INCONCLUSIVE
    by_seed = {seed: {"x": 1.0 + seed / 10, "y": -1.0 - seed / 10} for seed in range(3)}
    assert judge(finding(**parts), by_seed).reason == "because"


def test_the_reason_says_if_only_the_widened_interval_crosses_an_end():
    quantities = {name: expected(low=0) for name in "abcd"}
    below = [-1.0, -1.3, -0.45, -1.1]
    by_seed = {seed: dict.fromkeys("bcd", 1 + seed / 10) | {"a": a} for seed, a in enumerate(below)}
    judgement = judge(finding(expected=quantities), by_seed)
    assert judgement.verdict == Verdict.INCONCLUSIVE
    assert judgement.reason.startswith("a: widened for several quantities, the interval crosses an end")


def test_the_likely_reason_does_not_affect_the_verdict():
    parts = {"expected": {"x": expected(low=0)}, "because": {"y": expected(low=0)}}
    assert verdict({"x": [1, 1.1, 0.9], "y": [-1, -1.1, -0.9]}, **parts) == Verdict.PASS


def test_what_is_exactly_0_can_be_expected():
    zero = {"expected": {"x": expected(0, 0)}}
    assert verdict({"x": [0, 0, 0]}, **zero) == Verdict.PASS
    assert verdict({"x": [1e-9, 1e-9, 1e-9]}, **zero) == Verdict.FAIL


@pytest.mark.parametrize("ends", [{}, {"above": 1.0, "below": 0.0}])
def test_an_expectation_that_nothing_or_everything_contradicts_is_refused(ends):
    with pytest.raises(ValueError, match="above"):
        Expected(why="", **ends)

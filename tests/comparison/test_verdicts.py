"""The statistics are right: on simulated runs with known effect and noise, and against scipy and
statsmodels."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from comparison.verdicts import (
    holm,
    interval,
    p_of_best,
    p_value,
    paired,
    pairs_needed,
    power,
    seeds_needed,
)

REPETITIONS = 2000
# With 2,000 repetitions a true rate of 5 % is seen above 6.5 % in 0.2 % of cases; the seeds are fixed.
TOLERANCE = 0.015


def runs(rng: np.random.Generator, groups: int, seeds: int, noise: float = 0.01) -> np.ndarray:
    """Return losses (groups, seeds) without any difference between groups: each seed has its own level,
    which pairing removes, and each run has noise."""
    return 2 + 0.05 * rng.standard_normal(seeds) + noise * rng.standard_normal((groups, seeds))


def by_seed(losses: np.ndarray) -> dict[int, float]:
    return dict(enumerate(losses.tolist()))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_an_interval_covers_the_truth_in_95_percent_of_repetitions(seeds):
    rng = np.random.default_rng(seeds)
    effect, covered, unpaired = 0.02, 0, 0
    for _ in range(REPETITIONS):
        a, b = runs(rng, 2, seeds)
        measured = interval(paired(by_seed(a + effect), by_seed(b)))
        covered += measured.low <= effect <= measured.high
        unpaired += interval(a.tolist()).low <= 2 <= interval(a.tolist()).high
    assert 0.93 <= covered / REPETITIONS <= 0.97
    assert 0.93 <= unpaired / REPETITIONS <= 0.97


@pytest.mark.parametrize("comparisons", [1, 7, pytest.param(100, marks=pytest.mark.long)])
def test_at_most_5_percent_of_reports_have_a_false_verdict(comparisons):
    rng = np.random.default_rng(comparisons)
    false, naive = 0, 0
    for _ in range(REPETITIONS):
        baseline, *groups = (by_seed(losses) for losses in runs(rng, comparisons + 1, 3))
        p_values = [p_value(paired(group, baseline)) for group in groups]
        false += min(holm(p_values)) <= 0.05
        naive += min(p_values) <= 0.05
    assert false / REPETITIONS <= 0.05 + TOLERANCE
    if comparisons >= 7:  # without Holm's correction there are too many: the test can fail
        assert naive / REPETITIONS > 0.1


@pytest.mark.long
@pytest.mark.parametrize("flat", [True, False], ids=["each at any rate the same", "the baseline at one rate"])
def test_nor_where_the_learning_rates_were_chosen_by_the_same_runs(flat):
    """Seven norms whose loss does not depend on the rate, so that choosing the best of seven rates picks
    noise, against a baseline that is as good at its best rate."""
    rng = np.random.default_rng(flat)
    rates = range(7)
    false, naive = 0, 0
    for _ in range(REPETITIONS):
        losses = runs(rng, 8 * 7, 5).reshape(8, 7, 5)
        if not flat:
            losses[0, 1:] += 0.5  # only one rate is good for the baseline
        best = losses.mean(axis=2).argmin(axis=1)
        table = [{rate: by_seed(losses[norm, rate]) for rate in rates} for norm in range(8)]
        p_values = [p_of_best(table[norm], table[0], best[norm], best[0]) for norm in range(1, 8)]
        simple = [p_value(paired(table[n][best[n]], table[0][best[0]])) for n in range(1, 8)]
        false += min(holm(p_values)) <= 0.05
        naive += min(simple) <= 0.05
    assert false / REPETITIONS <= 0.05 + TOLERANCE
    if not flat:
        assert naive / REPETITIONS > 0.2


def test_rates_that_cannot_be_paired_leave_it_open():
    base = {0: 2.0, 1: 2.1, 2: 2.2}
    other = {seed: loss - 0.5 - 0.01 * seed for seed, loss in base.items()}
    p = p_value(paired(other, base))
    assert p_of_best({1e-3: other}, {1e-3: base, 1e-2: base}, 1e-3, 1e-3) == pytest.approx(p)  # costs nothing
    assert p_of_best({1e-3: other, 1e-2: base}, {1e-3: base}, 1e-3, 1e-3) == pytest.approx(2 * p)
    assert math.isnan(p_of_best({1e-3: other}, {1e-3: base, 1e-2: {0: 1.0}}, 1e-3, 1e-3))


def test_a_real_difference_is_found_also_where_rates_were_chosen():
    rng = np.random.default_rng(0)
    detected = 0
    for _ in range(200):
        losses = runs(rng, 2 * 3, 5).reshape(2, 3, 5)
        losses[1] += 0.1  # ten times the noise
        best = losses.mean(axis=2).argmin(axis=1)
        tables = [{rate: by_seed(losses[norm, rate]) for rate in range(3)} for norm in range(2)]
        detected += p_of_best(tables[1], tables[0], best[1], best[0]) <= 0.05
    assert detected > 190


PAIRS = st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=12)


@given(PAIRS.filter(lambda pairs: np.std([a - b for a, b in pairs]) > 1e-3))
@settings(deadline=None, max_examples=200)
def test_interval_and_p_value_are_scipys(pairs):
    numbers, others = zip(*pairs, strict=True)
    differences = [a - b for a, b in pairs]
    expected = scipy.stats.ttest_rel(numbers, others)
    assert p_value(differences) == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-12)
    low, high = expected.confidence_interval(0.95)
    ours = interval(differences)
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(deadline=None, max_examples=20)  # statsmodels takes its time
def test_holm_is_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist(), abs=1e-12)


def test_holm_does_not_count_what_has_no_p_value():
    assert holm([0.01, math.nan, 0.04])[0] == pytest.approx(0.02)
    assert math.isnan(holm([0.01, math.nan])[1])


@pytest.mark.parametrize("effect", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_power_and_sample_size_are_statsmodels(effect, alpha):
    reference = TTestPower()
    expected = reference.power(effect, 8, alpha / 2, alternative="larger")
    assert power(effect, np.array([8]), alpha)[0] == pytest.approx(expected, abs=1e-9)
    needed = reference.solve_power(effect, power=0.8, alpha=alpha / 2, alternative="larger")
    assert pairs_needed(effect, alpha) == max(2, math.ceil(needed))


def test_seeds_needed_are_a_range_that_grows_with_noise_and_comparisons():
    low, high = seeds_needed([0.01, 0.03, -0.005], 1)
    assert 3 < low < high
    assert seeds_needed([0.01, 0.03, -0.005], 10) > (low, high)
    assert seeds_needed([0.0, 0.0, 0.0], 1) is None
    assert seeds_needed([1e-9, 1.0, -1.0], 1) == (1001, 1001)


@pytest.mark.parametrize(
    ("differences", "p"), [([0.0, 0.0], 1.0), ([0.1, 0.1], 0.0), ([-0.1, -0.1], 0.0), ([1, -1], 1.0)]
)
def test_differences_without_noise(differences, p):
    assert p_value(differences) == p


def test_one_seed_gives_no_interval_and_no_p_value():
    assert math.isnan(p_value([0.1]))
    assert math.isnan(interval([0.1]).low)
    assert interval([0.1]).mean == 0.1
    assert math.isnan(interval([]).mean)

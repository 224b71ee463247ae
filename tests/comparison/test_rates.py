"""Each group is compared at its own best learning rate; the cost of a wrong rate is measured."""

import math

import pytest

from comparison.groups import group_runs
from comparison.rates import families, sensitivities, sensitivity
from tests.comparison.runs import several


def test_learning_rate_sensitivity_of_a_case_worked_by_hand():
    """ℓ0 = 4. Seed 0: 3, 2, 5 → 4 (above the start), diverged → 4: mean 3.25, minus the best 2: 1.25.
    Seed 1: 3.2, 2.4, 3.4, diverged → 4: mean 3.25, minus 2.4: 0.85. Mean 1.05."""
    losses = {
        3e-4: {0: 3.0, 1: 3.2},
        1e-3: {0: 2.0, 1: 2.4},
        3e-3: {0: 5.0, 1: 3.4},
        1e-2: {0: math.inf, 1: math.nan},
    }
    means, value = sensitivity(losses, 4.0)
    assert means == pytest.approx([3.1, 2.2, 3.7, 4.0])
    assert value.mean == pytest.approx(1.05)
    assert value.half == pytest.approx(12.706 * 0.2, rel=1e-3)  # t(1) · sd/√2, sd = 0.4/√2


def test_seeds_that_lack_a_rate_do_not_count():
    _, value = sensitivity({1.0: {0: 3.0, 1: 9.0}, 2.0: {0: 1.0}, 3.0: {0: 1.0}}, 10.0)
    assert (value.n, value.mean) == (1, pytest.approx(5 / 3 - 1))


def test_the_best_rate_is_by_the_mean_over_seeds_and_none_at_which_a_seed_diverged(tmp_path):
    runs = several(
        tmp_path,
        {
            "optim.learning_rate=1e-3": [2.0, 2.5],
            "optim.learning_rate=3e-3": [2.2, 2.1],
            "optim.learning_rate=1e-2": [1.0, None],
        },
    )
    [family] = families(group_runs(runs, "val/full_loss"))
    assert family.best == 3e-3


@pytest.mark.parametrize(
    ("above", "failed"),
    [
        ([2.3, 3.1], {}),  # half of the way from 4.3 down to 2.0 is 3.15
        ([2.3, 3.2], {1e-2: 1}),
        ([3.2, None], {1e-2: 2}),
    ],
)
def test_a_best_rate_next_to_one_that_fails_is_at_the_edge_of_those_that_train(tmp_path, above, failed):
    losses = {"1e-3": [2.1, 2.1], "3e-3": [2.0, 2.0], "1e-2": above, "3e-2": [None, None]}
    runs = several(tmp_path, {f"optim.learning_rate={rate}": ends for rate, ends in losses.items()})
    [family] = families(group_runs(runs, "val/full_loss"))
    assert family.failed_neighbours(3e-3) == failed


def test_sensitivity_is_over_the_rates_that_all_have_and_starts_at_the_first_loss(tmp_path):
    losses = {f"optim.learning_rate={rate}": [2.0 + rate, 2.1 + rate] for rate in (1e-3, 1e-2)}
    losses["optim.learning_rate=1e-1"] = [9.0, 9.0]
    runs = several(tmp_path, losses | {"norm=none optim.learning_rate=1": [None]})
    assert sensitivities(families(group_runs(runs, "val/full_loss"))) == []
    [result] = sensitivities(
        families(group_runs([run for run in runs if run.config["norm"] != "none"], "val/full_loss"))
    )
    assert result.rates == [1e-3, 1e-2, 1e-1]
    assert result.losses == pytest.approx([2.051, 2.06, 4.3])
    assert result.value.mean == pytest.approx((0.009 + 2.249) / 3)

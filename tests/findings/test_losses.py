"""Numbers that findings compute from losses. Tuning seeds choose the rates at which arms are compared, and
nothing is measured on these seeds."""

import math
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import ConfigError
from findings.finding import Finding, load_findings
from findings.measures.losses import best_rates, sensitivity, trainable_scales
from findings.models import Case, Cases, Run

RATES = (1e-3, 3e-3, 1e-2)
LOSSES = st.lists(st.floats(0, 5), min_size=3, max_size=3)


@dataclass
class Known:
    """A model whose loss is known."""

    arm: str
    value: float
    number: float

    def loss(self) -> float:
        return self.number


def cases(losses: list[float], tuning: list[list[float]]) -> Cases:
    models = cast(list[Case], [Known("arm", rate, loss) for rate, loss in zip(RATES, losses, strict=True)])
    return Cases(0, models, [cases(each, []) for each in tuning])


@given(LOSSES, LOSSES)
def test_the_rate_is_that_of_the_lowest_mean_loss_whatever_was_measured(measured, tuning):
    second = [1.0, 0.0, 2.0]
    best = best_rates(cases(measured, [tuning, second]))["arm"]
    means = [a + b for a, b in zip(tuning, second, strict=True)]
    assert means[RATES.index(best)] == min(means)


@given(st.lists(st.floats(0, 1e9) | st.just(math.inf), min_size=3, max_size=3), st.floats(0, 10))
def test_the_trainable_scales_are_a_part_of_those_tried_and_none_where_nothing_is_learned(losses, learned):
    decades = trainable_scales(cases(losses, []), learned).values["arm: decades"]
    assert -1e-9 <= decades <= math.log10(max(RATES) / min(RATES)) + 1e-9
    if min(losses) > learned:
        assert decades == 0


def test_without_tuning_seeds_no_rate_is_chosen():
    with pytest.raises(ConfigError, match="tuning_seeds"):
        best_rates(cases([1, 2, 3], []))


def test_no_seed_is_tuned_and_measured():
    finding = load_findings()["no_norm"]
    assert not {*finding.seeds} & {*finding.tuning_seeds}
    assert finding.first_seeds(4) == [5, 6, 7, 8]
    assert load_findings()["dyt_data_regime"].first_seeds(5) == [1, 2, 3, 4, 5]  # seed 0 chose its rate
    with pytest.raises(ValueError, match="tuning_seeds: 1 is also measured"):
        Finding.model_validate(finding.model_dump(exclude_unset=True) | {"seeds": [1, 2, 3]})


def test_the_sensitivity_is_the_mean_rise_above_the_lowest_loss_and_no_loss_counts_more_than_the_first():
    losses = dict(zip(RATES, (2.0, 2.6, 9.0), strict=True))
    assert sensitivity(losses, initial=4.4) == pytest.approx((0.0 + 0.6 + 2.4) / 3)


def test_a_curve_has_no_loss_that_is_not_finite_and_the_last_loss_may_be_one():
    run = Run(False, {}, [{"step": 0, "val/loss": 4.0}, {"step": 5}, {"step": 9, "val/loss": "NaN"}])
    assert run.curve("val/loss") == {0: 4.0}
    assert math.isnan(run.last("val/loss"))

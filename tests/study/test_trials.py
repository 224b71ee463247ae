"""Settings are drawn alike for all arms, and chosen by a rule that can be checked by hand."""

import itertools
from statistics import fmean

import pytest

from data.errors import ConfigError
from study.trials import best_quarter, choice, draw, edges, half_the_trials, replaced
from tests.conftest import configured

TUNE = {"optim.learning_rate": "log 1e-3 1e-1", "schedule.warmup_fraction": "linear 0.1 0.3"}


def test_settings_fill_the_ranges_evenly_and_a_larger_count_begins_with_the_same_ones():
    settings = draw(TUNE, 8)
    assert draw(TUNE, 4) == settings[:4]
    rates = [setting["optim.learning_rate"] for setting in settings]
    assert sum(rate < 1e-2 for rate in rates) == 4  # the middle of the logarithms
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)
    assert sum(setting["schedule.warmup_fraction"] < 0.2 for setting in settings) == 4


def test_choices_have_their_types_and_no_setting_is_drawn_twice():
    settings = draw({"model.init": "gpt2 xavier", "model.tie": "true false", "model.n_layer": "2 4"}, 100)
    assert len(settings) == 8
    assert {type(value) for setting in settings for value in setting.values()} == {str, bool, int}


@pytest.mark.parametrize("text", ["log 1e-3", "log 0 1", "linear 2 1", "log a b"])
def test_a_wrong_range_is_one_line(text):
    with pytest.raises(ConfigError, match=r"^tune\.optim\.learning_rate: .*; write"):
        draw({"optim.learning_rate": text}, 2)


def test_a_trial_sets_values_as_the_command_line_does():
    values = {"optim.learning_rate": 0.02, "model.init": "xavier"}
    expected = configured("optim.learning_rate=0.02", "model.init=xavier", "seed=7")
    assert replaced(configured(), values, 7) == expected
    for key in ("norm", "norm.alpha", "optim.lr", "seed.x"):
        with pytest.raises(ConfigError, match=f"^tune.{key}: norm=layernorm placement=pre has no such value"):
            replaced(configured(), {key: 1}, 0)


def test_the_best_quarter_goes_on_and_diverged_trials_come_last():
    assert best_quarter([3.0, None, 1.0, 2.0, None, 5.0, 4.0, 6.0]) == [2, 3]
    assert best_quarter([None, 2.0]) == [1]


def test_the_fewest_diverged_win_then_the_lowest_mean():
    tried = [{"optim.learning_rate": float(n)} for n in range(8)]
    for losses, number, mean in (
        ({3: [2.0, 2.0], 5: [1.0, None], 6: [1.5, 2.4]}, 6, 1.95),
        ({0: [None, None], 1: [None, 4.0]}, 1, 4.0),
    ):
        best = choice(tried, [1.0] * 8, losses)
        assert (best["trial"], best["loss"]) == (number, pytest.approx(mean))
    unusable = choice([{"optim.learning_rate": 1.0}], [None], {0: [None]})
    assert (unusable["reason"], unusable["settings"], unusable["trial"]) == ("no usable setting", {}, None)


def test_the_best_of_half_the_trials_is_that_of_all_halves():
    losses = [2.0, 1.5, None, 1.7, 3.0, 2.2]
    best = [min(loss for loss in half if loss is not None) for half in itertools.combinations(losses, 3)]
    assert half_the_trials(losses) == pytest.approx(fmean(best) - 1.5)
    assert half_the_trials([1.0]) is None
    assert half_the_trials([1.0, None, None, 2.0]) is None  # a half in which none has finished


def test_edges_are_the_largest_and_smallest_numbers_that_were_tried():
    tried = [{"a": 1.0, "b": 2.0, "c": "x"}, {"a": 2.0, "b": 1.5, "c": "y"}, {"a": 3.0, "b": 1.0, "c": "x"}]
    assert edges(tried[0], tried) == ["a", "b"]
    assert edges(tried[1], tried) == []
    assert edges({"model.tie": True}, [{"model.tie": True}, {"model.tie": False}]) == []

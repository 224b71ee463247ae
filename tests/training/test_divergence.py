"""Not finite is divergence, at once; no better than the unigram entropy at the end is collapse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.runs import metric_rows, train_anew
from training.divergence import Divergence, has_collapsed, unigram_entropy
from training.run_folder import Diverged, read_status


def batch(targets: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((1, len(targets)), np.int64), np.array([targets])


def test_the_entropy_is_that_of_the_targets_of_all_batches():
    assert unigram_entropy([batch([0, 1]), batch([3, 3])]) == pytest.approx(1.5 * math.log(2))


@given(st.lists(st.integers(0, 4), min_size=1), st.lists(st.floats(0.01, 1), min_size=5, max_size=5))
def test_no_guess_that_ignores_the_context_is_better(targets, weights):
    p = np.array(weights) / sum(weights)
    assert -np.log(p[targets]).mean() >= unigram_entropy([batch(targets)]) - 1e-9


@pytest.mark.parametrize(
    ("full", "train", "collapsed"), [(3.0, 3.1, True), (2.9, 2.9, False), (5.0, 0.4, False), (3.0, 1.6, True)]
)
def test_a_run_collapses_if_it_is_no_better_than_guessing_unless_it_overfits(full, train, collapsed):
    assert has_collapsed(full, train, entropy=3.0) == collapsed


def test_the_first_skipped_update_is_named():
    watch = Divergence(lambda step, evaluation: f"first in step {step}")
    with pytest.raises(Diverged, match=r"of step 5 is not finite, first in step 5"):
        watch.check(7, {"train/loss": math.nan}, torch.tensor(3))


@pytest.mark.parametrize("key", ["val/loss", "val/full_loss"])
def test_a_nan_in_an_evaluation_is_divergence_and_in_a_statistic_is_not(key):
    watch = Divergence(lambda step, evaluation: "first in x")
    watch.check(1, {"act.kurtosis/embed": math.nan}, torch.tensor(0))
    with pytest.raises(Diverged, match=f"{key} is nan, first in x"):
        watch.check(1, {key: math.nan}, torch.tensor(0))


@pytest.mark.parametrize("eval_every", [0, 2])
def test_a_run_that_learns_nothing_finishes_and_is_marked_however_often_it_is_evaluated(tiny, eval_every):
    folder = train_anew(tiny("optim.learning_rate=1e-12", f"train.eval_every={eval_every}"))
    status = read_status(folder)
    assert (status["state"], status["collapsed"]) == ("finished", True)
    assert status["final"] == metric_rows(folder)[-1]["val/full_loss"]

"""Not finite is divergence, at once; no better than the unigram entropy at the end is collapse."""

import math

import numpy as np
import pytest
import torch

from tests.helpers.runs import metric_rows, train_anew
from training.divergence import Divergence, has_collapsed, unigram_entropy
from training.run_folder import Diverged, read_status


def test_the_unigram_entropy_is_that_of_the_targets_of_all_batches():
    batches = [(np.zeros((1, 2)), np.array([targets])) for targets in ([0, 1], [3, 3])]
    assert unigram_entropy(batches) == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize(
    ("full", "train", "collapsed"), [(3.0, 3.1, True), (2.9, 2.9, False), (5.0, 0.4, False), (3.0, 1.6, True)]
)
def test_a_run_collapses_if_it_is_no_better_than_guessing_unless_it_overfits(full, train, collapsed):
    assert has_collapsed(full, train, entropy=3.0) == collapsed


def test_what_is_not_finite_in_an_update_or_an_evaluation_is_divergence_and_in_a_statistic_is_not():
    watch = Divergence(lambda step, evaluation: f"first in step {step}")
    with pytest.raises(Diverged, match=r"of step 5 is not finite, first in step 5"):
        watch.check(7, {"train/loss": math.nan}, torch.tensor(3))  # the last 3 of 8
    watch.check(1, {"act.kurtosis/embed": math.nan}, torch.tensor(0))
    for key in ("val/loss", "val/full_loss"):
        with pytest.raises(Diverged, match=f"{key} is nan, first in step 1"):
            watch.check(1, {key: math.nan}, torch.tensor(0))


@pytest.mark.parametrize("eval_every", [0, 2])
def test_a_run_that_learns_nothing_finishes_and_is_marked_however_often_it_is_evaluated(tiny, eval_every):
    folder = train_anew(tiny("optim.learning_rate=1e-12", f"train.eval_every={eval_every}"))
    status = read_status(folder)
    assert (status["state"], status["collapsed"]) == ("finished", True)
    assert status["final"] == metric_rows(folder)[-1]["val/full_loss"]

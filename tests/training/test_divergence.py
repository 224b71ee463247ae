"""A run has diverged when its loss is NaN or infinite, or when it does not learn."""

import math
import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rundir.folder import Diverged, read_status
from system import signals
from tests.conftest import configured
from tests.helpers.runs import metric_rows, train_anew, train_or_resume
from tests.helpers.wandb_runs import after_row
from training.divergence import Divergence, unigram_loss

NEVER_LEARNS = (
    *("optim.learning_rate=1e-12", "train.steps=50", "schedule.warmup_fraction=0.1"),
    *("train.eval_every=5", "train.hopeless_after=2"),
)


def batch(targets):
    y = np.array([targets], np.int64)
    return np.zeros_like(y), y


def test_guessing_costs_the_entropy_of_the_targets_over_all_batches():
    assert unigram_loss([batch([0, 1, 2, 3])]) == pytest.approx(math.log(4))
    assert unigram_loss([batch([5, 5])]) == 0.0
    assert unigram_loss([batch([0, 0]), batch([7, 7]), batch([0, 7])]) == pytest.approx(math.log(2))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40), st.lists(st.floats(0.01, 1), min_size=6, max_size=6)
)
def test_no_guess_that_ignores_the_context_is_better(targets, weights):
    guess = np.array(weights) / sum(weights)
    assert unigram_loss([batch(targets)]) <= -np.log(guess[targets]).mean() + 1e-12


def where(step: int, evaluation: bool) -> str:
    return f"step {step}, evaluation {evaluation}"


def watch(warmup: int = 10, patience: int = 0, rows=()) -> Divergence:
    train = configured("train.steps=1000", f"train.hopeless_after={patience}").train
    uniform = [batch(range(20))]  # the targets' entropy is ln 20 = 3.0
    return Divergence(train, uniform, warmup, where, rows)


def test_the_first_skipped_update_is_named():
    judge = watch()
    judge.check_updates(8, torch.tensor(0))
    with pytest.raises(Diverged, match="loss or gradient of step 5 is not finite, step 5, evaluation False"):
        judge.check_updates(8, torch.tensor(3))


def verdicts(losses: list[float], patience: int = 3, warm: int = 10, start: int = 10) -> list[bool]:
    judge = watch(warm, patience)
    return [
        judge.judge_row({"step": start + i, "val/loss": loss}) is not None for i, loss in enumerate(losses)
    ]


def test_patience_counts_evaluations_in_a_row_after_the_warmup():
    assert verdicts([3.1, 3.1, 3.1]) == [False, False, True]
    assert verdicts([3.1, 3.1, 2.9, 3.1, 3.1]) == [False] * 5
    assert verdicts([3.3, 3.2, 3.1, 3.05, 3.01]) == [False] * 5  # the model learns, slowly
    assert verdicts([3.3, 3.2, 3.2, 3.2, 3.2]) == [False] * 4 + [True]
    assert verdicts([3.3, 3.2, 3.1], start=998)[-1]  # at the end of the run, a slow fall does not help
    assert verdicts([3.1] * 5, start=7) == [False] * 5
    assert verdicts([3.1] * 9, patience=0) == [False] * 9
    assert verdicts([3.1] * 2, patience=1, warm=0, start=0) == [False, True]  # nothing was trained at step 0


def test_a_run_that_overfits_has_learned():
    judge, collapsed = watch(10, 3), watch(10, 3)
    for step in range(10, 60, 10):
        row = {"step": step, "val/loss": 3.2}
        assert judge.judge_row(row | ({"train/loss": 1.4} if step == 20 else {})) is None
        ended = collapsed.judge_row(row | {"train/loss": 2.9}) is not None
        assert ended is (step >= 30)
    assert judge.judge_row({"step": 70, "val/loss": 3.2, "train/loss": 2.9}) is None  # counts anew


def test_a_resumed_run_counts_the_evaluations_it_has_logged():
    rows = [{"step": step, "val/loss": 3.1} for step in (10, 20)]
    assert watch(10, 3, rows).judge_row({"step": 30, "val/loss": 3.1}) is not None


@pytest.mark.parametrize("key", ["val/loss", "val/full_loss"])
def test_a_nan_in_an_evaluation_is_divergence_and_in_a_statistic_is_not(key):
    judge = watch()
    assert judge.judge_row({"step": 1, key: math.nan}) == f"{key} is nan, step 1, evaluation True"
    assert judge.judge_row({"step": 1, "act.kurtosis/00.mlp": math.nan, key: 1.0}) is None


def test_a_resumed_run_counts_the_evaluations_before_it(tiny, monkeypatch):
    config = tiny(*NEVER_LEARNS)
    with monkeypatch.context() as patched:
        after_row(patched, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(signals.Interrupted):
            train_or_resume(config)
    status = read_status(train_or_resume(config))
    assert (status["state"], status["step"]) == ("diverged", 10)


def test_a_hopeless_run_ends_early_and_says_why(tiny):
    folder = train_anew(tiny(*NEVER_LEARNS))
    status = read_status(folder)
    assert (status["state"], status["step"]) == ("diverged", 10)
    assert "the loss of guessing by frequency, in 2 evaluations in a row" in status["reason"]
    assert metric_rows(folder)[-1]["step"] == 10
    assert (
        read_status(train_anew(tiny("optim.learning_rate=1e-12", "train.hopeless_after=0")))["state"]
        == "finished"
    )

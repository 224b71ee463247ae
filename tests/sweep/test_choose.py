"""The settings at which the fewest trials diverge are chosen, and of these those of the lowest mean loss."""

import math
from pathlib import Path

from sweep.choose import choose, titles
from sweep.job import Job
from sweep.trials import Round


def job(overrides: tuple[str, ...], loss: float | None) -> Job:
    made = Job(overrides, " ".join(overrides), Path())
    state = ("failed", math.inf, "too large") if loss is None else ("finished", loss, "")
    made.outcome = lambda: state  # type: ignore[method-assign]
    made.select_loss = lambda: loss  # type: ignore[method-assign]
    return made


class Losses:
    """A sweep whose runs end at losses that depend on the arm, the settings and the seed."""

    def __init__(self, losses):
        self.losses, self.asked = losses, []

    def run(self, all_overrides):
        self.asked.append(list(all_overrides))
        return [job(o, self.losses[o[0], o[1]][int(o[3][-1])]) for o in all_overrides]


ROUNDS = [Round(trials=1, steps=0.1, seeds=1), Round(trials=0.5, steps=1, seeds=2)]
SEEDS = ["seed=0", "seed=1"]


def test_the_best_go_on_and_the_best_mean_without_divergence_is_chosen(capsys):
    losses = {
        ("norm=a", "r=1"): [1.0, 4.0],
        ("norm=a", "r=2"): [2.0, 2.0],
        ("norm=a", "r=3"): [9.0, 0.1],
        ("norm=a", "r=4"): [8.0, 0.1],
        ("norm=b", "r=1"): [math.inf, 1.0],
        ("norm=b", "r=2"): [1.0, math.inf],
        ("norm=b", "r=3"): [2.0, math.inf],
        ("norm=b", "r=4"): [3.0, 1.0],
    }
    sweep = Losses(losses)
    trials = [(f"r={i}",) for i in (1, 2, 3, 4)]
    jobs, chosen = choose(sweep.run, [("norm=a",), ("norm=b",)], trials, ROUNDS, SEEDS, steps=40)
    assert chosen == {("norm=a",): ("r=2",), ("norm=b",): ("r=2",)}
    assert len(jobs) == 8 + 8
    assert {o[2] for o in sweep.asked[0]} == {"train.steps=4"}
    assert {o[:2] for o in sweep.asked[1]} == {
        ("norm=a", "r=1"),
        ("norm=a", "r=2"),
        ("norm=b", "r=2"),
        ("norm=b", "r=3"),
    }
    printed = capsys.readouterr().out
    assert "  a: r=2 (val/select_loss 2.0000)" in printed
    assert "  b: r=2 (val/select_loss 1.0000; 1 diverged)" in printed


def test_a_failed_trial_ends_tuning_without_a_choice():
    sweep = Losses({("norm=a", "r=1"): [1.0, 1.0], ("norm=a", "r=2"): [None, None]})
    jobs, chosen = choose(sweep.run, [("norm=a",)], [("r=1",), ("r=2",)], ROUNDS, SEEDS, steps=40)
    assert (len(jobs), chosen) == (2, {})


def test_titles_tell_arms_apart():
    assert titles([("norm=a", "x=1"), ("norm=b", "x=1")]) == {("norm=a", "x=1"): "a", ("norm=b", "x=1"): "b"}
    arms = [("norm=a", "model.qk_norm=same"), ("norm=a", "model.embedding_norm=same")]
    assert [*titles(arms).values()] == ["a model.qk_norm=same", "a model.embedding_norm=same"]

"""Measure a speed-up: the steps and seconds until an arm's loss is as low as its baseline's last loss."""

import math
from dataclasses import dataclass

import numpy as np

from comparison.decisions import Row
from comparison.load import Run
from comparison.verdicts import Interval, interval

CURVE = "val/loss"


@dataclass
class Reach:
    """The places where the curves of an arm reach their baseline's last loss, by seed.

    Attributes:
        pairs: number of seeds that finished in both arms.
        steps, seconds: intervals over those of them that reach that loss, ``steps.n`` in number.
    """

    pairs: int
    steps: Interval
    seconds: Interval


def reach(row: Row) -> Reach | None:
    """Return when an arm reaches its baseline; None for a baseline, if curves were evaluated on different
    windows, if the baseline has several runs of a seed, or if no seed finished in both."""
    if not row.baseline:
        return None
    runs = (*row.group.runs, *row.baseline.best_group.runs)
    if len({run.config["train.eval_windows"] for run in runs}) > 1:
        return None
    goals = {run.seed: run.last(CURVE) for run in row.baseline.best_group.runs if not run.diverged}
    if len(goals) < len(row.baseline.best_group.runs) - len(row.baseline.best_group.diverged):
        return None  # a mean over a key: several runs of a seed
    goals = {seed: goal for seed, goal in goals.items() if math.isfinite(goal)}
    pairs = [(run, goals[run.seed]) for run in row.group.runs if run.seed in goals and not run.diverged]
    places = [(run, step) for run, goal in pairs if math.isfinite(step := first_step(run, goal))]
    seconds = [float(np.interp(step, run.axes["step"], run.axes["seconds"])) for run, step in places]
    steps = [step for _, step in places]
    return Reach(len(pairs), interval(steps), interval(seconds)) if pairs else None


def first_step(run: Run, goal: float) -> float:
    """Return the step, between two evaluations by a straight line, at which the loss is first at most
    ``goal``; infinity if it never is."""
    steps, losses = run.curve(CURVE)
    below = np.flatnonzero(losses <= goal)
    if not len(below):
        return math.inf
    i = int(below[0])
    if i == 0:
        return float(steps[0])
    return float(np.interp(-goal, -losses[i - 1 : i + 1], steps[i - 1 : i + 1]))


def in_words(values: Interval, pairs: int, form: str) -> str:
    """Return a cell of the table: the mean with half of its interval, or how many seeds reach the loss if not
    all."""
    if values.n < pairs:
        return f"reached by {values.n} of {pairs}"
    half = f" ± {values.half:{form}}" if values.n > 1 else ""
    return f"{values.mean:{form}}{half}"

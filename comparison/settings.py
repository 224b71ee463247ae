"""Show the settings of arms that were tuned: what was chosen, and what the baseline's settings would cost."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comparison.curves import rounded
from comparison.decisions import Row
from comparison.groups import as_text, short_names, title
from comparison.roles import Arm
from comparison.verdicts import Interval, interval, paired


@dataclass
class Choice:
    """The settings of an arm.

    Attributes:
        borrowed: the metric at the settings of the arm's baseline; None if these were not tried, if they are
            its own, or if a run diverged.
        difference: the metric at its own settings minus ``borrowed``, paired by seed.
        note: why there is no ``borrowed``.
    """

    arm: Arm
    own: Interval
    borrowed: Interval | None = None
    difference: Interval | None = None
    note: str = "—"

    @property
    def first_losses(self) -> list[float]:
        """The loss of each setting in the first round of trials, infinite if a trial diverged."""
        scores = self.arm.rounds()[0].scores.values() if self.arm.trials else []
        return [math.inf if diverged else loss for diverged, loss in scores]


def choices(rows: Sequence[Row], arms: Sequence[Arm], metric: str) -> list[Choice]:
    """Return the choice of each arm in the order of the rows; [] unless each arm has one setting, and the
    settings of more than the learning rate were chosen."""
    by_title = {arm.title: arm for arm in arms}
    if len(by_title) < len(arms) or any(len(arm.settings) != 1 or len(arm.roles.keys) == 1 for arm in arms):
        return []
    result = []
    for row in rows:
        choice = Choice(by_title[row.title], row.loss)
        if row.baseline:
            [settings] = by_title[title(row.baseline.keys)].settings
            runs = [run for run in choice.arm.borrowed if choice.arm.roles.settings(run) == settings]
            diverged = sum(run.diverged for run in runs)
            if settings in choice.arm.settings:
                choice.note = "the same"
            elif diverged:
                choice.note = f"{diverged} of {len(runs)} diverged"
            elif runs:
                losses = {run.seed: run.last(metric) for run in runs}
                choice.borrowed = interval([*losses.values()])
                choice.difference = interval(paired(row.group.losses, losses))
        result.append(choice)
    return result


def cost_of_half(losses: Sequence[float]) -> float:
    """Return by how much the lowest of a random half of ``losses`` is expected to be above the lowest of all
    (Dodge et al. 2019, arXiv 1909.03004, without replacement): what an arm owes to the number of its trials.
    An infinite loss counts as the highest finite one. NaN for fewer than two."""
    worst = max((loss for loss in losses if math.isfinite(loss)), default=math.nan)
    ordered = sorted(min(loss, worst) for loss in losses)
    half = len(ordered) // 2
    if not half or math.isnan(worst):
        return math.nan
    is_lowest = [math.comb(len(ordered) - 1 - i, half - 1) for i in range(len(ordered))]  # in how many halves
    return sum(map(operator.mul, ordered, is_lowest)) / math.comb(len(ordered), half) - ordered[0]


def tried(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Return a row for each setting that the first trials tried, the arm with the lowest loss first: group,
    settings in words, loss (None if a trial diverged), outcome (chosen, other or diverged)."""
    arms = [choice.arm for choice in choices if choice.arm.trials]
    lowest = {arm.title: min(loss for _, loss in arm.rounds()[0].scores.values()) for arm in arms}
    rows = []
    for arm in sorted(arms, key=lambda arm: lowest[arm.title]):
        for settings, (diverged, loss) in arm.rounds()[0].scores.items():
            pairs = zip(short_names(arm.roles.keys).values(), map(as_text, settings), strict=True)
            outcome = "chosen" if settings in arm.settings else "other"
            rows.append(
                {
                    "group": arm.title,
                    "settings": ", ".join(map(" ".join, pairs)),
                    "loss": None if diverged else rounded(loss),
                    "outcome": "diverged" if diverged else outcome,
                }
            )
    return rows

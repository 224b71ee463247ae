"""Show the settings of arms that were tuned: what was chosen, and what the baseline's settings would cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.decisions import Row
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
            [settings] = next(arm.settings for arm in arms if arm.keys == row.baseline.keys)
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

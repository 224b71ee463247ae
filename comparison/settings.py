"""Show the settings of arms that were tuned: what was chosen, and what the baseline's settings would cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from comparison.decisions import Row
from comparison.roles import Arm, Settings
from comparison.verdicts import Interval, interval, paired


@dataclass
class Choice:
    """The settings of an arm.

    Attributes:
        borrowed: the metric at the settings of the arm's baseline; None if these were not tried.
        gain: the metric at its own settings minus ``borrowed``, paired by seed.
    """

    arm: Arm
    own: Interval
    borrowed: Interval | None = None
    gain: Interval | None = None


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
            at_those = losses_at(choice.arm, settings, metric)
            choice.borrowed = interval([*at_those.values()]) if at_those else None
            choice.gain = interval(paired(row.group.losses, at_those)) if at_those else None
        result.append(choice)
    return result


def losses_at(arm: Arm, settings: Settings, metric: str) -> dict[int, float]:
    """Return the metric by seed of an arm's compared or borrowed runs at ``settings``; {} if one diverged."""
    runs = [run for run in (*arm.compared, *arm.borrowed) if arm.roles.settings(run) == settings]
    return {} if any(run.diverged for run in runs) else {run.seed: run.last(metric) for run in runs}

"""What depends on the step alone: the learning rate, and whether to evaluate, save, log or measure."""

import math
from dataclasses import dataclass

from cli.schema import ScheduleConfig, StatsConfig, TrainConfig

SHAPES = {  # t is 0 at the end of warm-up, where each shape is 1, and 1 after the last update
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}
DENSE_START = (16, 256, 4096)  # steps with statistics: a run changes most at the beginning


class Schedule:
    """``schedule(step)`` is the learning rate of update ``step`` < ``steps``: it rises to ``peak``, then
    falls towards ``final_fraction`` of the peak.

    Attributes:
        warmup: updates before the peak.
    """

    def __init__(self, config: ScheduleConfig, peak: float, steps: int) -> None:
        self.config, self.peak, self.steps = config, peak, steps
        self.warmup = round(config.warmup_fraction * steps)

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * ((step + 1) / (self.warmup + 1))
        t = (step - self.warmup) / max(1, self.steps - self.warmup)
        final = self.config.final_fraction
        return self.peak * (final + (1 - final) * SHAPES[self.config.shape](t))


@dataclass(frozen=True)
class Due:
    """What is due at a step. The last step makes no update."""

    evaluation: bool
    checkpoint: bool
    log: bool
    statistics: bool
    histograms: bool


def due_at(step: int, train: TrainConfig, stats: StatsConfig) -> Due:
    is_last = step == train.steps
    evaluation = is_last or is_due(step, train.eval_every)
    is_last_update = step == train.steps - 1  # its loss tells whether the run collapsed
    return Due(
        evaluation=evaluation,
        checkpoint=is_last or (step > 0 and is_due(step, train.checkpoint_every)),
        log=evaluation or is_last_update or is_due(step, train.log_every),
        statistics=is_due(step, stats.every, dense_start=True) or (is_last and stats.every > 0),
        histograms=is_due(step, stats.histograms_every) or (is_last and stats.histograms_every > 0),
    )


def is_due(step: int, every: int, dense_start: bool = False) -> bool:
    """Return whether a thing that is done every ``every`` steps (0: never) is due at ``step``. With a dense
    start, it is also due at the steps of DENSE_START that are less than ``every``."""
    if every == 0:
        return False
    return step % every == 0 or (dense_start and step < every and step in DENSE_START)

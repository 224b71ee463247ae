"""The learning rate as a pure function of the step: linear warm-up, then cosine, linear or no decay."""

import math

from cli.schema import ScheduleConfig

SHAPES = {  # t goes from 0 at the end of warm-up, where each shape is 1, to 1 after the last update
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}


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

"""Score settings by the losses of their trials, for sweeps, which choose, and for tables, which verify."""

import math
from collections.abc import Iterable
from statistics import fmean

Score = tuple[int, float]  # how many trials diverged, and the mean loss of the others; less is better


def score(losses: Iterable[float]) -> Score:
    """Return the score of settings from the losses of their trials, infinite for those that diverged."""
    values = [*losses]
    finished = [loss for loss in values if math.isfinite(loss)]
    return len(values) - len(finished), fmean(finished) if finished else math.inf

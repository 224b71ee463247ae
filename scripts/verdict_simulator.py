"""Draw tables of differences and count comparison/verdicts.py's false verdicts, for simulate_verdicts.py.

Losses are the seed's effect, which all arms share and which leaves the differences, plus noise. The unit is
the sd of the difference of an arm and the baseline; half its variance is the baseline's noise, in all arms.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from comparison.verdicts import decide, looks

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Event = Callable[[Array], Bools]  # differences (tables, arms, seeds) -> (tables,)
Sample = Callable[[np.random.Generator, tuple[int, ...]], Array]

ARMS, PLANS = (1, 7, 20), (3, 5, 10)
BATCH = 2500  # tables in memory
NOISES: dict[str, Sample] = {  # of variance 1
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t, 3 df": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "exponential": lambda rng, shape: rng.standard_exponential(shape) - 1,
    "lognormal": lambda rng, shape: (rng.lognormal(0, 1, shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e),
}
SPREADS = {  # sds of the arms' noise (in turn), and of the baseline's
    "one arm 5 ×": ("one", 1),
    "two arms 5 ×": ("two", 1),
    "half the arms 5 ×": ("half", 1),
    "all but one 5 ×": ("most", 1),
    "arms 1 … 5 ×": ("range", 1),
    "half the arms and the baseline 5 ×": ("half", 5),
    "arms 1 … 5 ×, baseline 3 ×": ("range", 3),
    "the baseline alone 5 ×": ("none", 5),
    "one arm 20 ×": ("twenty", 1),
}


class Simulator:
    """Draws tables and counts what is true of them."""

    def __init__(self, tables: int) -> None:
        self.tables = tables
        self.rng = np.random.default_rng(0)

    def differences(
        self,
        arms: int,
        seeds: int,
        means: Array | float = 0,
        sds: Array | float = 1,
        base: float = 1,
        noise: str = "normal",
    ) -> Iterable[Array]:
        """Yield batches (tables, arms, seeds)."""
        for start in range(0, self.tables, BATCH):
            tables = min(BATCH, self.tables - start)
            arm = NOISES[noise](self.rng, (tables, arms, seeds)) * np.reshape(sds, (-1, 1))
            baseline = base * NOISES[noise](self.rng, (tables, 1, seeds))
            yield (arm - baseline) / np.sqrt(2) + np.reshape(means, (-1, 1))

    def share(self, batches: Iterable[Array], event: Event) -> str:
        """Return how often an event happens, in %; ``event`` maps differences to (tables,) of bool."""
        return f"{100 * np.mean(np.concatenate([event(batch) for batch in batches])):.1f}"


def sds_of(kind: str, arms: int) -> Array:
    sds = np.ones(arms)
    noisy = {"one": 1, "two": 2, "half": (arms + 1) // 2, "most": max(1, arms - 1), "twenty": 1}.get(kind, 0)
    sds[:noisy] = 20 if kind == "twenty" else 5
    return np.geomspace(1, 5, arms) if kind == "range" and arms > 1 else sds


def false_verdict(
    planned: int | None, comparisons: int, means: Array | float = 0, matters: float = 0
) -> Event:
    """Return the event that a table has a false verdict at any look. Adjusted p-values never rise from look
    to look, so the last has every verdict that there was. Only a side may change, so, where differences are
    not 0, the first is looked at, too."""

    def event(x: Array) -> Bools:
        truth = np.broadcast_to(means, x.shape[1])
        false = np.zeros(len(x), bool)
        for size in {looks(planned)[0][0] if np.any(truth) else x.shape[2], x.shape[2]}:
            verdict = decide(x[..., :size], planned, comparisons, matters).verdict
            wrong = (verdict == "lower") & (truth >= 0) | (verdict == "higher") & (truth <= 0)
            false |= np.any(wrong | (verdict == "equivalent") & (np.abs(truth) >= matters), axis=1)
        return false

    return event


def first_arm_is(word: str, planned: int | None, comparisons: int, matters: float = 0) -> Event:
    return lambda x: decide(x, planned, comparisons, matters).verdict[:, 0] == word


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
        print(f"{time.strftime('%H:%M:%S')} {row[0]}", file=sys.stderr)

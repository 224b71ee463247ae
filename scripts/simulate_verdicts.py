"""Simulate the verdicts of comparison/verdicts.py, print tables: python -m scripts.simulate_verdicts"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy.special import stdtrit

from comparison.verdicts import decide, looks
from scripts.verdict_candidates import (
    rates_of_the_compared_runs,
    rules_for_more_seeds,
    stepping_down,
    tests_of_a_look,
)
from scripts.verdict_simulator import (
    ARMS,
    NOISES,
    PLANS,
    SPREADS,
    Array,
    Simulator,
    false_verdict,
    print_table,
    sds_of,
)

Cell = Callable[[int, int], str]  # arms, planned seeds -> a cell


def coverage(s: Simulator) -> None:
    def row(name: str, base: str) -> list[str]:
        cells = []
        for n in PLANS:

            def covers(x: Array, n=n) -> Array:
                half = stdtrit(n - 1, 0.975) * x.std(2, ddof=1) / np.sqrt(n)
                return (np.abs(x.mean(2)) <= half)[:, 0]

            shape = (s.tables * 2, 1, n)
            x = (NOISES[name](s.rng, shape) - NOISES[base](s.rng, shape)) / np.sqrt(2)
            cells.append(s.share([x], covers))
        return [name if base == name else f"{name}; baseline normal", *cells]

    pairs = [(name, name) for name in NOISES] + [(name, "normal") for name in NOISES if name != "normal"]
    print_table(
        "Coverage of the 95 % t-interval, %",
        ["noise", *(f"{n} seeds" for n in PLANS)],
        (row(*p) for p in pairs),
    )


def table_of(s: Simulator, seeds: int | None, noise: str, planned: bool = True) -> Cell:
    def cell(arms: int, n: int) -> str:
        batches = s.differences(arms, seeds or n, noise=noise)
        return s.share(batches, lambda x: false_verdict(x, n if planned else None, arms, 0, 0))

    return cell


def print_cells(
    title: str, rows: dict[str, Cell], arms: Sequence[int] = ARMS, plans: Sequence[int] = PLANS
) -> None:
    header = ["", *(f"arms: {a}, seeds: {n}" for a in arms for n in plans)]
    print_table(title, header, ([k, *(cell(a, n) for a in arms for n in plans)] for k, cell in rows.items()))


def false_verdicts(s: Simulator) -> None:
    rows = {noise: table_of(s, None, noise) for noise in NOISES}
    print_cells("Tables with a false verdict, %, all differences 0, at the plan", rows)


def looked_at_again(s: Simulator) -> None:
    def by_hand(arms: int, n: int) -> str:
        def event(x: Array) -> Array:
            return false_verdict(x.reshape(-1, 1, x.shape[2]), n, arms, 0, 0).reshape(len(x), arms).any(1)

        return s.share(s.differences(arms, 50), event)

    def best_as_baseline(arms: int, n: int) -> str:
        def event(x: Array) -> Array:
            groups = np.concatenate([np.zeros_like(x[:, :1]), x], 1)
            order = np.argsort(groups.mean(2), 1)
            groups = np.take_along_axis(groups, order[..., None], 1)
            return false_verdict(groups[:, 1:] - groups[:, :1], n, arms * (arms + 1) // 2, 0, 0)

        return s.share(s.differences(arms, n), event)

    rows = {"the lowest of all as baseline, at the plan": best_as_baseline}
    rows["the plan and all looks to 50"] = table_of(s, 50, "normal")
    print_cells("The same, all differences 0, looked at again or after choosing", rows)
    print_cells("The arms looked at one by one, at the plan and all looks to 50", {"": by_hand}, (20,))
    rows = {noise: table_of(s, 50, noise, planned=False) for noise in NOISES}
    print_cells("Without a plan, at all looks from 3 to 50", rows, plans=(50,))


def unequal_noise(s: Simulator) -> None:
    rows = []
    for name, (kind, base) in SPREADS.items():
        cells = [
            s.share(
                s.differences(a, n, 0, sds_of(kind, a), base),
                lambda x, a=a, n=n: false_verdict(x, n, a, 0, 0),
            )
            for a in (4, 5, 7, 20)
            for n in PLANS
        ]
        rows.append([name, *cells])
    header = ["noise", *(f"arms: {a}; {n}" for a in (4, 5, 7, 20) for n in PLANS)]
    print_table("Tables with a false verdict, %, at the plan, the arms' noise unequal", header, rows)


def equivalence(s: Simulator) -> None:
    """True differences at 0, at what matters, and far."""
    tables = {
        "all at what matters": lambda arms, m: np.full(arms, m),
        "half at +, half at − what matters": lambda arms, m: m * (-1.0) ** np.arange(arms),
        "0, what matters, 10 ×, in turn": lambda arms, m: np.resize([0, m, 10 * m], arms),
    }
    rows = []
    for name, means_of in tables.items():
        for m in (1.0, 2.0, 4.0):
            row = [f"{name}, {m:g} sd"]
            for seeds, plan in ((3, 3), (5, 5), (10, 10), (50, 3), (50, None)):
                for arms in ARMS:
                    means = means_of(arms, m)

                    def event(x: Array, plan=plan, arms=arms, means=means, m=m) -> Array:
                        return false_verdict(x, plan, arms, means, m)

                    row.append(s.share(s.differences(arms, seeds, means), event))
            rows.append(row)
    looks_of = (
        "at the plan, 3",
        "at the plan, 5",
        "at the plan, 10",
        "plan 3, looks to 50",
        "no plan, to 50",
    )
    header = ["true differences", *(f"{words}; arms: {a}" for words in looks_of for a in ARMS)]
    print_table("Tables with a false verdict, %, arms that differ", header, rows)


def power(s: Simulator) -> None:
    rows = []
    for arms in ARMS:
        row = [str(arms)]
        for n in PLANS:
            for effect in (1, 2, 3):
                batches = s.differences(arms, n, np.eye(arms)[0] * effect)
                row.append(
                    s.share(batches, lambda x, n=n, a=arms: decide(x, n, a, 0).verdict[:, 0] == "higher")
                )
        rows.append(row)
    header = ["arms", *(f"{n} seeds, {e} sd" for n in PLANS for e in (1, 2, 3))]
    print_table("Power at the plan, %, one arm differs", header, rows)
    rows = []
    for m in (1.0, 2.0, 4.0):
        cells = [
            s.share(
                s.differences(a, n), lambda x, n=n, a=a, m=m: decide(x, n, a, m).verdict[:, 0] == "equivalent"
            )
            for a in ARMS
            for n in PLANS
        ]
        rows.append([f"{m:g} sd", *cells])
    header = ["what matters", *(f"arms: {a}; {n}" for a in ARMS for n in PLANS)]
    print_table("Equal arms that are called equivalent at the plan, %", header, rows)


def seeds_to_a_verdict(s: Simulator) -> None:
    rows = []
    for plan in (3, 5, 10, None):
        for arms in ARMS:
            row = ["none" if plan is None else str(plan), str(arms)]
            for effect in (1, 2, 3):
                seeds = []
                for x in Simulator.differences(s, arms, 50, np.eye(arms)[0] * effect):
                    at = np.full(len(x), 50)
                    for size, _ in reversed(looks(plan)):
                        at[decide(x[..., :size], plan, arms, 0).verdict[:, 0] != "open"] = size
                    seeds.append(at)
                row.append(f"{np.concatenate(seeds).mean():.1f}")
            rows.append(row)
    print_table(
        "Mean seeds to a verdict, seeds added one by one to 50",
        ["planned", "arms", "1 sd", "2 sd", "3 sd"],
        rows,
    )


SECTIONS = {
    "Candidates": [tests_of_a_look, rules_for_more_seeds, stepping_down, rates_of_the_compared_runs],
    "The rule": [
        coverage,
        false_verdicts,
        looked_at_again,
        unequal_noise,
        equivalence,
        power,
        seeds_to_a_verdict,
    ],
}


def printed(function: Callable[[Simulator], None], tables: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function(Simulator(tables))
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000, help="per cell")
    options = parser.parse_args()
    start = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        for name, functions in [*SECTIONS.items()]:
            print(f"\n## {name}")
            for text in pool.map(printed, functions, [options.tables] * len(functions)):
                print(text, end="", flush=True)
    error = 100 * np.sqrt(0.05 * 0.95 / options.tables)
    print(f"\n{options.tables:,} tables a cell: 5 % ± {2 * error:.1f} (2 standard errors). ", end="")
    print(f"It took {(time.monotonic() - start) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()

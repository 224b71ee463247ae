"""Simulate the verdicts of comparison/verdicts.py, and print the tables of "The rule" in results/verdicts.md:
python -m scripts.simulate_verdicts"""

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy.special import stdtrit

from cli import programs
from comparison.verdicts import decide, looks
from scripts.verdict_simulator import (
    ARMS,
    NOISES,
    PLANS,
    SPREADS,
    Array,
    Bools,
    Simulator,
    false_verdict,
    first_arm_is,
    print_table,
    sds_of,
)

Cell = Callable[[int, int], str]  # arms, planned seeds -> a cell


def covers(x: Array) -> Bools:
    n = x.shape[2]
    return np.abs(x.mean(2))[:, 0] <= stdtrit(n - 1, 0.975) * x.std(2, ddof=1)[:, 0] / np.sqrt(n)


def coverage(s: Simulator) -> None:
    rows = []
    for base in ("same", "normal"):
        for name in list(NOISES)[base == "normal" :]:
            cells = []
            for n in PLANS:
                baseline = NOISES[name if base == "same" else base](s.rng, (s.tables, 1, n))
                cells.append(s.share([(NOISES[name](s.rng, baseline.shape) - baseline) / np.sqrt(2)], covers))
            rows.append([name + "; baseline normal" * (base == "normal"), *cells])
    print_table("Coverage of the 95 % t-interval, %", ["noise", *(f"{n} seeds" for n in PLANS)], rows)


def table_of(s: Simulator, seeds: int | None, noise: str, planned: bool = True) -> Cell:
    def cell(arms: int, n: int) -> str:
        batches = s.differences(arms, seeds or n, noise=noise)
        return s.share(batches, false_verdict(n if planned else None, arms))

    return cell


def print_cells(
    title: str, rows: dict[str, Cell], arms: Sequence[int] = ARMS, plans: Sequence[int] = PLANS
) -> None:
    header = ["", *(f"arms: {a}, seeds: {n}" for a in arms for n in plans)]
    print_table(title, header, ([k, *(cell(a, n) for a in arms for n in plans)] for k, cell in rows.items()))


def false_verdicts(s: Simulator) -> None:
    rows = {noise: table_of(s, None, noise) for noise in NOISES}
    print_cells("Tables with a false verdict, %, all true differences 0, at the planned seeds", rows)


def looked_at_again(s: Simulator) -> None:
    def by_hand(arms: int, n: int) -> str:
        def event(x: Array) -> Bools:
            alone = false_verdict(n, arms)(x.reshape(-1, 1, x.shape[2]))
            return np.any(alone.reshape(len(x), arms), axis=1)

        return s.share(s.differences(arms, 50), event)

    def best_as_baseline(arms: int, n: int) -> str:
        def event(x: Array) -> Bools:
            groups = np.concatenate([np.zeros_like(x[:, :1]), x], 1)
            groups = np.take_along_axis(groups, np.argsort(groups.mean(2), 1)[..., None], 1)
            return false_verdict(n, arms * (arms + 1) // 2)(groups[:, 1:] - groups[:, :1])

        return s.share(s.differences(arms, n), event)

    rows: dict[str, Cell] = {"the lowest of all as baseline, at the plan": best_as_baseline}
    rows["the plan and all looks to 50"] = table_of(s, 50, "normal")
    print_cells("The same, all differences 0, looked at again or after choosing", rows)
    print_cells("The arms looked at one by one, at the plan and all looks to 50", {"": by_hand}, (20,))
    rows = {noise: table_of(s, 50, noise, planned=False) for noise in NOISES}
    print_cells("Without a plan, at all looks from 3 to 50", rows, plans=(50,))


def unequal_noise(s: Simulator) -> None:
    def of(kind: str, base: float) -> Cell:
        return lambda a, n: s.share(s.differences(a, n, 0, sds_of(kind, a), base), false_verdict(n, a))

    def finds(kind: str, base: float) -> Cell:
        def cell(a: int, n: int) -> str:
            x = s.differences(a, n, 2 * np.eye(a)[-1], sds_of(kind, a), base)
            return s.share((each[:, ::-1] for each in x), first_arm_is("higher", n, a))

        return cell

    def twins(a: int, n: int) -> str:
        x = s.differences(a, n, 0, sds_of("two", a))
        return s.share((each[:, [0, 0, *range(2, a)]] for each in x), false_verdict(n, a))

    rows = {name: of(*spread) for name, spread in SPREADS.items()}
    rows["two arms 5 ×, the same function"] = twins
    print_cells("Tables with a false verdict, %, at the plan, the noise unequal", rows, (4, 5, 7, 20))
    rows = {name: finds(*spread) for name, spread in SPREADS.items()}
    print_cells(
        "Power at the plan, %, the last arm differs by 2 sd; it is quiet, or the noisiest of arms 1 … 5 ×",
        rows,
        (4, 7),
    )


def equivalence(s: Simulator) -> None:
    """True differences at 0, at what matters, and far."""
    tables = {
        "all at what matters": lambda arms, m: np.full(arms, m),
        "half at +, half at − what matters": lambda arms, m: m * (-1.0) ** np.arange(arms),
        "0, what matters, 10 ×, in turn": lambda arms, m: np.resize([0, m, 10 * m], arms),
    }
    cases = [(n, n, arms) for n in PLANS for arms in ARMS] + [(50, 3, 1), (50, 3, 7), (50, None, 7)]
    rows = []
    for name, means_of in tables.items():
        for m in (1.0, 2.0, 4.0):
            row = [f"{name}, {m:g} sd"]
            for seeds, plan, arms in cases:
                means = means_of(arms, m)
                batches = s.differences(arms, seeds, means)
                row.append(s.share(batches, false_verdict(plan, arms, means, m)))
            rows.append(row)
    when = [f"seeds: {n}" if n == plan else f"plan: {plan}, looks to {n}" for n, plan, _ in cases]
    header = [
        "true differences",
        *(f"arms: {arms}, {w}" for w, (_, _, arms) in zip(when, cases, strict=True)),
    ]
    print_table("Tables with a false verdict, %, arms that differ", header, rows)


def power(s: Simulator) -> None:
    def finds(effect: float) -> Cell:
        return lambda a, n: s.share(s.differences(a, n, np.eye(a)[0] * effect), first_arm_is("higher", n, a))

    def equals(m: float) -> Cell:
        return lambda a, n: s.share(s.differences(a, n), first_arm_is("equivalent", n, a, m))

    rows = {f"{effect} sd": finds(effect) for effect in (1, 2, 3)}
    print_cells("Power at the plan, %, one arm differs by", rows)
    rows = {f"{m} sd": equals(m) for m in (1, 2, 4)}
    print_cells("Equal arms that are called equivalent at the plan, %, where this matters", rows)


def seeds_to_a_verdict(s: Simulator) -> None:
    s = Simulator(max(1, s.tables // 10))  # every look of every table
    rows = []
    for plan in (3, 5, 10, None):
        for arms in ARMS:
            row = ["none" if plan is None else str(plan), str(arms)]
            for effect in (1, 2, 3):
                seeds = []
                for x in s.differences(arms, 50, np.eye(arms)[0] * effect):
                    at = np.full(len(x), 50)
                    for size, _ in reversed(looks(plan)):
                        at[decide(x[..., :size], plan, arms, 0).verdict[:, 0] != "open"] = size
                    seeds.append(at)
                row.append(f"{np.concatenate(seeds).mean():.1f}")
            rows.append(row)
    print_table(
        f"Mean seeds to a verdict, seeds added one by one to 50 ({s.tables} tables)",
        ["planned", "arms", "1 sd", "2 sd", "3 sd"],
        rows,
    )


def coverage_of_findings(s: Simulator) -> None:
    """How often a finding's interval of the difference of two arms, each at the rate that 2 more seeds chose,
    has the true difference at these rates."""
    landscapes = {
        "5 equal rates": np.zeros(5),
        "one of 5 better by 1 sd": np.array([0, 1, 1, 1, 1]),
        "a valley": np.array([4, 1, 0, 1, 4]),
        "a valley beside a cliff": np.array([4, 1, 0, 9, 9]),
    }
    rows = []
    for name, means in landscapes.items():
        cells = []
        for n in (3, 5):
            noise = s.rng.standard_normal((s.tables, 2, 5, n + 2)) / np.sqrt(2)
            losses = noise + means[:, None]  # (tables, arms, rates, seeds)
            best = losses[..., n:].mean(3).argmin(2)
            at_best = np.take_along_axis(losses[..., :n], best[..., None, None], 2)[:, :, 0]
            errors = at_best - means[best][..., None]
            cells.append(s.share([errors[:, :1] - errors[:, 1:]], covers))
        rows.append([name, *cells])
    title = "Coverage of a finding's 95 % interval, each arm at the rate that 2 more seeds chose, %"
    print_table(title, ["losses at the rates", "3 seeds", "5 seeds"], rows)


TABLES = [
    coverage,
    coverage_of_findings,
    false_verdicts,
    looked_at_again,
    unequal_noise,
    equivalence,
    power,
    seeds_to_a_verdict,
]


def printed(function: Callable[[Simulator], None], tables: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function(Simulator(tables))
    return text.getvalue()


def main() -> None:
    parser = programs.parser(__doc__, "scripts.simulate_verdicts")
    parser.add_argument("--tables", type=programs.positive, default=10_000, help="per cell")
    options = parser.parse_args()
    start = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        for text in pool.map(printed, TABLES, [options.tables] * len(TABLES)):
            print(text, end="", flush=True)
    error = 100 * np.sqrt(0.05 * 0.95 / options.tables)
    print(f"\n{options.tables:,} tables a cell: 5 % ± {2 * error:.1f} (2 standard errors). ", end="")
    print(f"It took {(time.monotonic() - start) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()

"""Simulate the verdicts of comparison/verdicts.py, print tables: python -m scripts.simulate_verdicts"""

import argparse
import time
from collections.abc import Callable

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


def false_verdicts(s: Simulator) -> None:
    def cells(event_of: Callable[[int, int | None, int], str]) -> list[str]:
        return [event_of(arms, n, n) for arms in ARMS for n in PLANS]

    def simple(noise: str, seeds: int | None, planned: bool = True) -> Callable[[int, int | None, int], str]:
        def cell(arms: int, plan: int | None, n: int) -> str:
            p = plan if planned else None
            return s.share(
                s.differences(arms, seeds or n, noise=noise), lambda x: false_verdict(x, p, arms, 0, 0)
            )

        return cell

    def by_hand(arms: int, plan: int | None, n: int) -> str:
        def event(x: Array) -> Array:
            return false_verdict(x.reshape(-1, 1, x.shape[2]), plan, arms, 0, 0).reshape(len(x), arms).any(1)

        return s.share(s.differences(arms, 50), event)

    def best_as_baseline(arms: int, plan: int | None, n: int) -> str:
        def event(x: Array) -> Array:
            groups = np.concatenate([np.zeros_like(x[:, :1]), x], 1)
            order = np.argsort(groups.mean(2), 1)
            groups = np.take_along_axis(groups, order[..., None], 1)
            return false_verdict(groups[:, 1:] - groups[:, :1], plan, arms * (arms + 1) // 2, 0, 0)

        return s.share(s.differences(arms, n), event)

    header = ["", *(f"{arms} arm{'s' * (arms > 1)}, {n}" for arms in ARMS for n in PLANS)]
    rows = ([f"at the plan, {noise}", *cells(simple(noise, None))] for noise in NOISES)
    print_table("Tables with a false verdict, %, all differences 0, by arms and planned seeds", header, rows)
    more = {
        "at the plan and all looks to 50": simple("normal", 50),
        "the same, t with 3 df": simple("t, 3 df", 50),
        "the arms looked at one by one, all looks to 50": by_hand,
        "baseline: the lowest arm, at the plan": best_as_baseline,
    }
    print_table(
        "The same, looked at again or after choosing", header, ([k, *cells(f)] for k, f in more.items())
    )
    rows = ([noise, *(simple(noise, 50, False)(arms, None, 3) for arms in ARMS)] for noise in NOISES)
    print_table(
        "The same without a plan, at all looks from 3 to 50", ["noise", *(f"{a} arms" for a in ARMS)], rows
    )


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
    header = ["noise", *(f"{a} arms, {n}" for a in (4, 5, 7, 20) for n in PLANS)]
    print_table("Tables with a false verdict, %, at the plan, the arms' noise unequal", header, rows)


def equivalence(s: Simulator) -> None:
    """True differences at 0, at what matters, and far."""
    tables = {
        "all at what matters": lambda arms, m: np.full(arms, m),
        "half at +, half at − what matters": lambda arms, m: m * (-1.0) ** np.arange(arms),
        "0, what matters, 10 ×, in turn": lambda arms, m: np.resize([0, m, 10 * m], arms),
    }
    for to, planned in ((0, True), (50, True), (50, False)):
        rows = []
        for name, means_of in tables.items():
            for m in (1.0, 2.0, 4.0, 8.0):
                cells = []
                for arms in ARMS:
                    for n in PLANS if planned else (3,):
                        means, plan = means_of(arms, m), n if planned else None
                        batches = s.differences(arms, to or n, means)
                        cells.append(
                            s.share(
                                batches, lambda x, p=plan, a=arms, w=means, m=m: false_verdict(x, p, a, w, m)
                            )
                        )
                rows.append([f"{name}, {m:g} sd", *cells])
        header = [
            "true differences",
            *(f"{a} arms" + f", {n}" * planned for a in ARMS for n in (PLANS if planned else (3,))),
        ]
        when = (
            "at the plan"
            if not to
            else f"at {'the plan and ' if planned else ''}all looks to 50{'' if planned else ', no plan'}"
        )
        print_table(f"Tables with a false verdict, %, {when}", header, rows)


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
    header = ["what matters", *(f"{a} arms, {n}" for a in ARMS for n in PLANS)]
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
    "candidates": [tests_of_a_look, rules_for_more_seeds, stepping_down, rates_of_the_compared_runs],
    "rule": [coverage, false_verdicts, unequal_noise, equivalence, power, seeds_to_a_verdict],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000, help="per cell")
    parser.add_argument("--only", choices=sorted(SECTIONS))
    options = parser.parse_args()
    start = time.monotonic()
    simulator = Simulator(options.tables)
    for name, tables in SECTIONS.items():
        if options.only in (None, name):
            print(f"\n## {name.capitalize()}")
            for table in tables:
                table(simulator)
    error = 100 * np.sqrt(0.05 * 0.95 / options.tables)
    print(f"\n{options.tables:,} tables a cell: 5 % ± {2 * error:.1f} (2 standard errors). ", end="")
    print(f"It took {(time.monotonic() - start) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()

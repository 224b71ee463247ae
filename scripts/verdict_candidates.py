"""Compare comparison/verdicts.py with the rules that were tried and lost, for scripts/simulate_verdicts.py.

A test takes differences (tables, arms, pairs) and returns two-sided p-values (tables, arms).
"""

from collections.abc import Callable

import numpy as np
from scipy.special import digamma, polygamma, stdtr

from comparison.moderation import inverse_trigamma, moderated_t
from comparison.verdicts import LOOKS, PLAN_ERROR
from scripts.verdict_simulator import ALPHA, SPREADS, Array, Bools, Event, Simulator, print_table, sds_of

Test = Callable[[Array], Array]


def p_of(mean: Array, variance: Array, n: int, degrees: Array | float) -> Array:
    return 2 * stdtr(degrees, -np.abs(mean) / np.sqrt(variance / n))


def plain(x: Array) -> Array:
    """Student 1908: one-sample t-tests, each with the variance of its arm alone."""
    return p_of(x.mean(2), x.var(2, ddof=1), x.shape[2], x.shape[2] - 1)


def smyth(x: Array, caution: float = 0) -> Array:
    """Smyth 2004, as limma does it: the common variance is a geometric mean; ``caution`` is the number of
    standard errors by which the spread of the log variances is taken to be larger than seen."""
    n, arms, own = x.shape[2], x.shape[1], x.var(2, ddof=1)
    if arms == 1:
        return plain(x)
    d = n - 1.0
    logs = np.log(own) - digamma(d / 2) + np.log(d / 2)
    noise = polygamma(1, d / 2)
    error = noise * np.sqrt(2 / (arms - 1) + polygamma(3, d / 2) / noise**2 / arms)
    excess = logs.var(1, ddof=1, keepdims=True) - noise + caution * error
    d0 = np.where(excess > 0, 2 * inverse_trigamma(np.maximum(excess, 1e-6)), 1e6)
    common = np.exp(logs.mean(1, keepdims=True) + digamma(d0 / 2) - np.log(d0 / 2))
    return p_of(x.mean(2), (d0 * common + d * own) / (d0 + d), n, np.minimum(d0 + d, arms * d))


def pooled(x: Array) -> Array:
    """One variance for all: the residual of arms and seeds (as Dunnett 1955)."""
    rows = np.concatenate([np.zeros_like(x[:, :1]), x], 1)
    rows = rows - rows.mean(2, keepdims=True)
    rows = rows - rows.mean(1, keepdims=True)
    degrees = x.shape[1] * (x.shape[2] - 1)
    return p_of(x.mean(2), 2 * (rows**2).sum((1, 2))[:, None] / degrees, x.shape[2], degrees)


def rule(x: Array) -> Array:
    """The test of comparison/verdicts.py."""
    return moderated_t(x, np.ones(x.shape[:2], bool), 0)[0]


def largest_e_values(x: Array, g: float = 1) -> Array:
    """Return the largest value so far of the t e-process with an effect ~ N(0, g) in sds (right-Haar scale;
    Pérez-Ortiz et al. 2024), (tables, arms, pairs); its reciprocal is a p-value at any look."""
    n = np.arange(1, x.shape[2] + 1)
    mean = x.cumsum(2) / n
    variance = np.maximum((x**2).cumsum(2) / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1)
    t2, k, d = mean**2 / (variance / n), 1 + n * g, np.maximum(n - 1, 1)
    logs = -0.5 * np.log(k) + n / 2 * (np.log1p(t2 / d) - np.log1p(t2 / (d * k)))
    logs[..., :2] = 0  # nothing is decided before the third pair
    return np.exp(np.maximum.accumulate(logs, 2))


def any_below(test: Test, arms: int) -> Event:
    return lambda x: np.any(test(x) * arms <= PLAN_ERROR, axis=1)


def first_below(test: Test, arms: int) -> Event:
    return lambda x: test(x)[:, 0] * arms <= PLAN_ERROR


def tests_of_a_look(s: Simulator) -> None:
    """Candidates for the test at the plan."""
    tests = {
        "own variances (before)": plain,
        "one pooled variance": pooled,
        "Smyth's, as limma": smyth,
        "Smyth's, cautious": lambda x: smyth(x, 1),
        "**the rule**": rule,
    }
    spreads = {"equal noise": ("none", 1), **{k: v for k, v in SPREADS.items() if "…" not in k}}
    for arms, n in ((7, 3), (7, 5), (20, 3)):
        rows = []
        for name, test in tests.items():
            any_false, finds = any_below(test, arms), first_below(test, arms)
            cells = [
                s.share(s.differences(arms, n, 0, sds_of(k, arms), b), any_false) for k, b in spreads.values()
            ]
            rows.append([name, *cells, s.share(s.differences(arms, n, np.eye(arms)[0] * 2), finds)])
        at = f"{arms} arms, {n} seeds; false verdicts in % at {100 * PLAN_ERROR:g} %"
        title = f"Candidates for the test at the plan: {at}"
        print_table(title, ["test", *spreads, "power, 2 sd"], rows)


def rules_for_more_seeds(s: Simulator) -> None:
    """Candidates for the looks, without a plan."""
    arms, most = 7, 50
    everywhere, doubling = range(3, most + 1), (3, 5, 10, 20, 40)
    schedules = {
        "5 looks, halves of 5 %": {n: ALPHA / 2 ** (i + 1) for i, n in enumerate(doubling)},
        "5 looks, equal parts": dict.fromkeys(doubling, ALPHA / 5),
        "every seed, equal parts": dict.fromkeys(everywhere, ALPHA / len(everywhere)),
        "**13 looks, equal parts**": dict.fromkeys(LOOKS, ALPHA / len(LOOKS)),
        "every seed, all of 5 % (before)": dict.fromkeys(everywhere, ALPHA),
        "planned 3 with 3 %, 12 looks with 2 %": {n: 0.03 if n == 3 else 0.02 / 12 for n in LOOKS},
        "planned 3 with 4 %, 12 looks with 1 %": {n: 0.04 if n == 3 else 0.01 / 12 for n in LOOKS},
        "**planned 3 with 4.5 %, 12 looks with 0.5 %**": {n: 0.045 if n == 3 else 0.005 / 12 for n in LOOKS},
    }
    results: dict[str, list[str]] = {
        name: [] for name in (*schedules, "e-process, g = 1", "e-process, g = ¼", "e-process, g = 4")
    }
    s = Simulator(s.tables // 2)
    for effect in (0, 0.5, 1, 2):
        decided: dict[str, list[Bools]] = {name: [] for name in results}
        for x in s.differences(arms, most, np.eye(arms)[0] * effect):
            p = {n: rule(x[..., :n]) * arms for n in everywhere}
            for name, schedule in schedules.items():
                at = np.array([p[n] <= schedule.get(n, 0) for n in everywhere])
                decided[name].append(np.moveaxis(np.maximum.accumulate(at), 0, 2))
            for name, g in (("e-process, g = 1", 1), ("e-process, g = ¼", 0.25), ("e-process, g = 4", 4)):
                decided[name].append(largest_e_values(x, g)[..., 2:] >= arms / ALPHA)
        for name, parts in decided.items():
            all_tables = np.concatenate(parts)
            seeds = most - all_tables[:, 0].sum(1) + (all_tables[:, 0, -1])
            share = all_tables[..., -1].any(1) if effect == 0 else all_tables[:, 0, -1]
            results[name] += [f"{100 * share.mean():.1f}"] + ([f"{seeds.mean():.1f}"] if effect else [])
    words = ("found", "mean seeds")
    header = ["looks", "false", *(f"{e:g} sd: {w}" for e in (0.5, 1, 2) for w in words)]
    print_table(
        f"Candidates for seeds added one by one to {most}, {arms} arms (%, undecided = {most} seeds)",
        header,
        ([k, *v] for k, v in results.items()),
    )


def stepping_down(s: Simulator) -> None:
    """Candidates for both hypotheses of an arm: arms at 0 and arms at what matters, in one table."""
    arms, n, means = 20, 10, np.repeat([0.0, 1.0], 10)

    def false(p: Array, p_equivalent: Array, share: Array) -> Bools:
        below = [p[:, :10] <= share[:, :10], p_equivalent[:, 10:] <= share[:, 10:]]
        return np.any(np.concatenate(below, 1), axis=1)

    def step_down(p: Array, p_equivalent: Array) -> Bools:
        """Holm 1979 over arms, each by the smaller of its p-values, which is its verdict."""
        both = np.minimum(p, p_equivalent)
        order = np.argsort(both, 1)
        ordered = np.take_along_axis(both, order, 1)
        decided = np.minimum.accumulate(ordered * np.arange(arms, 0, -1) <= ALPHA, 1)
        share = np.where(np.take_along_axis(decided, np.argsort(order, 1), 1), 1.0, 0.0)
        return false(
            np.where(p <= p_equivalent, 1 - share, 1), np.where(p > p_equivalent, 1 - share, 1), 0 * p
        )

    rows = []
    for noise in (0.2, 0.3, 0.4, 0.5, 0.6):
        shares: dict[str, list[Bools]] = {"Bonferroni": [], "Holm": []}
        for x in s.differences(arms, n, means / noise):
            p, p_equivalent = moderated_t(x, np.ones(x.shape[:2], bool), 1 / noise)
            shares["Bonferroni"].append(false(p, p_equivalent, np.full(p.shape, ALPHA / arms)))
            shares["Holm"].append(step_down(p, p_equivalent))
        rows.append(
            [f"{noise:g}", *(f"{100 * np.concatenate(parts).mean():.1f}" for parts in shares.values())]
        )
    title = (
        f"Holm's step-down over arms: 10 arms at 0, 10 at what matters, {n} seeds; false verdicts in % at 5 %"
    )
    print_table(title, ["sd of the difference / what matters", "**Bonferroni**", "Holm"], rows)


def cross_fit(a: Array, b: Array) -> Array:
    """Return the differences (tables, seeds) of two arms (tables, rates, seeds), a seed's rates chosen on the
    other seeds."""
    return on_others(a, a) - on_others(b, b)


def on_others(losses: Array, values: Array) -> Array:
    """Return an arm's ``values`` (tables, seeds) at the rates at which the other seeds' losses, (tables,
    rates, seeds), are lowest."""
    others = losses.sum(2, keepdims=True) - losses
    return np.take_along_axis(values, others.argmin(1)[:, None], 1)[:, 0]


def rates_of_the_compared_runs(s: Simulator) -> None:
    """Cross-fitting, where the compared runs chose the rates themselves."""
    landscapes = {
        "5 equal rates in both": (np.zeros(5), np.zeros(5)),
        "one of 5 better by 1 sd in both": (np.arange(5) > 0, np.arange(5) > 0),
        "one of 5 better by 3 sd in both": (3 * (np.arange(5) > 0), 3 * (np.arange(5) > 0)),
        "5 equal rates; the baseline: one better by 1 sd": (np.zeros(5), np.arange(5) > 0),
        "5 equal rates; the baseline: one rate": (np.zeros(5), np.zeros(1)),
    }
    rows = []
    for name, (a, b) in landscapes.items():
        row = [name]
        for n in (3, 5, 10):
            for effect in (0, 2):
                shape = (s.tables, 10, n)
                noise = s.rng.standard_normal(shape) / np.sqrt(2)
                x = cross_fit(noise[:, :5] + a[:, None] - effect, noise[:, 5 : 5 + len(b)] + b[:, None])
                row.append(f"{100 * np.mean(plain(x[:, None]) <= ALPHA):.1f}")
        rows.append(row)
    header = [
        "losses at the rates",
        *(f"{n} seeds: {w}" for n in (3, 5, 10) for w in ("false", "power, 2 sd")),
    ]
    print_table("Cross-fitting of the rates, one arm, t-test at 5 %", header, rows)


def rates_of_findings(s: Simulator) -> None:
    """How often a finding's interval of the difference of two arms has the true difference at the rates."""
    landscapes = {
        "5 equal rates": np.zeros(5),
        "one of 5 better by 1 sd": np.array([0, 1, 1, 1, 1]),
        "a valley": np.array([4, 1, 0, 1, 4]),
        "a valley beside a cliff": np.array([4, 1, 0, 9, 9]),
    }
    rows = []
    for name, means in landscapes.items():
        row = [name]
        for n in (3, 5):
            noise = s.rng.standard_normal((s.tables, 2, 5, n + 2)) / np.sqrt(2)
            losses = noise + means[:, None]
            arms = losses[..., :n].swapaxes(0, 1)
            crossed, other = (on_others(arm, arm - means[:, None]) for arm in arms)
            errors = crossed - other, errors_with_tuning_seeds(losses, means, n)
            row += [f"{100 * np.mean(covers_zero(x)):.1f}" for x in errors]
        rows.append(row)
    rules = ("the other seeds chose (before)", "**2 more seeds chose**")
    header = ["losses at the rates", *(f"{n} seeds: {rule}" for n in (3, 5) for rule in rules)]
    print_table("Coverage of a finding's 95 % interval, each arm at its best rate, %", header, rows)


def errors_with_tuning_seeds(losses: Array, means: Array, n: int) -> Array:
    """Return the differences (tables, n) of two arms at the rates that the seeds after the first n chose,
    minus the true differences; losses are (tables, arms, rates, seeds)."""
    best = losses[..., n:].mean(3).argmin(2)
    at_best = np.take_along_axis(losses[..., :n], best[..., None, None], 2)[:, :, 0]
    errors = at_best - means[best][..., None]
    return errors[:, 0] - errors[:, 1]


def covers_zero(x: Array) -> Bools:
    """Return which 95 % t-intervals of x, (tables, seeds), have 0."""
    return plain(x[:, None])[:, 0] > ALPHA

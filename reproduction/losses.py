"""Measured of the losses of trained models. Losses are val/full_loss, in nats per token; a run that diverged
counts as its loss at the start."""

import math

import numpy as np

from comparison.rates import sensitivity
from reproduction.cases import Case, Cases, Found


def losses(cases: Cases) -> dict[str, float]:
    """The final loss of each arm."""
    return {arm: cases[arm].loss() for arm in cases.arms}


def against_steps(cases: Cases) -> list[tuple[str, float, float]]:
    """For the picture: val/loss by step, of each arm."""
    return [
        (arm, float(step), float(loss))
        for arm in cases.arms
        for step, loss in zip(*cases[arm].run.curve("val/loss"), strict=True)
    ]


def final_losses(cases: Cases) -> Found:
    """Each arm's loss, and its difference from the first arm's."""
    found = losses(cases)
    first = cases.arms[0]
    differences = {f"{arm} − {first}": loss - found[first] for arm, loss in found.items() if arm != first}
    return Found({f"loss of {arm}": loss for arm, loss in found.items()} | differences, against_steps(cases))


def warm_up(cases: Cases) -> Found:
    """What leaving out the warm-up costs each placement: arms are called ``post, none`` and ``post,
    warm-up``."""
    found = losses(cases)
    placements = dict.fromkeys(arm.split(", ")[0] for arm in cases.arms)
    costs = {
        f"cost of no warm-up, {one}": found[f"{one}, none"] - found[f"{one}, warm-up"] for one in placements
    }
    return Found(costs | {f"loss of {arm}": loss for arm, loss in found.items()}, against_steps(cases))


# each at its own best learning rate


def by_rate(cases: Cases, arm: str) -> dict[float, float]:
    return {float(rate): case.loss() for rate, case in cases.over(arm).items()}


def best_rate(cases: Cases, arm: str) -> float:
    """The rate with the lowest mean loss over the other seeds: this one has no part in the choice."""
    tables = [by_rate(other, arm) for other in cases.others]
    return min(tables[0], key=lambda rate: float(np.mean([table[rate] for table in tables])))


def val_loss(case: Case, part: float) -> float:
    """After a part of the steps, between evaluations along a straight line."""
    steps, losses = case.run.curve("val/loss")
    return float(np.interp(part * case.config.train.steps, steps, losses))


def at_best_rate(cases: Cases) -> Found:
    """Each arm's loss at its own best rate, and relative to the first arm's; how much larger that ratio is
    (of val/loss) at the end than after half of the steps; ln of the best rate over the first arm's; and ln of
    the highest rate at which its loss is within 10 % of its best, over the first arm's."""
    best = {arm: best_rate(cases, arm) for arm in cases.arms}
    tables = {arm: by_rate(cases, arm) for arm in cases.arms}
    found = {arm: tables[arm][best[arm]] for arm in cases.arms}
    highest = {
        arm: max(r for r, loss in table.items() if loss <= 1.1 * found[arm]) for arm, table in tables.items()
    }
    halfway = {arm: val_loss(cases.over(arm)[best[arm]], 0.5) for arm in cases.arms}
    at_end = {arm: val_loss(cases.over(arm)[best[arm]], 1.0) for arm in cases.arms}
    first, *others = cases.arms
    values = {f"loss of {arm}": loss for arm, loss in found.items()}
    for arm in others:
        values |= {
            f"{arm} / {first} − 1": found[arm] / found[first] - 1,
            f"{arm} / {first}, at the end − halfway": at_end[arm] / at_end[first]
            - halfway[arm] / halfway[first],
            f"log10 of {arm}'s best rate / {first}'s": math.log10(best[arm] / best[first]),
            f"log10 of {arm}'s highest rate / {first}'s": math.log10(highest[arm] / highest[first]),
        }
    return Found(values, [(arm, rate, loss) for arm, table in tables.items() for rate, loss in table.items()])


def steps_to(case: Case, loss: float) -> float:
    """The step at which val/loss first is as low, between evaluations along a straight line; NaN where it
    never is."""
    steps, values = case.run.curve("val/loss")
    low = np.flatnonzero(values <= loss)
    if not len(low):
        return math.nan
    i = int(low[0])
    if i == 0:
        return float(steps[0])
    return float(np.interp(-loss, -values[i - 1 : i + 1], steps[i - 1 : i + 1]))


def steps_to_loss(cases: Cases, target: str) -> Found:
    """How many times the steps another needs that each arm needs, at its own best rate, to the loss that arm
    ``target`` ends at: 1 − steps / steps of the target. ."""
    cases_at = {arm: cases.over(arm)[best_rate(cases, arm)] for arm in cases.arms}
    goal = float(cases_at[target].run.curve("val/loss")[1][-1])
    needed = {arm: steps_to(case, goal) for arm, case in cases_at.items()}
    rows = [
        (arm, float(step), float(loss))
        for arm, case in cases_at.items()
        for step, loss in zip(*case.run.curve("val/loss"), strict=True)
    ]
    speed = {f"{target}'s steps / {arm}'s": needed[target] / steps for arm, steps in needed.items()}
    return Found(speed | {f"loss of {target}": cases_at[target].loss()}, rows)


def rate_sensitivity(cases: Cases) -> Found:
    """Learning rate sensitivity of each arm (Wortsman et al. 2023, arXiv 2309.14322, §2.2), how much less the
    second arm's is, and log10 of the second's highest rate at which it trains over the first's: where its
    loss is within 0.2 nats of its own lowest."""
    tables = {arm: by_rate(cases, arm) for arm in cases.arms}
    initial = float(cases.every[0].run.curve("val/loss")[1][0])
    values = {}
    for arm, table in tables.items():
        _, found = sensitivity({rate: {0: loss} for rate, loss in table.items()}, initial)
        values[f"sensitivity, {arm}"] = found.mean
    plain, normed = cases.arms
    highest = {
        arm: max(rate for rate, loss in table.items() if loss <= min(table.values()) + 0.2)
        for arm, table in tables.items()
    }
    values["sensitivity, difference"] = values[f"sensitivity, {normed}"] - values[f"sensitivity, {plain}"]
    values["log10 of the highest rates' ratio"] = math.log10(highest[normed] / highest[plain])
    return Found(values, [(arm, rate, loss) for arm, table in tables.items() for rate, loss in table.items()])


def batch_sizes(cases: Cases) -> Found:
    """What micro-batches of one row cost, against the largest ones; over is train.grad_accum."""
    values, rows = {}, []
    for arm in cases.arms:
        found = {
            case.config.train.batch_size // int(accum): case.loss() for accum, case in cases.over(arm).items()
        }
        values[f"{arm}: loss at {min(found)} − at {max(found)} rows"] = found[min(found)] - found[max(found)]
        values[f"{arm}: largest |loss − at {max(found)} rows|"] = max(
            abs(y - found[max(found)]) for y in found.values()
        )
        rows += [(arm, size, loss) for size, loss in found.items()]
    return Found(values, rows)


def data_regimes(cases: Cases) -> Found:
    """Each norm's loss relative to LayerNorm's and to DyT's, where data are few and where they are many: arms are
    called ``dyt, starved`` and ``dyt, rich``."""
    found = losses(cases)
    values = {f"loss of {arm}": loss for arm, loss in found.items()}
    for arm, loss in found.items():
        norm, regime = arm.split(", ")
        for other in ("layernorm", "dyt"):
            values[f"{norm} / {other} − 1, {regime}"] = loss / found[f"{other}, {regime}"] - 1
    starved = cases["layernorm, starved"]
    values["layernorm, starved: validation − training loss"] = starved.loss() - starved.run.last("train/loss")
    return Found(values, against_steps(cases))


def trainable_scales(cases: Cases, learned: float) -> Found:
    """The range of initialization scales from which a model learns, in decades: log10 of the widest such
    scale over the narrowest. It learns if its loss ends at or below ``learned``; over is model.init_scale."""
    values, rows = {}, []
    for arm in cases.arms:
        found = {float(scale): case.loss() for scale, case in cases.over(arm).items()}
        good = [scale for scale, loss in found.items() if loss <= learned]
        values[f"{arm}: decades"] = math.log10(max(good) / min(good)) if good else math.nan
        rows += [(arm, scale, loss) for scale, loss in found.items()]
    first, *others = cases.arms
    for arm in others:
        values[f"{first} − {arm}: decades"] = values[f"{first}: decades"] - values[f"{arm}: decades"]
    return Found(values, rows)

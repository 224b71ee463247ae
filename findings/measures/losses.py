"""Measured of the losses of trained models. Losses are val/full_loss, in nats per token; a run that diverged
counts as its loss at the start."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from comparison.rates import sensitivity
from findings.models import Case, Cases, Found


def losses(cases: Cases) -> dict[str, float]:
    """The final loss of each arm."""
    return {arm: cases[arm].loss() for arm in cases.arms}


def curves(chosen: Mapping[str, Case]) -> list[tuple[str, float, float]]:
    """For the picture: val/loss by step, of each arm."""
    return [
        (arm, float(step), float(loss))
        for arm, case in chosen.items()
        for step, loss in zip(*case.run.curve("val/loss"), strict=True)
    ]


def against_steps(cases: Cases) -> list[tuple[str, float, float]]:
    return curves({arm: cases[arm] for arm in cases.arms})


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


def by_value(cases: Cases, arm: str) -> dict[float, float]:
    """The loss at each value of what is varied, from the smallest."""
    return dict(sorted((float(value), case.loss()) for value, case in cases.over(arm).items()))


def best_rate(cases: Cases, arm: str) -> float:
    """The rate with the lowest mean loss over the other seeds: this one has no part in the choice."""
    tables = [by_value(other, arm) for other in cases.others]
    return min(tables[0], key=lambda rate: float(np.mean([table[rate] for table in tables])))


def is_edge(value: float, table: dict[float, float]) -> float:
    """1 where it is the smallest or largest that was tried: a better one may lie beyond."""
    return float(value in (min(table), max(table)))


def last_below(table: dict[float, float], limit: float, upwards: bool = True) -> float:
    """How far one can go from the best value until the loss is above a limit: along a straight line between
    two values, in their logarithms; the last value that was tried where it never is."""
    values = sorted(table, reverse=not upwards)
    here = min(table, key=lambda value: table[value])
    for value in values[values.index(here) + 1 :]:
        if table[value] > limit:
            part = (limit - table[here]) / (table[value] - table[here])
            return math.exp(math.log(here) + part * (math.log(value) - math.log(here)))
        here = value
    return here


def val_loss(case: Case, part: float) -> float:
    """After a part of the steps, between evaluations along a straight line."""
    steps, losses = case.run.curve("val/loss")
    return float(np.interp(part * case.config.train.steps, steps, losses))


def at_best_rate(cases: Cases) -> Found:
    """Each arm's loss at its own best rate, and relative to the first arm's; how much larger that ratio is
    (of val/loss) at the end than after half of the steps; and log10 of the highest rate at which its loss is
    within 10 % of its best, over the first arm's."""
    best = {arm: best_rate(cases, arm) for arm in cases.arms}
    tables = {arm: by_value(cases, arm) for arm in cases.arms}
    found = {arm: tables[arm][best[arm]] for arm in cases.arms}
    highest = {arm: last_below(table, 1.1 * min(table.values())) for arm, table in tables.items()}
    halfway, at_end = (
        {arm: val_loss(cases.over(arm)[best[arm]], part) for arm in cases.arms} for part in (0.5, 1.0)
    )
    values = {f"{arm}: best rate is an edge": is_edge(best[arm], tables[arm]) for arm in cases.arms}
    first, *others = cases.arms
    for arm in others:
        closing = at_end[arm] / at_end[first] - halfway[arm] / halfway[first]
        values |= {
            f"{arm} / {first} − 1": found[arm] / found[first] - 1,
            f"{arm} / {first}, at the end − halfway": closing,
            f"log10 of {arm}'s highest rate / {first}'s": math.log10(highest[arm] / highest[first]),
        }
    return Found(values, against_values(tables))


def against_values(tables: Mapping[str, Mapping[Any, float]]) -> list[tuple[str, float, float]]:
    """For the picture."""
    return [(arm, value, loss) for arm, table in tables.items() for value, loss in table.items()]


def steps_to(case: Case, loss: float) -> float:
    """The step at which val/loss first is as low, between evaluations along a straight line; infinite where
    it never is."""
    steps, values = case.run.curve("val/loss")
    low = np.flatnonzero(values <= loss)
    if not len(low):
        return math.inf
    i = max(1, int(low[0]))
    return float(np.interp(-loss, -values[i - 1 : i + 1], steps[i - 1 : i + 1]))


def steps_to_loss(cases: Cases, target: str) -> Found:
    """The steps that arm ``target`` takes to the loss at which it ends, over those that each arm takes to it,
    each at its own best rate: above 1 is faster, 0 never gets there."""
    best = {arm: best_rate(cases, arm) for arm in cases.arms}
    chosen = {arm: cases.over(arm)[rate] for arm, rate in best.items()}
    goal = val_loss(chosen[target], 1.0)
    needed = {arm: steps_to(case, goal) for arm, case in chosen.items()}
    values = {f"{target}'s steps / {arm}'s": needed[target] / steps for arm, steps in needed.items()}
    values |= {f"{arm}: best rate is an edge": is_edge(best[arm], by_value(cases, arm)) for arm in best}
    return Found(values | {f"loss of {target}": chosen[target].loss()}, curves(chosen))


def rate_sensitivity(cases: Cases) -> Found:
    """Learning rate sensitivity of each arm (Wortsman et al. 2023, arXiv 2309.14322, §2.2), how much more the
    second arm's is, and log10 of the second's highest rate at which it trains over the first's: where its
    loss is within 0.2 nats of its own lowest."""
    tables = {arm: by_value(cases, arm) for arm in cases.arms}
    initial = float(cases.every[0].run.curve("val/loss")[1][0])
    values, highest = {}, {}
    for arm, table in tables.items():
        _, found = sensitivity({rate: {0: loss} for rate, loss in table.items()}, initial)
        values[f"sensitivity, {arm}"] = found.mean
        highest[arm] = last_below(table, min(table.values()) + 0.2)
    plain, normed = cases.arms
    values["sensitivity, difference"] = values[f"sensitivity, {normed}"] - values[f"sensitivity, {plain}"]
    values["log10 of the highest rates' ratio"] = math.log10(highest[normed] / highest[plain])
    return Found(values, against_values(tables))


def batch_sizes(cases: Cases) -> Found:
    """What micro-batches of one row cost, against those of all rows: val/full_loss, on running estimates; and
    val/loss on the statistics of such micro-batches, where there are any. Over is train.grad_accum."""
    values, tables = {}, {}
    for arm in cases.arms:
        by_rows = {case.config.train.batch_size // int(n): case for n, case in cases.over(arm).items()}
        losses = tables[arm] = {rows: case.loss() for rows, case in by_rows.items()}
        few, many = min(losses), max(losses)
        values[f"{arm}: loss at {few} − at {many} rows"] = losses[few] - losses[many]
        values[f"{arm}: largest |loss − at {many} rows|"] = max(
            abs(y - losses[many]) for y in losses.values()
        )
        on_batch = {rows: by_rows[rows].run.last("val/batch_stats_loss") for rows in (few, many)}
        values[f"{arm}: loss on batch statistics at {few} − at {many} rows"] = on_batch[few] - on_batch[many]
    return Found(values, against_values(tables))


def data_regimes(cases: Cases) -> Found:
    """Each norm's loss relative to LayerNorm's and to DyT's, where data are few and where they are many: arms
    are called ``dyt, starved`` and ``dyt, rich``."""
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
    """The range of initialization scales from which a model learns, in decades: log10 of the largest over the
    smallest at which its loss ends at or below ``learned``, as ``last_below`` finds them from the best one; 0
    where there is none. Over is model.init_scale."""
    tables = {arm: by_value(cases, arm) for arm in cases.arms}
    values = {}
    for arm, table in tables.items():
        ends = (last_below(table, learned), last_below(table, learned, upwards=False))
        learns = min(table.values()) <= learned
        values[f"{arm}: decades"] = math.log10(ends[0] / ends[1]) if learns else 0.0
    first, *others = cases.arms
    for arm in others:
        values[f"{first} − {arm}: decades"] = values[f"{first}: decades"] - values[f"{arm}: decades"]
    return Found(values, against_values(tables))

"""Measure losses of trained models: val/full_loss, in nats per token; the initial loss if a run diverged."""

import math
from itertools import permutations

import numpy as np

from data.errors import ConfigError
from findings.models import Case, Cases, Measured
from study.statistics import steps_to

Table = dict[float, float]  # value of the varied key, or step -> loss


def loss_curve(case: Case) -> Table:
    """Return val/loss by step, for the picture."""
    return {float(step): loss for step, loss in case.run.curve("val/loss").items()}


def final_losses(cases: Cases) -> Measured:
    """Each arm's loss, and its difference from the first arm's."""
    final = cases.by_arm(Case.loss)
    first = cases.arms[0]
    values = {f"loss of {arm}": loss for arm, loss in final.items()}
    values |= {f"{arm} − {first}": loss - final[first] for arm, loss in final.items() if arm != first}
    return Measured(values, cases.by_arm(loss_curve))


def warm_up(cases: Cases) -> Measured:
    """The loss without warm-up minus the loss with it, for each placement. Arms are called ``post, none`` and
    ``post, warm-up``."""
    final = cases.by_arm(Case.loss)
    values = {f"loss of {arm}": loss for arm, loss in final.items()}
    for placement in dict.fromkeys(arm.split(", ")[0] for arm in cases.arms):
        cost = final[f"{placement}, none"] - final[f"{placement}, warm-up"]
        values[f"cost of no warm-up, {placement}"] = cost
    return Measured(values, cases.by_arm(loss_curve))


# Each arm at its own best learning rate.


def tables_of(cases: Cases) -> dict[str, Table]:
    """Return each arm's loss at each value of the varied key, in ascending order of the values."""
    return {
        arm: dict(sorted((float(value), case.loss()) for value, case in cases.over(arm).items()))
        for arm in cases.arms
    }


def best_rates(cases: Cases) -> dict[str, float]:
    """Return each arm's rate with the lowest mean loss over the finding's ``tuning_seeds``. The measured
    seeds do not choose, which would make intervals too narrow. Raises ConfigError without such seeds."""
    if not cases.tuning:
        raise ConfigError("tuning_seeds: this measurement needs seeds that choose each arm's rate; name some")
    all_tables = [tables_of(other) for other in cases.tuning]
    return {
        arm: min(rates, key=lambda rate: float(np.mean([tables[arm][rate] for tables in all_tables])))
        for arm, rates in all_tables[0].items()
    }


def is_edge(value: float, table: Table) -> float:
    """Return 1 if the value is the table's smallest or largest, else 0: a better value may lie beyond."""
    return 1.0 if value in (min(table), max(table)) else 0.0


def crossing(table: Table, limit: float, upwards: bool = True) -> float:
    """Return the value at which the loss first exceeds the limit, going from the best value ``upwards`` or
    downwards, interpolated linearly in the value's logarithm; the last value if the loss never does. The
    limit must not be below the lowest loss."""
    values = sorted(table, reverse=not upwards)
    within = min(table, key=lambda value: table[value])
    for value in values[values.index(within) + 1 :]:
        if table[value] > limit:
            fraction = (limit - table[within]) / (table[value] - table[within])
            return math.exp(math.log(within) + fraction * (math.log(value) - math.log(within)))
        within = value
    return within


def val_loss(case: Case, fraction: float) -> float:
    """Return val/loss after a fraction of the steps, by linear interpolation between evaluations."""
    curve = case.run.curve("val/loss")
    return float(np.interp(fraction * case.config.train.steps, [*curve], [*curve.values()]))


def at_best_rate(cases: Cases) -> Measured:
    """Each arm at its own best rate: loss / another arm's loss − 1. Compared with the first arm: the ratio of
    val/loss at the end minus that ratio halfway; and log10(highest rate / first arm's highest rate), where
    the highest rate is the one up to which an arm's loss is within 10 % of the arm's lowest."""
    best = best_rates(cases)
    tables = tables_of(cases)
    best_loss = {arm: tables[arm][best[arm]] for arm in cases.arms}
    highest = {arm: crossing(table, 1.1 * min(table.values())) for arm, table in tables.items()}
    val_half, val_end = (
        {arm: val_loss(cases.over(arm)[best[arm]], fraction) for arm in cases.arms} for fraction in (0.5, 1.0)
    )
    values = {f"{arm}: best rate is an edge": is_edge(best[arm], tables[arm]) for arm in cases.arms}
    first, *others = cases.arms
    for arm, other in permutations(cases.arms, 2):
        values[f"{arm} / {other} − 1"] = best_loss[arm] / best_loss[other] - 1
    for arm in others:
        change = val_end[arm] / val_end[first] - val_half[arm] / val_half[first]
        values[f"{arm} / {first}, at the end − halfway"] = change
        values[f"log10 of {arm}'s highest rate / {first}'s"] = math.log10(highest[arm] / highest[first])
    return Measured(values, tables)


def steps_to_loss(cases: Cases, target: str) -> Measured:
    """For each arm, target's steps / the arm's steps to the val/loss at which ``target`` ends, each at its
    own best rate; 0 if the arm never reaches that loss. The goal is a val/loss, which runs log at many steps,
    and not val/full_loss, which runs log once."""
    best = best_rates(cases)
    best_case = {arm: cases.over(arm)[rate] for arm, rate in best.items()}
    goal = val_loss(best_case[target], 1.0)
    curves = {arm: tuple(case.run.curve("val/loss").items()) for arm, case in best_case.items()}
    steps = {arm: steps_to(goal, curve) or math.inf for arm, curve in curves.items()}
    values = {f"{target}'s steps / {arm}'s": steps[target] / count for arm, count in steps.items()}
    tables = tables_of(cases)
    values |= {f"{arm}: best rate is an edge": is_edge(best[arm], tables[arm]) for arm in best}
    values[f"loss of {target}"] = best_case[target].loss()
    return Measured(values, {arm: loss_curve(case) for arm, case in best_case.items()})


def sensitivity(table: Table, initial: float) -> float:
    """Return the learning rate sensitivity E_η [min(ℓ(η), ℓ0)] − ℓ* (Wortsman et al. 2023, arXiv 2309.14322,
    §2.2) of the losses at log-spaced rates. ``initial``: ℓ0, the loss before training."""
    losses = [min(loss, initial) for loss in table.values()]
    return float(np.mean(losses)) - min(losses)


def rate_sensitivity(cases: Cases) -> Measured:
    """Learning rate sensitivity of each arm; the second arm's
    minus the first's; and log10(second arm's highest rate / first arm's), where the highest rate is the one
    up to which an arm's loss is within 0.2 nats of its lowest."""
    tables = tables_of(cases)
    initial = next(iter(cases.members[0].run.curve("val/loss").values()))
    values, highest = {}, {}
    for arm, table in tables.items():
        values[f"sensitivity, {arm}"] = sensitivity(table, initial)
        highest[arm] = crossing(table, min(table.values()) + 0.2)
    plain, normed = cases.arms
    values["sensitivity, difference"] = values[f"sensitivity, {normed}"] - values[f"sensitivity, {plain}"]
    values["log10 of the highest rates' ratio"] = math.log10(highest[normed] / highest[plain])
    return Measured(values, tables)


def batch_sizes(cases: Cases) -> Measured:
    """The loss with the smallest micro-batches minus the loss with the largest: val/full_loss, which uses
    running estimates, and val/batch_stats_loss, which uses the statistics of such micro-batches and is logged
    only for norms that use batch statistics. The varied key is train.grad_accum."""
    values, tables = {}, {}
    for arm in cases.arms:
        by_rows = {case.config.train.batch_size // int(n): case for n, case in cases.over(arm).items()}
        final = tables[arm] = {rows: case.loss() for rows, case in by_rows.items()}
        few, many = min(final), max(final)
        largest = max(abs(loss - final[many]) for loss in final.values())
        on_batch = {rows: by_rows[rows].run.last("val/batch_stats_loss") for rows in (few, many)}
        values[f"{arm}: loss at {few} − at {many} rows"] = final[few] - final[many]
        values[f"{arm}: largest |loss − at {many} rows|"] = largest
        values[f"{arm}: loss on batch statistics at {few} − at {many} rows"] = on_batch[few] - on_batch[many]
    return Measured(values, tables)


def data_regimes(cases: Cases) -> Measured:
    """Each arm's loss / LayerNorm's − 1, and each arm's loss / DyT's − 1, with little data and with much.
    Arms are called ``dyt, starved`` and ``dyt, rich``."""
    final = cases.by_arm(Case.loss)
    values = {f"loss of {arm}": loss for arm, loss in final.items()}
    for arm, loss in final.items():
        norm, regime = arm.split(", ")
        for other in ("layernorm", "dyt"):
            values[f"{norm} / {other} − 1, {regime}"] = loss / final[f"{other}, {regime}"] - 1
    starved = cases["layernorm, starved"]
    values["layernorm, starved: validation − training loss"] = starved.loss() - starved.run.last("train/loss")
    return Measured(values, cases.by_arm(loss_curve))


def trainable_scales(cases: Cases, learned: float) -> Measured:
    """The range of initialization scales from which a model learns, in decades: log10(largest / smallest
    scale whose final loss is at most ``learned``), both found by ``crossing``; 0 if the loss of every scale
    is higher. The varied key is model.init_scale."""
    tables = tables_of(cases)
    decades = {}
    for arm, table in tables.items():
        decades[arm] = 0.0
        if min(table.values()) <= learned:
            largest, smallest = (crossing(table, learned, upwards) for upwards in (True, False))
            decades[arm] = math.log10(largest / smallest)
    first, *others = cases.arms
    values = {f"{arm}: decades": width for arm, width in decades.items()}
    values |= {f"{first} − {arm}: decades": decades[first] - decades[arm] for arm in others}
    return Measured(values, tables)

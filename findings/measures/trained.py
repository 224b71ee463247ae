"""Measurements of trained models, with their last weights, in fp32."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diagnostics import block_effects, norm_maps
from diagnostics.activations import without_effects
from findings.measures.at_init import as_points, by_depth, slope, stream_variances
from findings.models import UNSEEN, Case, Cases, Measured
from training.loss import cross_entropy

Numbers = NDArray[Any]
WINDOWS = 64  # of the validation split on which a model is measured


def variance_trained(cases: Cases) -> Measured:
    """The growth of the stream's variance: what the second half of the blocks adds over what the first half
    adds, 1 if it grows linearly and more if exponentially; and its largest over its smallest after a
    block."""
    variance = {arm: stream_variances(cases[arm], cases[arm].windows(WINDOWS)[0]) for arm in cases.arms}
    values = {}
    for arm, y in variance.items():
        half = len(y) // 2
        values[f"{arm}: second half adds / first half"] = (y[-1] - y[half]) / (y[half] - y[0])
        values[f"{arm}: largest / smallest variance"] = max(y[1:]) / min(y[1:])
    return Measured(values, as_points({arm: by_depth(y) for arm, y in variance.items()}))


def removable_blocks(cases: Cases) -> Measured:
    """The cost of leaving out one block, in nats per token: the mean of the deeper half minus that of the
    shallower half, and the mean of the deeper half."""
    values, rows = {}, []
    for arm in cases.arms:
        case = cases[arm]
        model, (idx, targets) = case.model().eval(), case.windows(WINDOWS)
        loss_of = partial(cross_entropy, idx=idx, targets=targets)
        costs = [*block_effects.skip_costs(model, loss_of)]
        half = len(costs) // 2
        values[f"{arm}: deeper − shallower"] = float(np.mean(costs[half:]) - np.mean(costs[:half]))
        values[f"{arm}: deeper half"] = float(np.mean(costs[half:]))
        rows += [(arm, i, cost) for i, cost in enumerate(costs, start=1)]
    return Measured(values, rows)


def angles_trained(cases: Cases) -> Measured:
    """The angular distance over each block: its slope against the block, except the last one, which Gromov et
    al. 2024 (arXiv 2403.17887) find to turn the stream more again."""
    values, rows = {}, []
    for arm in cases.arms:
        case = cases[arm]
        stream = block_effects.stream(case.model().eval(), case.windows(WINDOWS)[0])
        distances = block_effects.angular_distances(stream)
        values[f"{arm}: slope"] = slope([*range(len(distances) - 1)], distances[:-1])
        rows += [(arm, i, distance) for i, distance in enumerate(distances, start=1)]
    return Measured(values, rows)


@torch.no_grad()
def gap(case: Case, rows: int) -> float:
    """Return the loss in training mode minus that in evaluation mode, on the same batches of ``rows``, in
    nats."""
    model, differences = case.model(), []
    for step in range(256 // rows):
        x, y = case.batch(UNSEEN + step, rows)
        on_batch = cross_entropy(without_effects(model.train()), x, y)
        differences.append(float(on_batch - cross_entropy(model.eval(), x, y)))
    return float(np.mean(differences))


def evaluation_gap(cases: Cases, sizes: list[int]) -> Measured:
    """The cost of using the statistics of batches of so many rows: 0 for a norm that does not use the
    batch."""
    gaps = {(arm, rows): gap(cases[arm], rows) for arm in cases.arms for rows in sizes}
    values = {f"{arm}, {rows} rows: training − evaluation": loss for (arm, rows), loss in gaps.items()}
    return Measured(values, [(arm, rows, loss) for (arm, rows), loss in gaps.items()])


def alpha_and_std(cases: Cases, shuffled: bool) -> Measured:
    """The correlation of DyT's α with 1 / std of its input: over training, the mean over norms; and at the
    end, over the norms.

    Args:
        shuffled: permute the αs at random, each norm's over time and the last ones over the norms.
    """
    case, random = cases["dyt"], np.random.default_rng(cases.seed)
    sites = [name.removeprefix("norm.alpha/") for name in case.run.metrics if name.startswith("norm.alpha/")]
    over_time, rows, last = [], [], []
    for site in sites:
        steps, alpha = case.run.curve(f"norm.alpha/{site}")
        evenly = steps % case.config.stats.every == 0  # more are logged at the start
        alpha, inverse = alpha[evenly], 1 / case.run.curve(f"act.std/{site}.in")[1][evenly]
        alpha = random.permutation(alpha) if shuffled else alpha
        over_time.append(correlation(alpha, inverse))
        last.append((alpha[-1], inverse[-1]))
        rows += [(site, float(x), float(y)) for x, y in zip(inverse, alpha, strict=True)]
    alphas, inverses = np.array(last).T
    alphas = random.permutation(alphas) if shuffled else alphas
    values = {
        "over training: correlation": float(np.mean(over_time)),
        "over the norms: correlation": correlation(alphas, inverses),
        "loss of dyt": case.loss(),
    }
    return Measured(values, rows)


def correlation(x: Numbers, y: Numbers) -> float:
    """Return Pearson's correlation."""
    return float(np.corrcoef(x, y)[0, 1])


def s_shaped_maps(cases: Cases) -> Measured:
    """The part of a norm's map that a tanh explains and a straight line does not, R² minus R², of the norms
    of the last block and of the first."""
    values, rows = {}, []
    for arm in cases.arms:
        case = cases[arm]
        maps = norm_maps.maps(case.model().eval(), case.windows(WINDOWS)[0])
        gains = {
            site: norm_maps.tanh_fit(x, y)[0] - norm_maps.line_fit(x, y) for site, (x, y) in maps.items()
        }
        blocks = sorted({site[:2] for site in gains if site != "final"})
        by_block = {b: float(np.mean([g for site, g in gains.items() if site.startswith(b)])) for b in blocks}
        values[f"{arm}: last block"] = by_block[blocks[-1]]
        values[f"{arm}: last − first block"] = by_block[blocks[-1]] - by_block[blocks[0]]
        for site in (f"{blocks[0]}.attn.pre", f"{blocks[-1]}.mlp.pre"):
            if site in maps:
                x, y = maps[site]
                x, y = (t.flatten()[:: max(1, t.numel() // 150)] for t in (x / x.square().mean().sqrt(), y))
                rows += [
                    (f"{arm}, {site}", round(a, 3), round(b, 3))
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)
                ]
    return Measured(values, rows)

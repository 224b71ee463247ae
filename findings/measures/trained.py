"""Measure trained models, with their last weights, in fp32."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from findings.measures.at_init import by_depth, slope, stream_variances
from findings.models import UNSEEN, Case, Cases, Measured
from probe import block_effects, norm_maps
from probe.activations import without_effects
from training.loss import cross_entropy

Numbers = NDArray[Any]
WINDOWS = 64  # number of windows of the validation split on which a model is measured


def variance_trained(cases: Cases) -> Measured:
    """Growth of the stream's variance: what the second half of the blocks adds / what the first half adds,
    which is 1 for linear growth and more for exponential growth; and the largest variance after a block / the
    smallest."""
    variance = cases.by_arm(lambda case: stream_variances(case, case.windows(WINDOWS)[0]))
    values = {}
    for arm, y in variance.items():
        half = len(y) // 2
        values[f"{arm}: second half adds / first half"] = (y[-1] - y[half]) / (y[half] - y[0])
        values[f"{arm}: largest / smallest variance"] = max(y[1:]) / min(y[1:])
    return Measured(values, {arm: by_depth(y) for arm, y in variance.items()})


def removable_blocks(cases: Cases) -> Measured:
    """The cost of leaving out one block, in nats per token: the mean of the deeper half minus that of the
    shallower half, and the mean of the deeper half."""
    costs, values = cases.by_arm(costs_of_blocks), {}
    for arm, y in costs.items():
        half = len(y) // 2
        values[f"{arm}: deeper − shallower"] = float(np.mean(y[half:]) - np.mean(y[:half]))
        values[f"{arm}: deeper half"] = float(np.mean(y[half:]))
    return Measured(values, {arm: by_depth(y, 1) for arm, y in costs.items()})


def costs_of_blocks(case: Case) -> list[float]:
    idx, targets = case.windows(WINDOWS)
    loss_of = partial(cross_entropy, idx=idx, targets=targets)
    return [*block_effects.skip_costs(case.model().eval(), loss_of)]


def angles_trained(cases: Cases) -> Measured:
    """The slope, against the block number, of the angular distance by which a block turns the stream. It is
    taken without the last block, which turns the stream more again (Gromov et al. 2024, arXiv 2403.17887)."""
    streams = cases.by_arm(lambda case: block_effects.stream(case.model().eval(), case.windows(WINDOWS)[0]))
    turns = {arm: block_effects.angular_distances(stream) for arm, stream in streams.items()}
    slopes = {f"{arm}: slope": slope([*range(len(y) - 1)], y[:-1]) for arm, y in turns.items()}
    return Measured(slopes, {arm: by_depth(y, 1) for arm, y in turns.items()})


@torch.no_grad()
def mode_gap(case: Case, rows: int) -> float:
    """Return the loss (nats) in training mode minus that in evaluation mode, for batches of ``rows`` rows."""
    model, differences = case.model(), []
    for step in range(256 // rows):
        x, y = case.batch(UNSEEN + step, rows)
        training_loss = cross_entropy(without_effects(model.train()), x, y)
        differences.append(float(training_loss - cross_entropy(model.eval(), x, y)))
    return float(np.mean(differences))


def evaluation_gap(cases: Cases, sizes: list[int]) -> Measured:
    """The loss with the statistics of batches of each of ``sizes`` rows minus the loss in evaluation mode; 0
    for a norm that does not use the batch."""
    gaps = cases.by_arm(lambda case: {rows: mode_gap(case, rows) for rows in sizes})
    values = {f"{arm}, {rows} rows: training − evaluation": gaps[arm][rows] for arm in gaps for rows in sizes}
    return Measured(values, gaps)


def alpha_and_std(cases: Cases, shuffled: bool) -> Measured:
    """The correlation of DyT's α with 1 / std of the norm's input: over the steps of training, averaged over
    the norms; and over the norms, at the end of training.

    Args:
        shuffled: permute α at random: each norm's values over the steps, the last values over the norms.
    """
    case, random = cases["dyt"], np.random.default_rng(cases.seed)
    metrics = dict.fromkeys(name for row in case.run.rows for name in row)
    sites = [name.removeprefix("norm.alpha/") for name in metrics if name.startswith("norm.alpha/")]
    over_time, points, last = [], {}, []
    for site in sites:
        alpha_at, std_at = (case.run.curve(name) for name in (f"norm.alpha/{site}", f"act.std/{site}.in"))
        steps = [step for step in alpha_at if step % case.config.stats.every == 0]  # the first have more rows
        alpha, inverse = np.array([(alpha_at[step], 1 / std_at[step]) for step in steps]).T
        alpha = random.permutation(alpha) if shuffled else alpha
        over_time.append(correlation(alpha, inverse))
        last.append((alpha[-1], inverse[-1]))
        points[site] = [*zip(inverse.tolist(), alpha.tolist(), strict=True)]
    alphas, inverses = np.array(last).T
    alphas = random.permutation(alphas) if shuffled else alphas
    values = {
        "over training: correlation": float(np.mean(over_time)),
        "over the norms: correlation": correlation(alphas, inverses),
        "loss of dyt": case.loss(),
    }
    return Measured(values, points)


def correlation(x: Numbers, y: Numbers) -> float:
    """Return Pearson's correlation."""
    return float(np.corrcoef(x, y)[0, 1])


def s_shaped_maps(cases: Cases) -> Measured:
    """R² of a tanh fitted to a norm's map minus R² of a straight line, averaged over the norms of a block: in
    the last block, and in the last block minus the first."""
    values, points = {}, {}
    for arm, maps in cases.by_arm(lambda c: norm_maps.maps(c.model().eval(), c.windows(WINDOWS)[0])).items():
        tanh_gains = {
            site: norm_maps.tanh_fit(x, y)[0] - norm_maps.line_fit(x, y) for site, (x, y) in maps.items()
        }
        blocks = sorted({site[:2] for site in tanh_gains if site != "final"})
        by_block = {b: float(np.mean([tanh_gains[s] for s in tanh_gains if s[:2] == b])) for b in blocks}
        values[f"{arm}: last block"] = by_block[blocks[-1]]
        values[f"{arm}: last − first block"] = by_block[blocks[-1]] - by_block[blocks[0]]
        for site in (f"{blocks[0]}.attn.pre", f"{blocks[-1]}.mlp.pre"):
            if site in maps:
                x, y = maps[site]
                numbers = (x / x.square().mean().sqrt(), y)
                thinned = (t.flatten()[:: max(1, t.numel() // 150)].tolist() for t in numbers)
                points[f"{arm}, {site}"] = [(round(a, 3), round(b, 3)) for a, b in zip(*thinned, strict=True)]
    return Measured(values, points)

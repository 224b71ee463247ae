"""Measure models as initialised, in fp32: gradients, and variance and direction of the stream, by depth."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from findings.models import Case, Cases, Measured
from probe import block_effects
from training.loss import cross_entropy


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line."""
    return float(np.polyfit(x, y, 1)[0])


def log_slope(points: Mapping[Any, float]) -> float:
    """Return the slope of log y against log x."""
    return slope([*map(math.log, points)], [*map(math.log, points.values())])


def by_depth(values: Sequence[float], start: int = 0) -> dict[int, float]:
    return dict(enumerate(values, start))


def mlp_gradients(case: Case) -> list[float]:
    """Return ‖∂loss/∂W₂‖ of each block's MLP, on the first training batch."""
    model: Any = case.model()
    cross_entropy(model, *case.batch()).backward()
    return [float(block.mlp.branch.proj.weight.grad.norm()) for block in model.blocks]


def last_gradients(cases: Cases, arm: str) -> dict[float, float]:
    """Return ‖∂loss/∂W₂‖ of the last block, by the number of blocks."""
    return {n_layer: mlp_gradients(case)[-1] for n_layer, case in cases.over(arm).items()}


def gradient_slopes(cases: Cases) -> Measured:
    """Slope of ln ‖∂loss/∂W₂‖ of the last block against ln L, L blocks, and the norms as points. Xiong et al.
    2020, theorem 1, bounds the norm by O(d√(ln d / L)) in pre-norm and by O(d√ln d) in post-norm, d channels;
    if the bounds are tight, the slopes are −½ and 0."""
    gradients = {arm: last_gradients(cases, arm) for arm in cases.arms}
    return Measured({f"slope of {arm}": log_slope(gradients[arm]) for arm in gradients}, gradients)


def gradient_order(cases: Cases) -> Measured:
    """ln(post / pre) of the last block's ‖∂loss/∂W₂‖ in post-norm and pre-norm, averaged over depths, for
    each initialization. Arms are called ``post, xavier`` and so on."""
    gradients = {arm: last_gradients(cases, arm) for arm in cases.arms}
    values = {}
    for init in ("xavier", "gpt2"):
        post, pre = gradients[f"post, {init}"], gradients[f"pre, {init}"]
        values[f"ln(post / pre), {init}"] = float(np.mean([math.log(post[n] / pre[n]) for n in pre]))
    return Measured(values, gradients)


def gradient_profile(cases: Cases) -> Measured:
    """Ratios of the blocks' ‖∂loss/∂W₂‖: last / first, and last / second."""
    gradients = cases.by_arm(mlp_gradients)
    values = {f"last / first, {arm}": norms[-1] / norms[0] for arm, norms in gradients.items()}
    values |= {f"last / second, {arm}": norms[-1] / norms[1] for arm, norms in gradients.items()}
    return Measured(values, {arm: by_depth(norms, 1) for arm, norms in gradients.items()})


def stream_variances(case: Case, idx: Tensor) -> list[float]:
    """Return the variance of the stream, over all its numbers, after the embedding and each block."""
    streams = block_effects.stream(case.model().eval(), idx)
    return [float(x.double().var(correction=0)) for x in streams]


def variance_at_init(cases: Cases) -> Measured:
    """Growth of the stream's variance: what the second half of the blocks adds to the variance / what the
    quarter before that half adds. The ratio is 2 for linear growth, as in pre-norm, and 1 for growth as ln ℓ,
    as with LayerNorm-Scaling. In peri each branch adds 1 to the variance; in post the variance stays 1."""
    variances = cases.by_arm(lambda case: stream_variances(case, case.batch()[0]))

    def growth(arm: str) -> float:
        y, L = variances[arm], len(variances[arm]) - 1
        return (y[L] - y[L // 2]) / (y[L // 2] - y[L // 4])

    peri, post = variances["peri"], variances["post"]
    values = {
        f"{arm}: what the second half adds / the quarter before": growth(arm)
        for arm in ("pre", "layernorm_scaling")
    }
    values["peri: variance that a branch adds"] = (peri[-1] - peri[0]) / (2 * (len(peri) - 1))
    values["post: largest |variance − 1|"] = float(np.abs(np.array(post[1:]) - 1).max())
    return Measured(values, {arm: by_depth(y) for arm, y in variances.items()})


def block_turns(case: Case) -> list[float]:
    """Return 1 − cos(x_ℓ₋₁, x_ℓ) of each block ℓ, averaged over tokens; x_ℓ is the stream after block ℓ."""
    streams = block_effects.stream(case.model().eval(), case.batch()[0])
    return [float(1 - block_effects.cosines(x, y).mean()) for x, y in pairwise(streams)]


def angles_at_init(cases: Cases) -> Measured:
    """The slope of ln(1 − cos) against ln ℓ, from block 2. In pre-norm each block adds a vector of about the
    same size to the stream, so the stream is a random walk, in which 1 − cos falls as 1/ℓ. In post-norm the
    stream is normalized after each branch, and 1 − cos does not fall."""
    angles = cases.by_arm(lambda case: by_depth(block_turns(case), 1))
    slopes = {
        f"slope of {arm}": log_slope({block: y for block, y in points.items() if block >= 2})
        for arm, points in angles.items()
    }
    return Measured(slopes, angles)

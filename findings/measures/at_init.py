"""Measured of models as they begin, in fp32: gradients, the stream and its directions, by depth."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from diagnostics import block_effects
from findings.models import Case, Cases, Found
from training.loss import cross_entropy


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line."""
    return float(np.polyfit(x, y, 1)[0])


def log_slope(points: Mapping[Any, float]) -> float:
    """Of log y against log x."""
    return slope([*map(math.log, points)], [*map(math.log, points.values())])


def mlp_gradients(case: Case) -> list[float]:
    """‖∂loss/∂W₂‖ of each block's MLP, on the first training batch."""
    model: Any = case.model()
    cross_entropy(model, *case.batch()).backward()
    return [float(block.mlp.branch.proj.weight.grad.norm()) for block in model.blocks]


def last_gradients(cases: Cases, arm: str) -> dict[float, float]:
    """That of the last block, by the number of blocks."""
    return {n_layer: mlp_gradients(case)[-1] for n_layer, case in cases.over(arm).items()}


def gradient_slopes(cases: Cases) -> Found:
    """Xiong et al. 2020, theorem 1: ‖∂loss/∂W₂‖ of the last block is O(d√(ln d / L)) in pre-norm, O(d√ln d)
    in post-norm: slopes −½ and 0 against L in logarithms."""
    found = {arm: last_gradients(cases, arm) for arm in cases.arms}
    rows = [(arm, x, y) for arm, points in found.items() for x, y in points.items()]
    return Found({f"slope of {arm}": log_slope(points) for arm, points in found.items()}, rows)


def gradient_order(cases: Cases) -> Found:
    """ln of the last block's ‖∂loss/∂W₂‖ in post-norm over that in pre-norm, the mean over depths, by
    initialization: arms are called ``post, xavier`` and so on."""
    found = {arm: last_gradients(cases, arm) for arm in cases.arms}
    rows = [(arm, x, y) for arm, points in found.items() for x, y in points.items()]
    values = {}
    for init in ("xavier", "gpt2"):
        post, pre = found[f"post, {init}"], found[f"pre, {init}"]
        values[f"ln(post / pre), {init}"] = float(np.mean([math.log(post[n] / pre[n]) for n in pre]))
    return Found(values, rows)


def gradient_profile(cases: Cases) -> Found:
    """‖∂loss/∂W₂‖ of the last block over that of the first, and over that of the second."""
    found = {arm: mlp_gradients(cases[arm]) for arm in cases.arms}
    rows = [(arm, i + 1, y) for arm, norms in found.items() for i, y in enumerate(norms)]
    values = {f"last / first, {arm}": norms[-1] / norms[0] for arm, norms in found.items()}
    return Found(
        values | {f"last / second, {arm}": norms[-1] / norms[1] for arm, norms in found.items()}, rows
    )


def stream_variances(case: Case) -> list[float]:
    """Var of the stream, over everything, behind the embedding and behind each block."""
    model = case.model().eval()
    return [float(x.double().var(correction=0)) for x in block_effects.stream(model, case.batch()[0])]


def variance_at_init(cases: Cases) -> Found:
    """How the stream's variance grows: what the second half of the blocks adds over what the quarter before
    it does is 2 where it grows linearly, as in pre-norm, and 1 where it grows as ln ℓ, as with
    LayerNorm-Scaling. In peri a branch adds 1; in post the variance is 1."""
    found = {arm: stream_variances(cases[arm]) for arm in cases.arms}
    rows = [(arm, i, y) for arm, values in found.items() for i, y in enumerate(values)]

    def doubling(arm: str) -> float:
        behind, L = found[arm], len(found[arm]) - 1
        return (behind[L] - behind[L // 2]) / (behind[L // 2] - behind[L // 4])

    return Found(
        {
            "pre: what the second half adds / the quarter before": doubling("pre"),
            "layernorm_scaling: what the second half adds / the quarter before": doubling(
                "layernorm_scaling"
            ),
            "peri: variance that a branch adds": (found["peri"][-1] - found["peri"][0])
            / (2 * (len(found["peri"]) - 1)),
            "post: largest |variance − 1|": float(np.abs(np.array(found["post"][1:]) - 1).max()),
        },
        rows,
    )


def turned(case: Case) -> list[float]:
    """1 − cos(x_ℓ₋₁, x_ℓ) of each block ℓ, the mean over tokens."""
    model = case.model().eval()
    streams = block_effects.stream(model, case.batch()[0])
    return [float(1 - block_effects.cosines(x, y).mean()) for x, y in pairwise(streams)]


def angles_at_init(cases: Cases) -> Found:
    """A block of a pre-norm model adds a vector of about one size to a stream whose square grows by that: a
    random walk, in which 1 − cos falls as 1/ℓ. In post-norm the stream is normalized, and it does not
    fall."""
    found = {arm: turned(cases[arm]) for arm in cases.arms}
    rows = [(arm, i + 1, y) for arm, values in found.items() for i, y in enumerate(values)]
    slopes = {
        f"slope of {arm}": log_slope({i + 1: y for i, y in enumerate(values) if i >= 1})
        for arm, values in found.items()
    }
    return Found(slopes, rows)

"""Three findings agree with an independent implementation of the models."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch

from findings.finding import load_findings
from findings.measures import at_init
from findings.models import Cases, all_cases
from tests.conftest import daily
from tests.helpers.independent_transformer import Transformer

SEEDS = range(8)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Cases]]:
    """The models of our findings, on these seeds."""
    out = tmp_path_factory.mktemp("findings")
    names = ("gradient_slopes", "variance_at_init", "angles_at_init")
    return {name: all_cases(load_findings()[name].with_overrides({}, list(SEEDS)), out) for name in names}


def vocabulary(cases: Cases) -> int:
    return cases.members[0].data.tokenizer.vocab_size


def slope(points: Mapping[int, float]) -> float:
    x, y = np.log([*points]), np.log([*points.values()])
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def agree(ours: list[float], reference: list[float], within: float) -> None:
    """Check that the means differ by at most 4 standard errors, and that this is less than ``within``."""
    error = math.sqrt((np.var(ours, ddof=1) + np.var(reference, ddof=1)) / len(ours))
    assert 4 * error < within, "too few seeds for a comparison"
    assert abs(np.mean(ours) - np.mean(reference)) < 4 * error + 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("arm", "length"), [("pre", 64), ("post", 64), ("post, one token", 1)])
def test_the_slope_of_the_last_blocks_gradient_agrees(cases, arm, length):
    ours, reference = [], []
    for models in cases["gradient_slopes"]:
        ours.append(at_init.log_slope(at_init.last_gradients(models, arm)))
        norms = {}
        for n_layer in (2, 4, 8, 16, 32):
            model = Transformer(
                arm.split(",")[0], n_layer, vocabulary(models), seed=100 * models.seed + n_layer
            )
            idx, targets = models.over(arm)[n_layer].batch()
            assert idx.shape[1] == length
            model.loss(idx, targets).backward()
            norms[n_layer] = float(model.layers[-1]["w2"].grad.norm())
        reference.append(slope(norms))
    agree(ours, reference, within=0.25)


@pytest.mark.parametrize("arm", daily(["pre", "peri", "layernorm_scaling", "post"], others="slow"))
def test_the_variance_of_the_stream_after_each_block_agrees(cases, arm):
    ours, reference = [], []
    for models in cases["variance_at_init"]:
        model = Transformer(arm, 16, vocabulary(models), seed=models.seed)
        with torch.no_grad():
            streams = model.streams(models[arm].batch()[0])
        ours.append(at_init.stream_variances(models[arm], models[arm].batch()[0]))
        reference.append([float(x.var(correction=0)) for x in streams])
    for block in (1, 4, 16):
        our_variances, expected = ([values[block] for values in side] for side in (ours, reference))
        agree(our_variances, expected, within=0.35 * float(np.mean(our_variances)))


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["pre", "post"])
def test_the_slope_of_how_far_each_block_turns_the_stream_agrees(cases, arm):
    def slope_of(turns: list[float]) -> float:
        return slope({i + 1: y for i, y in enumerate(turns) if i >= 1})

    ours, reference = [], []
    for models in cases["angles_at_init"]:
        with torch.no_grad():
            streams = Transformer(arm, 16, vocabulary(models), seed=models.seed).streams(
                models[arm].batch()[0]
            )
        cosines = [torch.cosine_similarity(x, y, dim=-1) for x, y in pairwise(streams)]
        reference.append(slope_of([float(1 - cosine.mean()) for cosine in cosines]))
        ours.append(at_init.angles_at_init(models).values[f"slope of {arm}"])
    agree(ours, reference, within=0.25)

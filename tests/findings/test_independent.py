"""Three findings have the numbers of an implementation that is not ours: independent.py."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch

from findings.finding import every
from findings.measures import at_init
from findings.models import Cases, all_cases
from tests.helpers.independent_transformer import Transformer

SEEDS = range(8)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Cases]]:
    """Of our findings, on these seeds."""
    out = tmp_path_factory.mktemp("findings")
    names = ("gradient_slopes", "variance_at_init", "angles_at_init")
    return {name: all_cases(every()[name].under({}, list(SEEDS)), out) for name in names}


def vocabulary(cases: Cases) -> int:
    return cases.every[0].data.tokenizer.vocab_size


def slope(points: Mapping[int, float]) -> float:
    x, y = np.log([*points]), np.log([*points.values()])
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def agree(ours: list[float], theirs: list[float], within: float) -> None:
    """The means differ by no more than chance (4 standard errors), and that chance is small."""
    error = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / len(ours))
    assert 4 * error < within, "too few seeds to tell anything"
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error + 1e-6


@pytest.mark.parametrize(("arm", "length"), [("pre", 64), ("post", 64), ("post, one token", 1)])
def test_the_slope_of_the_last_blocks_gradient_is(cases, arm, length):
    found = [at_init.log_slope(at_init.last_gradients(one, arm)) for one in cases["gradient_slopes"]]
    theirs = []
    for one in cases["gradient_slopes"]:
        norms = {}
        for n_layer in (2, 4, 8, 16, 32):
            model = Transformer(arm.split(",")[0], n_layer, vocabulary(one), seed=100 * one.seed + n_layer)
            idx, targets = one.over(arm)[n_layer].batch()
            assert idx.shape[1] == length
            model.loss(idx, targets).backward()
            norms[n_layer] = float(model.layers[-1]["w2"].grad.norm())
        theirs.append(slope(norms))
    agree(found, theirs, within=0.25)


@pytest.mark.parametrize("arm", ["pre", "peri", "layernorm_scaling", "post"])
def test_the_variance_of_the_stream_behind_each_block_is(cases, arm):
    ours, theirs = [], []
    for one in cases["variance_at_init"]:
        model = Transformer(arm, 16, vocabulary(one), seed=one.seed)
        with torch.no_grad():
            streams = model.seeds(one[arm].batch()[0])
        ours.append(at_init.stream_variances(one[arm]))
        theirs.append([float(x.var(correction=0)) for x in streams])
    for block in (1, 4, 16):
        mine, others = ([values[block] for values in some] for some in (ours, theirs))
        agree(mine, others, within=0.35 * float(np.mean(mine)))


@pytest.mark.parametrize("arm", ["pre", "post"])
def test_how_far_each_block_turns_the_stream_is(cases, arm):
    def slope_of(turned: list[float]) -> float:
        return slope({i + 1: y for i, y in enumerate(turned) if i >= 1})

    ours, theirs = [], []
    for one in cases["angles_at_init"]:
        with torch.no_grad():
            streams = Transformer(arm, 16, vocabulary(one), seed=one.seed).streams(one[arm].batch()[0])
        cosines = [torch.cosine_similarity(x, y, dim=-1) for x, y in pairwise(streams)]
        theirs.append(slope_of([float(1 - cosine.mean()) for cosine in cosines]))
        ours.append(at_init.angles_at_init(one).values[f"slope of {arm}"])
    agree(ours, theirs, within=0.25)

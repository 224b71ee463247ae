"""Norms of gradients, weights and updates are those of the real step."""

import math

import pytest
import torch

from probe.statistics import Weights, on_host
from tests.helpers.model import random_tokens, small
from tests.helpers.runs import metric_rows, train_anew

SITES = {"embed": "embed.", "00": "blocks.0.", "01": "blocks.1."}


def test_norms_and_ratios_follow_from_the_matrices_before_and_after():
    model = small()
    model(random_tokens()).square().sum().backward()
    matrices = {name: p for name, p in model.named_parameters() if p.dim() >= 2}
    old = {name: p.detach().clone() for name, p in matrices.items()}
    weights = Weights(model, lambda name: True)
    values = weights.before()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    values = on_host(values | weights.after())
    for site, prefix in SITES.items():
        names = [name for name in matrices if name.startswith(prefix)]
        assert len(names) == (2 if site == "embed" else 4)
        old_norm, change, gradient = (
            torch.cat([tensor_of(name).flatten() for name in names]).double().norm().item()
            for tensor_of in (old.get, lambda n: matrices[n] - old[n], lambda n: matrices[n].grad)
        )
        assert values[f"weight.norm/{site}"] == pytest.approx(old_norm, rel=1e-5)
        assert values[f"grad.norm/{site}"] == pytest.approx(gradient, rel=1e-5)
        assert values[f"update.ratio/{site}"] == pytest.approx(change / old_norm, rel=1e-4)


def test_in_a_run_gradient_norms_are_taken_before_clipping(tiny):
    row = metric_rows(train_anew(tiny("train.steps=1", "train.grad_clip=0.001", "stats=all")))[0]
    total = math.hypot(*(row[f"grad.norm/{site}"] for site in SITES))
    assert total == pytest.approx(row["train/grad_norm"], rel=0.05)  # vectors are not included
    assert 0.001 < total < row["train/grad_norm"]
    assert row["update.ratio/00"] > 0

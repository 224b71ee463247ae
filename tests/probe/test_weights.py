"""Norms of gradients, weights and updates are those of the real step."""

import math

import numpy as np
import pytest

from tests.helpers.runs import final_tensors, metric_rows, train_anew

ONE = (
    "train.steps=1",
    "train.checkpoint_every=0",
    'stats.metrics=["grad.norm","weight.norm","update.ratio"]',
)


def length(arrays) -> float:
    return math.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays))


@pytest.mark.parametrize("options", [("train.grad_clip=0.01",), ("optim=muon", "train.grad_accum=2")])
def test_norms_and_ratios_follow_from_the_weights_before_and_after(tiny, options):
    before = final_tensors(train_anew(tiny("train.steps=0", *options)))
    folder = train_anew(tiny(*ONE, *options))
    after, row = final_tensors(folder), metric_rows(folder)[0]
    parts = {"embed": "embed.", "00": "blocks.0.", "01": "blocks.1."}
    for site, prefix in parts.items():
        matrices = [n for n, t in before.items() if n.startswith(prefix) and t.dim() >= 2]
        assert len(matrices) in (2, 4)
        old, new = ([tensors[n].numpy() for n in matrices] for tensors in (before, after))
        assert row[f"weight.norm/{site}"] == pytest.approx(length(old), rel=1e-5)
        change = length(b - a for a, b in zip(old, new, strict=True))
        assert row[f"update.ratio/{site}"] == pytest.approx(change / length(old), rel=1e-4)


def test_gradient_norms_are_taken_before_clipping(tiny):
    free = metric_rows(train_anew(tiny(*ONE, "train.grad_clip=0")))[0]
    clipped = metric_rows(train_anew(tiny(*ONE, "train.grad_clip=0.001")))[0]
    total = math.hypot(*(free[f"grad.norm/{site}"] for site in ("embed", "00", "01")))
    assert total == pytest.approx(free["train/grad_norm"], rel=0.05)  # vectors are not included
    assert total < free["train/grad_norm"]
    for site in ("embed", "00", "01"):
        assert free[f"grad.norm/{site}"] == clipped[f"grad.norm/{site}"] > 0

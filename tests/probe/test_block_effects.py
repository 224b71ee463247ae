"""The cost of leaving a block out, and how far the block turns the stream; the model is not changed."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from probe import block_effects
from tests.helpers.model import random_tokens, small

IDX = random_tokens()


def loss_of(model) -> float:
    return cross_entropy(model(IDX).flatten(0, 1), IDX.flatten()).item()


def test_a_blocks_cost_is_the_rise_of_the_loss_without_it():
    model = small(n_layer=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(10)
    full, blocks, without = loss_of(model), model.blocks, []
    for layer in range(3):
        model.blocks = blocks[:layer] + blocks[layer + 1 :]
        without.append(loss_of(model))
    model.blocks = blocks
    expected = [loss - full for loss in without]
    assert [*block_effects.skip_costs(model, loss_of)] == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, expected)) > 0.01
    assert loss_of(model) == full  # no hook is left


def turned(angle: float) -> Tensor:
    """Return a vector (1, 1, 2) of length 3 at this angle, in radians."""
    return 3 * torch.tensor([[[math.cos(angle), math.sin(angle)]]], dtype=torch.float64)


def test_the_angular_distance_is_the_angle_in_half_turns_whatever_the_lengths():
    for angle in (0.0, 0.25, 0.5, 1.0):
        streams = [turned(0), 5 * turned(angle * math.pi)]
        assert block_effects.angular_distances(streams) == pytest.approx([angle], abs=1e-7)

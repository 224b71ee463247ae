"""The cost of leaving a block out, and how far the block turns the stream; the model is not changed."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from model import GPT
from model.norms import LayerNorm
from model.placements import Pre
from probe import block_effects

IDX = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(0))


def gpt(placement: type = Pre, n_layer: int = 3) -> GPT:
    sizes = {"vocab_size": 11, "block_size": 8, "n_layer": n_layer, "n_head": 2, "n_embd": 16}
    model = GPT(**sizes, norm=LayerNorm, placement=placement).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(10)
    return model


def loss_of(model: nn.Module) -> float:
    return cross_entropy(model(IDX).flatten(0, 1), IDX.flatten()).item()


@torch.no_grad()
def loss_without(model: GPT, layer: int) -> float:
    x = model.embed(IDX)
    for i, block in enumerate(model.blocks):
        x = x if i == layer else block(x)
    return cross_entropy(model.head(model.final(x)).flatten(0, 1), IDX.flatten()).item()


def test_a_blocks_cost_is_the_rise_of_the_loss_without_it():
    model = gpt()
    full = loss_of(model)
    expected = [loss_without(model, layer) - full for layer in range(3)]
    assert [*block_effects.skip_costs(model, loss_of)] == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, expected)) > 0.01
    assert loss_of(model) == full  # no hook is left


def turned(angle: float) -> Tensor:
    """Return a vector (1, 1, 2) of length 3 at this angle, in radians."""
    return 3 * torch.tensor([[[math.cos(angle), math.sin(angle)]]], dtype=torch.float64)


@pytest.mark.parametrize("angle", [0.0, 0.25, 0.5, 1.0])
def test_the_angular_distance_is_the_angle_in_half_turns_whatever_the_lengths(angle):
    streams = [turned(0), 5 * turned(angle * math.pi)]
    assert block_effects.angular_distances(streams) == pytest.approx([angle], abs=1e-7)

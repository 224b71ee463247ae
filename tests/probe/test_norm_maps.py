"""A norm's map is its inputs against its outputs, without gain and bias."""

import pytest
import torch
from torch import nn

from model.norms import DynamicTanh, LayerNorm
from model.placements import Peri, Post, Pre
from probe import norm_maps
from tests.helpers.model import drawn, random_tokens, small

IDX = random_tokens()


@pytest.mark.parametrize(("placement", "slots"), [(Pre, ["pre"]), (Post, ["post"]), (Peri, ["pre", "out"])])
def test_every_norm_has_a_map_and_an_absent_one_has_none(placement, slots):
    maps = norm_maps.maps(small(placement=placement), IDX)
    final = {"final"} if placement is not Post else set()
    assert set(maps) == final | {f"{i:02d}.{k}.{s}" for i in range(2) for k in ("attn", "mlp") for s in slots}
    assert all(x.shape == y.shape == (3, 8, 16) for x, y in maps.values())


class Foreign(Pre):
    """A placement whose modules have no slots."""

    def __call__(self, branch, norm, layer, site):
        return nn.Sequential(norm("norm"), branch)


def test_a_placement_without_slots_has_only_the_final_norm():
    assert [*norm_maps.norms(small(placement=Foreign))] == ["final"]


class WithFlag(nn.Module):
    """A norm whose ``weight`` and ``bias`` are something else."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.bias, self.weight = False, nn.Linear(n, n)

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize("norm", [LayerNorm, WithFlag])
def test_gain_and_bias_are_undone_if_they_are_one_number_a_channel(norm):
    model = small(norm=norm)
    if norm is LayerNorm:
        with torch.no_grad():
            model.final.weight.uniform_(0.5, 2)
            model.final.bias.uniform_(-1, 1)
    x, y = norm_maps.maps(model, IDX)["final"]
    torch.testing.assert_close(y, nn.functional.layer_norm(x, (16,)))


def test_dyts_map_is_a_tanh_of_its_alpha():
    model = small(norm=DynamicTanh)
    with torch.no_grad():
        model.embed.tokens.weight.mul_(100)
    x, y = norm_maps.maps(model, IDX)["00.attn.pre"]
    explained, steepness = norm_maps.tanh_fit(x, y)
    assert explained > 0.999
    alpha = model.blocks[0].attn.pre.alpha.item()
    assert steepness / x.square().mean().sqrt() == pytest.approx(alpha, rel=0.1)
    assert explained - norm_maps.line_fit(x, y) > 0.05


def test_layernorms_map_is_a_line_for_tokens_of_one_size_and_s_shaped_for_others():
    x = LayerNorm(16)(drawn((1000, 16))).detach()
    assert norm_maps.line_fit(x, LayerNorm(16)(x)) > 0.9999
    x = x * drawn((1000, 1), seed=1).exp()
    y = LayerNorm(16)(x)
    assert norm_maps.tanh_fit(x, y)[0] - norm_maps.line_fit(x, y) > 0.1

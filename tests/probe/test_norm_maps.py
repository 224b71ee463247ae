"""A norm's map is its inputs against its outputs, without gain and bias."""

import pytest
import torch
from torch import nn

from model import GPT
from model.norms import DynamicTanh, LayerNorm
from model.placements import Peri, Post, Pre
from probe import norm_maps

IDX = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


def gpt(norm: type, placement: type) -> GPT:
    return GPT(**SIZES, norm=norm, placement=placement).eval()


@pytest.mark.parametrize(("placement", "slots"), [(Pre, ["pre"]), (Post, ["post"]), (Peri, ["pre", "out"])])
def test_every_norm_has_a_map_and_an_absent_one_has_none(placement, slots):
    maps = norm_maps.maps(gpt(LayerNorm, placement), IDX)
    final = {"final"} if placement is not Post else set()
    assert set(maps) == final | {f"{i:02d}.{k}.{s}" for i in range(2) for k in ("attn", "mlp") for s in slots}
    assert all(x.shape == y.shape == (3, 8, 16) for x, y in maps.values())


class Foreign(Pre):
    """A placement whose modules have no slots."""

    def __call__(self, branch, norm, layer, site):
        return nn.Sequential(norm("norm"), branch)


def test_a_placement_without_slots_has_only_the_final_norm():
    assert [*norm_maps.norms(gpt(LayerNorm, Foreign))] == ["final"]


def test_gain_and_bias_are_undone():
    model = gpt(LayerNorm, Pre)
    with torch.no_grad():
        model.final.weight.uniform_(0.5, 2)
        model.final.bias.uniform_(-1, 1)
    x, y = norm_maps.maps(model, IDX)["final"]
    torch.testing.assert_close(y, nn.functional.layer_norm(x, (16,)))


def test_dyts_map_is_a_tanh_of_its_alpha_and_layernorms_a_line_for_tokens_of_one_size():
    model = gpt(DynamicTanh, Pre)
    with torch.no_grad():
        model.embed.tokens.weight.mul_(100)
    x, y = norm_maps.maps(model, IDX)["00.attn.pre"]
    explained, steepness = norm_maps.tanh_fit(x, y)
    assert explained > 0.999
    assert steepness / x.square().mean().sqrt() == pytest.approx(
        model.blocks[0].attn.pre.alpha.item(), rel=0.1
    )
    assert explained - norm_maps.line_fit(x, y) > 0.05

    x = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
    assert norm_maps.line_fit(x, LayerNorm(16)(x)) > 0.9999
    assert norm_maps.tanh_fit(x, LayerNorm(16)(x))[0] - norm_maps.line_fit(x, LayerNorm(16)(x)) < 1e-3


def test_layernorms_map_is_s_shaped_for_tokens_of_different_sizes():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 16, generator=random) * torch.randn(1000, 1, generator=random).exp()
    y = LayerNorm(16)(x)
    assert norm_maps.tanh_fit(x, y)[0] - norm_maps.line_fit(x, y) > 0.1


class WithFlag(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.bias = False
        self.weight = nn.Linear(n, n)

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:])


def test_only_numbers_of_channels_are_undone():
    x, y = norm_maps.maps(gpt(WithFlag, Pre), IDX)["final"]
    torch.testing.assert_close(y, nn.functional.layer_norm(x, x.shape[-1:]))

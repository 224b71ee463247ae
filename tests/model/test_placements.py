"""A placement is its equation, and the names of modules do not depend on it."""

import pytest
import torch
from torch import nn

from model import GPT
from model.placements import Post, Pre, Residual, Slots
from tests.conftest import NORMS, PLACEMENTS, configured
from training.components import build_model


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x + 1  # affine, so that the order matters


SLOT = {"pre": 2.0, "out": 3.0, "post": 5.0}


def wired(placement) -> nn.Module:
    return placement(n_layer=1)(Times(7.0), lambda slot: Times(SLOT[slot]), layer=0, site="attn")


def test_the_general_equation():
    slots = Slots(pre=True, out=True, post=True, a=0.5, b=0.25, c=4.0)
    residual = Residual(Times(7.0), lambda slot: Times(SLOT[slot]), slots)
    pre, f, out, post = Times(2.0), Times(7.0), Times(3.0), Times(5.0)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(residual(x), post(0.5 * x + 0.25 * out(f(4.0 * pre(x)))))


def test_pre_is_x_plus_f_of_norm_and_has_a_final_norm():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(wired(Pre)(x), x + Times(7.0)(Times(2.0)(x)))
    assert Pre.final_norm


def test_post_is_norm_of_x_plus_f_and_has_none():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(wired(Post)(x), Times(5.0)(x + Times(7.0)(x)))
    assert not Post.final_norm


def test_without_a_norm_all_placements_are_the_same_function():
    tokens = torch.randint(9, (2, 8), generator=torch.Generator().manual_seed(0))
    logits = [
        build_model(configured("norm=none", f"placement={name}", "model.n_layer=2"), 9)(tokens)
        for name in PLACEMENTS
    ]
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_module_names_do_not_depend_on_norm_or_placement():
    def names(norm: str, placement: str) -> list[str]:
        model = build_model(configured(f"norm={norm}", f"placement={placement}", "model.n_layer=2"), 9)
        return [name for name, _ in model.named_modules()]

    first = names("layernorm", "pre")
    assert {"embed", "final", "blocks.1.attn", "blocks.1.mlp.branch", "blocks.0.attn.post"} <= set(first)
    assert all(names(norm, placement) == first for norm in NORMS for placement in PLACEMENTS)


@pytest.mark.parametrize(("placement", "count"), [(Pre, 5), (Post, 4)])
def test_each_slot_gets_a_norm_of_its_own(placement, count):
    model = GPT(
        vocab_size=9, block_size=8, n_layer=2, n_head=2, n_embd=8, norm=nn.LayerNorm, placement=placement
    )
    assert len({id(m) for m in model.modules() if isinstance(m, nn.LayerNorm)}) == count

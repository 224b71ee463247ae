"""Each placement is its equation. (tests/findings/test_independent.py tests the stream's variance.)"""

from functools import partial

import pytest
import torch
from torch import nn

from model.placements import (
    DeepNorm,
    Keel,
    LayerNormScaling,
    Mix,
    Post,
    Pre,
    Residual,
    ReZero,
    Slots,
)
from tests.conftest import PLACEMENTS, configured
from tests.helpers.model import small
from training.build import bind


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x + 1  # affine, so that the order matters


SLOT = {"pre": 2.0, "out": 3.0, "post": 5.0}
L = 6


def wired(kind, layer: int = 2, site: str = "mlp", n_layer: int = L) -> nn.Module:
    return kind(n_layer)(Times(7.0), lambda slot: Times(SLOT[slot]), layer=layer, site=site)


def test_the_share_of_post_norm_blocks_is_rounded_down_but_not_by_rounding_errors():
    for n_layer, fraction, n_post in ((4, 0.25, 1), (3, 0.25, 0), (100, 0.29, 29), (7, 0.5, 3)):
        assert sum(slots.post for slots in Mix(n_layer, fraction).by_layer) == n_post


def test_the_general_equation():
    slots = Slots(pre=True, out=True, post=True, a=0.5, b=0.25, c=4.0)
    residual = Residual(Times(7.0), lambda slot: Times(SLOT[slot]), slots)
    pre, f, out, post = Times(2.0), Times(7.0), Times(3.0), Times(5.0)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(residual(x), post(0.5 * x + 0.25 * out(f(4.0 * pre(x)))))


pre, f, out, post = Times(2.0), Times(7.0), Times(3.0), Times(5.0)
FORMULAS = {  # of block 3 of 6, from the papers
    "pre": lambda x: x + f(pre(x)),
    "post": lambda x: post(x + f(x)),
    "peri": lambda x: x + out(f(pre(x))),
    "output": lambda x: x + out(f(x)),
    "deepnorm": lambda x: post((2 * L) ** 0.25 * x + f(x)),
    "layernorm_scaling": lambda x: x + f(pre(x) / 3**0.5),
    "mix": lambda x: x + f(pre(x)),
    "keel": lambda x: post(2 * L * x + f(pre(x))),
    "rezero": lambda x: x,
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_placement_is_its_formula(name):
    x = torch.randn(2, 3, 4)
    kind = bind("placement", configured(f"placement={name}").placement)
    for site in ("attn", "mlp"):
        torch.testing.assert_close(wired(kind, site=site)(x), FORMULAS[name](x))


def test_placements_that_differ_by_block_or_branch():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(wired(LayerNormScaling, 0)(x), x + f(pre(x)))
    for layer in range(8):
        formula = FORMULAS["post" if layer < 2 else "pre"]
        torch.testing.assert_close(wired(Mix, layer, n_layer=8)(x), formula(x))
    assert not any(Mix(3).slots(layer, "mlp").post for layer in range(3))
    torch.testing.assert_close(wired(Keel, 0, "attn")(x), x + f(pre(x)))
    torch.testing.assert_close(wired(Keel, 0, "mlp")(x), post(x + f(pre(x))))
    torch.testing.assert_close(wired(Keel, 1, "attn")(x), FORMULAS["keel"](x))


def test_rezero_learns_the_share_of_each_branch():
    residual = wired(ReZero)
    with torch.no_grad():
        residual.b.weight.fill_(0.5)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(residual(x), x + 0.5 * f(x))


def test_scalars_can_be_set():
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(wired(partial(DeepNorm, alpha=3.0))(x), post(3 * x + f(x)))
    torch.testing.assert_close(wired(partial(Keel, alpha=3.0))(x), post(3 * x + f(pre(x))))
    assert DeepNorm(4, beta=0.5).branch_gain == 0.5
    assert [bool(Mix(4, fraction=0.5).slots(i, "attn").post) for i in range(4)] == [True, True, False, False]


def test_final_norm_and_initialization_of_each_placement():
    kinds = {name: bind("placement", configured(f"placement={name}").placement)(4) for name in PLACEMENTS}
    assert {name for name, kind in kinds.items() if not kind.final_norm} == {"post", "deepnorm", "keel"}
    assert {name for name, kind in kinds.items() if kind.depth_scaled_init} == {"pre", "post", "mix"}
    assert {n for n, kind in kinds.items() if kind.branch_gain != 1} == {"deepnorm"}
    assert kinds["deepnorm"].branch_gain == pytest.approx((8 * 4) ** -0.25)


@pytest.mark.parametrize(("placement", "count"), [(Pre, 5), (Post, 4)])
def test_no_two_slots_share_a_norm(placement, count):
    model = small(norm=nn.LayerNorm, placement=placement)
    assert len({id(m) for m in model.modules() if isinstance(m, nn.LayerNorm)}) == count

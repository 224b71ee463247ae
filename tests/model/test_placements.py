"""Each placement is its equation."""

from functools import partial

import pytest
import torch
from torch import nn

from model.placements import DeepNorm, Keel, LayerNormScaling, Mix, Residual, ReZero, Slots
from tests.conftest import PLACEMENTS, configured
from tests.helpers.model import small
from training.build import bind


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x + 1  # affine, so that the order matters


pre, f, out, post = Times(2.0), Times(7.0), Times(3.0), Times(5.0)
NORMS = {"pre": pre, "out": out, "post": post}.__getitem__
L = 6
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def wired(kind, layer: int = 2, site: str = "mlp", n_layer: int = L) -> nn.Module:
    return kind(n_layer)(f, NORMS, layer=layer, site=site)


def test_the_general_equation():
    residual = Residual(f, NORMS, Slots(pre=True, out=True, post=True, a=0.5, b=0.25, c=4.0))
    torch.testing.assert_close(residual(X), post(0.5 * X + 0.25 * out(f(4.0 * pre(X)))))


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
    kind = bind("placement", configured(f"placement={name}").placement)
    for site in ("attn", "mlp"):
        torch.testing.assert_close(wired(kind, site=site)(X), FORMULAS[name](X))


OTHERS = {  # the first block, the first branch, and other scalars
    "layernorm_scaling": (wired(LayerNormScaling, 0), FORMULAS["pre"]),
    "mix": (wired(partial(Mix, fraction=0.5), 2), FORMULAS["post"]),
    "keel, first attention": (wired(Keel, 0, "attn"), FORMULAS["pre"]),
    "keel, first MLP": (wired(Keel, 0, "mlp"), lambda x: post(x + f(pre(x)))),
    "keel, second attention": (wired(Keel, 1, "attn"), FORMULAS["keel"]),
    "keel, alpha": (wired(partial(Keel, alpha=3.0)), lambda x: post(3 * x + f(pre(x)))),
    "deepnorm, alpha": (wired(partial(DeepNorm, alpha=3.0)), lambda x: post(3 * x + f(x))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_placements_that_differ_by_block_or_branch_or_are_given_a_scalar(name):
    residual, formula = OTHERS[name]
    torch.testing.assert_close(residual(X), formula(X))


def test_the_share_of_post_norm_blocks_is_rounded_down_but_not_by_rounding_errors():
    for n_layer, fraction, n_post in ((4, 0.25, 1), (3, 0.25, 0), (100, 0.29, 29), (7, 0.5, 3)):
        posts = [Mix(n_layer, fraction).slots(layer, "mlp").post for layer in range(n_layer)]
        assert posts == [True] * n_post + [False] * (n_layer - n_post)


def test_rezero_learns_the_share_of_each_branch():
    residual = wired(ReZero)
    with torch.no_grad():
        residual.b.weight.fill_(0.5)
    torch.testing.assert_close(residual(X), X + 0.5 * f(X))


def test_final_norm_and_initialization_of_each_placement():
    kinds = {name: bind("placement", configured(f"placement={name}").placement)(4) for name in PLACEMENTS}
    assert {name for name, kind in kinds.items() if not kind.final_norm} == {"post", "deepnorm", "keel"}
    assert {name for name, kind in kinds.items() if kind.depth_scaled_init} == {"pre", "post", "mix"}
    assert {name for name, kind in kinds.items() if kind.branch_gain != 1} == {"deepnorm"}
    assert kinds["deepnorm"].branch_gain == pytest.approx((8 * 4) ** -0.25)
    assert DeepNorm(4, beta=0.5).branch_gain == 0.5


def test_no_two_slots_share_a_norm():
    norms = [module for module in small(norm=nn.LayerNorm).modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5  # modules() yields a shared module once

"""A placement is its equation, and the variance of the residual stream is that of its paper."""

from functools import partial

import pytest
import torch
from torch import nn

from model import GPT
from model.embeddings import Embedding
from model.init import XAVIER
from model.norms import LayerNorm
from model.placements import (
    DeepNorm,
    Keel,
    LayerNormScaling,
    Mix,
    Output,
    Peri,
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


# the initial variance of the residual stream ----------------------------------------------------------


def variances(placement, n_layer: int) -> torch.Tensor:
    """Return the variance of the stream after the embedding and after each block, the mean over two seeds:
    (n_layer + 1,).

    As in the papers' analyses: Xavier's initialization, an untied head, embeddings of norm 1, with a norm if
    the stream is normed, so that the first block gets what every block gets.
    """
    normed = not placement(n_layer).final_norm
    by_seed = []
    for seed in range(2):
        model = GPT(
            vocab_size=65,
            block_size=64,
            n_layer=n_layer,
            n_head=4,
            n_embd=128,
            norm=LayerNorm,
            placement=placement,
            embedding=partial(Embedding, norm=LayerNorm if normed else nn.Identity),
            init=XAVIER,
            tie=False,
            seed=seed,
        )
        stream = []
        for module in (model.embed, *model.blocks):
            module.register_forward_hook(lambda _, args, x, stream=stream: stream.append(x.var()))
        with torch.no_grad():
            model(torch.randint(65, (2, 64), generator=torch.Generator().manual_seed(seed)))
        by_seed.append(torch.stack(stream))
    return torch.stack(by_seed).mean(0)


@pytest.mark.parametrize("placement", [Peri, Output])
def test_with_a_norm_after_each_branch_the_variance_grows_by_1_per_branch(placement):
    """Kim et al. 2025: each branch adds a variance of 1 to a stream that it is uncorrelated with."""
    stream = variances(placement, 16)
    growth = stream[[4, 8, 16]] - stream[0]
    torch.testing.assert_close(growth, torch.tensor([8.0, 16.0, 32.0]), rtol=0.1, atol=0)


@pytest.mark.parametrize("placement", [Post, DeepNorm, Keel])
def test_with_a_norm_on_the_stream_its_variance_is_1_at_every_depth(placement):
    torch.testing.assert_close(variances(placement, 8), torch.ones(9), rtol=0, atol=0.01)


def test_in_pre_norm_the_variance_grows_linearly_and_with_layernorm_scaling_logarithmically():
    """From 4 to 8, to 16, to 32 blocks: Xiong et al. 2020 (linear) and Sun et al. 2025, whose 1/√ℓ makes it
    the harmonic series (logarithmic)."""

    def growth(placement) -> torch.Tensor:
        return variances(placement, 32)[[4, 8, 16, 32]].diff()  # of each doubling

    linear, logarithmic = growth(Pre), growth(LayerNormScaling)
    torch.testing.assert_close(linear[1:] / linear[:-1], torch.full((2,), 2.0), rtol=0.3, atol=0)
    torch.testing.assert_close(logarithmic / logarithmic.mean(), torch.ones(3), rtol=0.3, atol=0)


def test_with_branches_initialised_to_0_the_variance_is_constant():
    stream = variances(ReZero, 8)
    assert torch.equal(stream, stream[:1].expand(9))

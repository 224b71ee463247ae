"""The other choices of the network: positions, activation, initialization, head, norms at other sites."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model import GPT
from model.attention import CausalSelfAttention
from model.embeddings import Embedding, Rotary
from model.layers import XAVIER
from model.mlp import MLP, swiglu
from model.norms import RMSNorm
from model.placements import LearnedScale
from tests.conftest import configured
from tests.helpers.model import SMALL_KEYS, drawn, small
from training.build import build_model, resolved_auto

NO_POSITIONS = {"embedding": partial(Embedding, positions=nn.Identity)}
ROTARY = NO_POSITIONS | {"attention": partial(CausalSelfAttention, rotate=Rotary)}


def built(*overrides: str) -> GPT:
    return build_model(configured(*SMALL_KEYS, *overrides), 11)


# positions --------------------------------------------------------------------------------------------


def test_rotary_positions_turn_pairs_of_channels_as_complex_numbers():
    """Su et al. 2021, equation 16, with the pairs of GPT-NeoX: channel i and channel i + d/2."""
    q = drawn((2, 3, 9, 8), 1)
    angles = torch.outer(torch.arange(9.0), 10_000 ** (-torch.arange(4.0) / 4)).double()
    turned = torch.complex(q[..., :4], q[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(Rotary(8)(q), torch.cat([turned.real, turned.imag], -1), rtol=1e-5, atol=1e-5)


@given(st.permutations(range(6)), st.lists(st.integers(0, 10), min_size=6, max_size=6), st.integers(0, 10))
def test_without_positions_a_block_sees_the_past_as_a_set(order, past, last):
    """In the first block keys and values depend on one token alone, and the last token attends to all."""
    model = built("model.positions=none", "model.n_layer=1", "model.init_scale=30").double()
    permuted = [past[i] for i in order]
    first, second = model(torch.tensor([[*past, last], [*permuted, last]]))[:, -1]
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("sizes", ["model.positions=rotary model.n_layer=1", "model.positions=none"])
def test_rotary_positions_or_a_second_block_tell_order(sizes):
    """In the second block the keys depend on how much of the past the causal mask showed in the first."""
    model = built(*sizes.split(), "model.init_scale=30").double()
    first, second = model(torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4]]))[:, -1]
    assert (first - second).abs().max() > 1e-3 * first.std()


def test_rotary_positions_need_pairs_of_channels():
    with pytest.raises(ValueError, match="n_embd / n_head = 3 is odd"):
        small(n_embd=6, **ROTARY)


def test_angles_are_exact_in_bf16():
    x = torch.ones(1, 1, 300, 8, dtype=torch.bfloat16)
    exact = Rotary(8)(x.double())
    assert Rotary(8)(x).dtype == torch.bfloat16
    assert (Rotary(8)(x).double() - exact).abs().max() < 0.01  # one rounding; bf16 angles would be off by 1


# the MLP ----------------------------------------------------------------------------------------------


def test_activations():
    x = drawn((2, 8))
    expected = {
        "gelu": F.gelu(x),
        "gelu_tanh": F.gelu(x, approximate="tanh"),
        "relu2": x.clamp(min=0) ** 2,
        "silu": x * x.sigmoid(),
        "swiglu": x[:, :4] * x[:, :4].sigmoid() * x[:, 4:],
    }
    for name, y in expected.items():
        activation = built(f"model.activation={name}").blocks[0].mlp.branch.activation
        torch.testing.assert_close(activation(x), y)
    assert (expected["gelu"] - expected["gelu_tanh"]).abs().max() > 1e-5
    assert configured("model=gpt2").model.activation == "gelu_tanh"
    assert configured("model=baby").model.activation == "gelu"


@pytest.mark.parametrize("n_embd", [16, 64, 128, 384])
def test_a_gated_mlp_has_as_many_weights_as_a_plain_one(n_embd):
    shape = {"dropout": 0.0, "bias": False}
    gated, plain = MLP(n_embd, activation=swiglu, gated=True, **shape), MLP(n_embd, **shape)
    count = [sum(p.numel() for p in mlp.parameters()) for mlp in (gated, plain)]
    assert count[1] <= count[0] <= count[1] + 3 * 8 * n_embd
    x = drawn((2, 3, n_embd), 0, torch.float32)
    gate, value = gated.fc(x).chunk(2, -1)
    torch.testing.assert_close(gated(x), gated.proj(F.silu(gate) * value))


# initialization, head ---------------------------------------------------------------------------------


def test_xavier_depends_on_the_widths_of_each_matrix_and_embeddings_have_norm_1():
    model = small(n_embd=128, vocab_size=500, init=XAVIER, tie=False)
    block = model.blocks[1]
    for weight, n_in, n_out in (
        *((part, 128, 128) for part in block.attn.branch.qkv.weight.chunk(3)),
        (block.attn.branch.proj.weight, 128, 128),
        (block.mlp.branch.fc.weight, 128, 512),
        (block.mlp.branch.proj.weight, 512, 128),
        (model.head.weight, 128, 500),
    ):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (n_in + n_out)), rel=0.03)
    assert model.embed.tokens.weight.norm(dim=1).mean().item() == pytest.approx(1, rel=0.03)


def test_branch_gain_scales_values_projections_and_the_mlp():
    """DeepNorm's β, not on queries and keys (Wang et al. 2022, figure 2)."""
    sizes = ("model.n_embd=128", "model.n_layer=2", "model.n_head=2", "model.init=xavier", "model.tie=false")
    plain, scaled = (build_model(configured(f"placement={p}", *sizes), 11) for p in ("post", "deepnorm"))
    beta = 16**-0.25
    for (name, a), b in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        if name.endswith("qkv.weight"):
            torch.testing.assert_close(b, torch.cat([a[:256], a[256:] * beta]))
        elif ".branch." in name:
            torch.testing.assert_close(b, a * beta)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("tie", [True, False])
def test_the_head_is_the_embedding_or_another_matrix(tie):
    model = built(f"model.tie={tie}")
    names = [name for name, _ in model.named_parameters() if "head" in name]
    assert names == ([] if tie else ["head.weight"])
    assert torch.equal(model.head.weight, model.embed.tokens.weight) == tie


# norms at other sites ---------------------------------------------------------------------------------


def test_queries_and_keys_are_normed_per_head_and_then_rotated():
    model = small(attention=partial(CausalSelfAttention, qk_norm=RMSNorm, rotate=Rotary))
    attention = model.blocks[0].attn.branch
    assert attention.q_norm.weight.shape == (8,)
    assert attention.q_norm is not attention.k_norm
    heads = []
    attention.attend.register_forward_pre_hook(lambda _, qkv: heads.extend(qkv))
    with torch.no_grad():
        attention.q_norm.weight.copy_(torch.linspace(1, 2, 8))
    x = drawn((2, 5, 16), 3, torch.float32)
    attention(x)
    q = attention.qkv(x)[..., :16].view(2, 5, 2, 8).transpose(1, 2)
    torch.testing.assert_close(heads[0], Rotary(8)(attention.q_norm(q)))
    torch.testing.assert_close(heads[1].norm(dim=-1), torch.full((2, 2, 5), math.sqrt(8)), rtol=0.05, atol=0)


def test_each_site_has_the_norm_that_is_named_for_it():
    others = ("model.qk_norm=layernorm", "model.embedding_norm=rmsnorm", "model.final_norm=dyt")
    model = built("norm=batchnorm", *others)
    names = [type(m).__name__ for m in (model.embed.norm, model.blocks[0].attn.branch.k_norm, model.final)]
    assert names == ["RMSNorm", "LayerNorm", "DynamicTanh"]
    assert type(model.blocks[0].attn.pre).__name__ == "BatchNorm"
    plain = built()
    embed, attention = plain.embed, plain.blocks[0].attn.branch
    for absent in (embed.norm, embed.scale, attention.q_norm, attention.rotate):
        assert isinstance(absent, nn.Identity)


def test_same_is_the_main_norm_with_its_options():
    config = configured("norm=layernorm", "norm.eps=0.5", "model.qk_norm=same", "model.embedding_norm=same")
    assert config.model.qk_norm == config.model.embedding_norm == config.norm
    assert config.norm.options["eps"] == 0.5
    assert configured("model.qk_norm=layernorm", "norm.eps=0.5").model.qk_norm.options["eps"] == 1e-5
    assert configured("model.qk_norm=layernorm", "model.bias=true").model.qk_norm.options["bias"] is True


WIDER = 48**0.5  # √(768/16): the factor for a width of 16
AUTO = {
    "final_norm": "same",
    "embedding_scale": False,
    "init_scale": pytest.approx(WIDER, rel=1e-5),
    "depth_scaled_init": True,
}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], AUTO),
        (["placement=post"], AUTO | {"final_norm": "none"}),
        (["norm=dyt"], AUTO | {"embedding_scale": True, "alpha": 1.0}),
        (["norm=derf", "norm.alpha=0.3"], AUTO | {"embedding_scale": True}),
        (["placement=layernorm_scaling"], AUTO | {"depth_scaled_init": False}),
        (["model.init=xavier"], AUTO | {"init_scale": 1.0, "depth_scaled_init": False}),
        (["placement=keel"], AUTO | {"final_norm": "none", "depth_scaled_init": False, "alpha": 4.0}),
    ],
)
def test_auto_is_resolved_as_the_norm_and_the_placement_need_it(overrides, expected):
    config = configured(*SMALL_KEYS, *overrides)
    assert {key.split(".")[1]: value for key, value in resolved_auto(config).items()} == expected
    model = build_model(config, 11)
    assert isinstance(model.final, nn.Identity) == (expected["final_norm"] == "none")
    assert isinstance(model.embed.scale, LearnedScale) == expected["embedding_scale"]
    if config.model.init == "gpt2":
        std = 0.02 * WIDER / (2 if expected["depth_scaled_init"] else 1)
        assert model.blocks[0].mlp.branch.proj.weight.std().item() == pytest.approx(std, rel=0.1)


def test_explicit_values_override_auto():
    keys = ("embedding_scale=false", "final_norm=same", "depth_scaled_init=false", "init_scale=1")
    model = built("norm=dyt", "placement=post", *(f"model.{key}" for key in keys))
    assert isinstance(model.embed.scale, nn.Identity)
    assert type(model.final).__name__ == "DynamicTanh"
    assert model.blocks[0].mlp.branch.proj.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_init_scale_multiplies_every_weight_that_is_drawn():
    plain, scaled = (built(f"model.init_scale={scale}") for scale in (1, 3))
    for (name, p), q in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(q, p if "weight" in name and p.ndim == 1 else 3 * p, msg=name)


def test_the_learned_scale_is_initialised_to_the_root_of_the_width():
    model = built("norm=dyt")
    x = torch.tensor([[1, 2, 3]])
    expected = 4 * (model.embed.tokens.weight[[1, 2, 3]] + model.embed.positions.weight[:3])
    torch.testing.assert_close(model.embed(x)[0], expected)

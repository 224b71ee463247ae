"""The other choices of the network: positions, activation, initialization, head, norms at other sites."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model import GPT
from model.attention import CausalSelfAttention
from model.embeddings import Rotary
from model.layers import XAVIER
from model.mlp import MLP, swiglu
from model.norms import RMSNorm
from model.placements import LearnedScale
from tests.conftest import configured
from tests.helpers.model import SMALL_KEYS, drawn, small
from training.build import build_model, resolved_auto


def built(*overrides: str) -> GPT:
    return build_model(configured(*SMALL_KEYS, *overrides), 11)


# positions ---------------------------------------------------------------------------------------------


def test_rotary_positions_turn_pairs_of_channels_as_complex_numbers():
    """Su et al. 2021, equation 16, with the pairs of GPT-NeoX: channel i and channel i + d/2."""
    q = drawn((2, 3, 300, 8), 1)
    angles = torch.outer(torch.arange(300.0), 10_000 ** (-torch.arange(4.0) / 4)).double()
    turned = torch.complex(q[..., :4], q[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(Rotary(8)(q), expected, rtol=1e-4, atol=1e-4)
    in_bf16 = Rotary(8)(q.bfloat16())  # angles in bf16 would be off by 1
    torch.testing.assert_close(in_bf16, expected.bfloat16(), rtol=0.02, atol=0.02)


def test_rotary_positions_need_pairs_of_channels():
    with pytest.raises(ValueError, match="n_embd / n_head = 3 is odd"):
        small(n_embd=6, attention=partial(CausalSelfAttention, rotate=Rotary))


@given(st.permutations(range(6)), st.lists(st.integers(0, 10), min_size=6, max_size=6), st.integers(0, 10))
@settings(max_examples=20)
def test_without_positions_a_block_sees_the_past_as_a_set(order, past, last):
    """In the first block keys and values depend on one token alone, and the last token attends to all."""
    model = built("model.positions=none", "model.n_layer=1", "model.init_scale=30").double()
    permuted = [past[i] for i in order]
    first, second = model(torch.tensor([[*past, last], [*permuted, last]]))[:, -1]
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("words", ["model.positions=rotary model.n_layer=1", "model.positions=none"])
def test_rotary_positions_or_a_second_block_tell_order(words):
    """In the second block the keys depend on how much of the past the causal mask showed in the first."""
    model = built(*words.split(), "model.init_scale=30").double()
    first, second = model(torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4]]))[:, -1]
    assert (first - second).abs().max() > 1e-3 * first.std()


# the MLP -----------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "silu": F.silu,
    "swiglu": lambda x: F.silu(x[..., :48]) * x[..., 48:],  # 8/3·16 hidden features, up to a multiple of 8
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_mlp_is_its_formula(name):
    mlp, x = built(f"model.activation={name}").blocks[0].mlp.branch, drawn((2, 3, 16), 0, torch.float32)
    torch.testing.assert_close(mlp(x), mlp.proj(ACTIVATIONS[name](mlp.fc(x))))


@pytest.mark.parametrize("n_embd", [16, 64, 384])
def test_a_gated_mlp_has_as_many_weights_as_a_plain_one(n_embd):
    shape = {"dropout": 0.0, "bias": False}
    gated, plain = MLP(n_embd, activation=swiglu, gated=True, **shape), MLP(n_embd, **shape)
    count = [sum(p.numel() for p in mlp.parameters()) for mlp in (gated, plain)]
    assert count[1] <= count[0] <= count[1] + 3 * 8 * n_embd


# initialization, head ----------------------------------------------------------------------------------


def test_xavier_depends_on_the_widths_of_each_matrix_and_embeddings_have_norm_1():
    model = small(n_embd=128, vocab_size=500, init=XAVIER, tie=False)
    block = model.blocks[1]
    for weight, n_in, n_out in (
        *((part, 128, 128) for part in block.attn.branch.qkv.weight.chunk(3)),
        (block.mlp.branch.fc.weight, 128, 512),
        (block.mlp.branch.proj.weight, 512, 128),
        (model.head.weight, 128, 500),
    ):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (n_in + n_out)), rel=0.03)
    assert model.embed.tokens.weight.norm(dim=1).mean().item() == pytest.approx(1, rel=0.03)


def test_branch_gain_scales_values_projections_and_the_mlp():
    """DeepNorm's β, not on queries and keys (Wang et al. 2022, figure 2)."""
    plain, scaled = (built("model.init=xavier", f"placement={p}") for p in ("post", "deepnorm"))
    beta = 16**-0.25
    for (name, a), b in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        if name.endswith("qkv.weight"):
            torch.testing.assert_close(b, torch.cat([a[:32], a[32:] * beta]))
        else:
            torch.testing.assert_close(b, a * beta if ".branch." in name else a)


@pytest.mark.parametrize("tie", [True, False])
def test_the_head_is_the_embedding_or_another_matrix(tie):
    model = built(f"model.tie={tie}")
    assert ("head.weight" in dict(model.named_parameters())) != tie
    assert torch.equal(model.head.weight, model.embed.tokens.weight) == tie


def test_init_scale_multiplies_every_weight_that_is_drawn():
    plain, scaled = (built(f"model.init_scale={scale}") for scale in (1, 3))
    for (name, p), q in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(q, p if "weight" in name and p.ndim == 1 else 3 * p, msg=name)


# norms at other sites ----------------------------------------------------------------------------------


def test_queries_and_keys_are_normed_per_head_and_then_rotated():
    attention = (
        small(attention=partial(CausalSelfAttention, qk_norm=RMSNorm, rotate=Rotary)).blocks[0].attn.branch
    )
    assert attention.q_norm is not attention.k_norm
    heads = []
    attention.attend.register_forward_pre_hook(lambda _, qkv: heads.extend(qkv))
    with torch.no_grad():
        attention.q_norm.weight.copy_(torch.linspace(1, 2, 8))
    x = drawn((2, 5, 16), 3, torch.float32)
    attention(x)
    q, k = attention.qkv(x)[..., :32].view(2, 5, 2, 2, 8).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(heads[0], Rotary(8)(attention.q_norm(q)))
    torch.testing.assert_close(heads[1], Rotary(8)(attention.k_norm(k)))


def test_each_site_has_the_norm_that_is_named_for_it():
    others = ("model.qk_norm=layernorm", "model.embedding_norm=rmsnorm", "model.final_norm=dyt")
    model, plain = built("norm=batchnorm", *others), built()
    names = []
    for each in (model, plain):
        attn = each.blocks[0].attn
        sites = (
            each.embed.norm,
            each.embed.scale,
            attn.branch.k_norm,
            attn.branch.rotate,
            attn.pre,
            each.final,
        )
        names.append(" ".join(type(module).__name__ for module in sites))
    assert names == [
        "RMSNorm Identity LayerNorm Identity BatchNorm DynamicTanh",
        "Identity Identity Identity Identity LayerNorm LayerNorm",
    ]


def test_same_is_the_main_norm_with_its_options():
    model = configured(
        "norm=layernorm", "norm.eps=0.5", "model.qk_norm=same", "model.embedding_norm=layernorm"
    ).model
    assert (model.qk_norm.options["eps"], model.embedding_norm.options["eps"]) == (0.5, 1e-5)


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


def test_the_learned_scale_is_initialised_to_the_root_of_the_width():
    model = built("norm=dyt")
    expected = 4 * (model.embed.tokens.weight[[1, 2, 3]] + model.embed.positions.weight[:3])
    torch.testing.assert_close(model.embed(torch.tensor([[1, 2, 3]]))[0], expected)

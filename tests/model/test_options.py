"""What else of the network is a choice: positions, activation, initialization, the head, norms besides."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import GPT
from model.embeddings import LearnedPositions, Rotary
from model.init import XAVIER
from model.mlp import MLP, relu2, swiglu
from model.norms import LayerNorm, RMSNorm
from model.placements import Pre
from model.scales import LearnedScale
from tests.conftest import configured
from tests.model.test_norms import drawn
from training.build import build_model, settled

SMALL = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}
DEFAULT_SIZES = ("model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.block_size=8")


def small(**options) -> GPT:
    return GPT(**SMALL | {"norm": LayerNorm, "placement": Pre} | options)


def built(*overrides: str) -> GPT:
    return build_model(configured(*DEFAULT_SIZES, *overrides), 11)


# positions --------------------------------------------------------------------------------------------


def test_turned_a_product_depends_on_the_distance_alone_and_lengths_stay():
    q, k = drawn((1, 2, 1, 8), 1).expand(1, 2, 20, 8), drawn((1, 2, 1, 8), 2).expand(1, 2, 20, 8)
    a, b = Rotary()(q), Rotary()(k)
    products = (a @ b.transpose(-2, -1))[0, 0]  # of query t and key s
    for distance in range(-19, 20):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert products[0].std() > 0.01
    torch.testing.assert_close(a.norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(a[:, :, 0], q[:, :, 0])


def test_rotary_positions_are_those_of_hugging_faces_gpt_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    q, k = drawn((2, 3, 9, 8), 1, torch.float32), drawn((2, 3, 9, 8), 2, torch.float32)
    frequencies = 1 / 10_000 ** (torch.arange(0, 8, 2) / 8)
    angles = torch.outer(torch.arange(9.0), frequencies).repeat(1, 2)[None]
    for ours, theirs in zip(
        (Rotary()(q), Rotary()(k)), apply_rotary_pos_emb(q, k, angles.cos(), angles.sin()), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_rotary_positions_replace_the_learned_ones():
    assert isinstance(small().embed.positions, LearnedPositions)
    rotary = built("model.positions=rotary")
    assert not [name for name, _ in rotary.named_parameters() if "positions" in name]
    rotary, nowhere = small(rotary=True, n_layer=1), small(n_layer=1)  # a second layer knows by what it sees
    x = torch.tensor([[3, 4, 5, 5]])
    swapped = torch.tensor([[4, 3, 5, 5]])
    assert (rotary(x)[0, 3] - rotary(swapped)[0, 3]).abs().max() > 1e-6  # it knows the order of the past
    with torch.no_grad():
        nowhere.embed.positions.weight.zero_()
    torch.testing.assert_close(nowhere(x)[0, 3], nowhere(swapped)[0, 3])  # without positions it does not


def test_rotary_positions_need_pairs_of_channels():
    with pytest.raises(ValueError, match="n_embd / n_head = 3 is odd"):
        small(n_embd=6, rotary=True)


def test_in_bf16_angles_are_exact():
    x = torch.ones(1, 1, 300, 8, dtype=torch.bfloat16)
    exact = Rotary()(x.double())
    assert Rotary()(x).dtype == torch.bfloat16
    assert (Rotary()(x).double() - exact).abs().max() < 0.01  # one rounding; angles in bf16 are off by 1


# the MLP ----------------------------------------------------------------------------------------------


def test_activations():
    x = drawn((2, 8))
    assert torch.equal(relu2(x), x.clamp(min=0) ** 2)
    torch.testing.assert_close(swiglu(x), x[:, :4] * x[:, :4].sigmoid() * x[:, 4:])
    for name, function in (("relu2", relu2), ("swiglu", swiglu)):
        assert built(f"model.activation={name}").blocks[0].mlp.branch.activation is function


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


def test_xavier_by_the_widths_of_each_matrix_and_embeddings_of_norm_1():
    model = GPT(
        **SMALL | {"n_embd": 128, "vocab_size": 500}, norm=LayerNorm, placement=Pre, init=XAVIER, tie=False
    )
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


def test_the_weights_that_a_placement_scales_are_values_projections_and_the_mlp():
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
def test_the_head_is_the_embedding_or_a_matrix_of_its_own(tie):
    model = built(f"model.tie={tie}")
    assert (model.head.weight is model.embed.tokens.weight) == tie
    assert sum(p.numel() for p in built("model.tie=false").parameters()) == (
        sum(p.numel() for p in built().parameters()) + 11 * 16
    )
    assert tie or not torch.equal(model.head.weight, model.embed.tokens.weight)


def test_a_head_of_its_own_moves_no_other_parameters_start():
    tied, untied = dict(small().named_parameters()), dict(small(tie=False).named_parameters())
    assert untied.keys() - tied.keys() == {"head.weight"}
    assert all(torch.equal(tied[name], untied[name]) for name in tied)


# norms besides ----------------------------------------------------------------------------------------


def test_queries_and_keys_are_normed_head_by_head_before_they_are_turned():
    model = small(qk_norm=RMSNorm, rotary=True)
    attention = model.blocks[0].attn.branch
    assert attention.q_norm.weight.shape == (8,)
    assert attention.q_norm is not attention.k_norm
    seen = []
    attention.attend.register_forward_pre_hook(lambda _, qkv: seen.extend(qkv))
    with torch.no_grad():
        attention.q_norm.weight.copy_(torch.linspace(1, 2, 8))
    x = drawn((2, 5, 16), 3, torch.float32)
    attention(x)
    q = attention.qkv(x)[..., :16].view(2, 5, 2, 8).transpose(1, 2)
    torch.testing.assert_close(seen[0], Rotary()(attention.q_norm(q)))
    torch.testing.assert_close(seen[1].norm(dim=-1), torch.full((2, 2, 5), math.sqrt(8)), rtol=0.05, atol=0)


def test_a_norm_of_each_site_is_named_alone():
    model = built(
        "norm=batchnorm", "model.qk_norm=layernorm", "model.embedding_norm=rmsnorm", "model.final_norm=dyt"
    )
    names = [type(m).__name__ for m in (model.embed.norm, model.blocks[0].attn.branch.k_norm, model.final)]
    assert names == ["RMSNorm", "LayerNorm", "DynamicTanh"]
    assert type(model.blocks[0].attn.pre).__name__ == "BatchNorm"
    plain = built()
    absent = (
        plain.embed.norm,
        plain.embed.scale,
        plain.blocks[0].attn.branch.q_norm,
        plain.blocks[0].attn.branch.rotate,
    )
    assert all(isinstance(module, nn.Identity) for module in absent)


def test_same_is_the_norm_of_the_group_with_its_options():
    config = configured("norm=layernorm", "norm.eps=0.5", "model.qk_norm=same", "model.embedding_norm=same")
    assert config.model.qk_norm == config.model.embedding_norm == config.norm
    assert config.norm.options["eps"] == 0.5
    assert configured("model.qk_norm=layernorm", "norm.eps=0.5").model.qk_norm.options["eps"] == 1e-5
    assert configured("model.qk_norm=layernorm", "model.bias=true").model.qk_norm.options["bias"] is True


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"final_norm": "same", "embedding_scale": False, "depth_scaled_init": True}),
        (["placement=post"], {"final_norm": "none", "embedding_scale": False, "depth_scaled_init": True}),
        (
            ["norm=dyt"],
            {"final_norm": "same", "embedding_scale": True, "depth_scaled_init": True, "alpha": 1.0},
        ),
        (
            ["norm=derf", "norm.alpha=0.3"],
            {"final_norm": "same", "embedding_scale": True, "depth_scaled_init": True},
        ),
        (
            ["placement=layernorm_scaling", "model.final_norm=none"],
            {"embedding_scale": False, "depth_scaled_init": False},
        ),
        (
            ["model.init=xavier", "model.embedding_scale=true"],
            {"final_norm": "same", "depth_scaled_init": False},
        ),
        (["model.depth_scaled_init=false"], {"final_norm": "same", "embedding_scale": False}),
        (
            ["placement=keel"],
            {"final_norm": "none", "embedding_scale": False, "depth_scaled_init": False, "alpha": 4.0},
        ),
    ],
)
def test_what_is_left_open_is_settled_as_the_norm_and_the_placement_need_it(overrides, expected):
    config = configured(*DEFAULT_SIZES, *overrides)
    found = settled(config)
    assert {key.split(".")[1]: value for key, value in found.items()} == expected
    model = build_model(config, 11)  # and so it is built
    if "final_norm" in expected:
        assert isinstance(model.final, nn.Identity) == (expected["final_norm"] == "none")
    if "embedding_scale" in expected:
        assert isinstance(model.embed.scale, LearnedScale) == expected["embedding_scale"]
    if "depth_scaled_init" in expected and config.model.init == "gpt2":
        std = 0.02 / 2 if expected["depth_scaled_init"] else 0.02
        assert model.blocks[0].mlp.branch.proj.weight.std().item() == pytest.approx(std, rel=0.1)


def test_the_scale_of_the_initialization_is_a_factor_on_every_weight_that_is_drawn():
    sizes = ("model.n_embd=128", "model.n_layer=2", "model.n_head=2")
    plain, scaled = (build_model(configured(*sizes, *more), 65) for more in ((), ("model.init_scale=3",)))
    for (name, p), q in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(q, p if "weight" in name and p.ndim == 1 else 3 * p, msg=name)


def test_what_is_said_goes_before_what_would_be_settled():
    model = built(
        "norm=dyt",
        "placement=post",
        "model.embedding_scale=false",
        "model.final_norm=same",
        "model.depth_scaled_init=false",
    )
    assert isinstance(model.embed.scale, nn.Identity)
    assert type(model.final).__name__ == "DynamicTanh"
    assert model.blocks[0].mlp.branch.proj.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_learned_scale_begins_as_the_root_of_the_width_after_the_positions():
    model = built("norm=dyt")
    x = torch.tensor([[1, 2, 3]])
    expected = 4 * (model.embed.tokens.weight[[1, 2, 3]] + model.embed.positions.weight[:3])
    torch.testing.assert_close(model.embed(x)[0], expected)


def test_a_modern_model_has_all_of_it_and_a_norm_of_the_users_choice():
    config = configured("model=modern")
    assert (config.norm.name, config.model.qk_norm.name, config.model.positions) == (
        "rmsnorm",
        "rmsnorm",
        "rotary",
    )
    assert config.model.activation == "relu2"
    assert configured("model=modern", "norm=layernorm").norm.name == "layernorm"
    model = build_model(config, 11)
    loss = F.cross_entropy(model(torch.randint(11, (2, 64))).flatten(0, 1), torch.randint(11, (128,)))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_vectors_and_numbers_of_every_kind_take_no_weight_decay():
    from training.optimizer import new_optimizers

    config = configured("norm=derf", "placement=rezero", "model.qk_norm=scalenorm", *DEFAULT_SIZES)
    model = build_model(config, 11)
    [optimizer] = new_optimizers(model, config.optim)
    names = {p: name for name, p in model.named_parameters()}
    decayed = {names[p] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    free = set(names.values()) - decayed
    assert all(model.get_parameter(name).dim() == 2 for name in decayed)
    assert {
        "final.alpha",
        "final.shift",
        "final.weight",
        "embed.scale.weight",
        "blocks.0.attn.b.weight",
        "blocks.1.attn.branch.q_norm.weight",
    } <= free

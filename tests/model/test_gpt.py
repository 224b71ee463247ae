"""The network is GPT-2's, it sees no future, and its start depends on the seed and the names alone."""

import itertools
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from model import GPT
from model.attention import Attend, CausalSelfAttention, PlainAttend
from model.embeddings import Embedding, LearnedPositions, Table
from model.generate import Decoder, generate, window_start
from model.head import Head
from model.mlp import MLP
from model.norms import LayerNorm
from model.placements import Post, Pre
from model.seeds import seed_for
from tests.conftest import configured
from training.build import build_model

SMALL = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 8}


def tokens(rows: int = 3, length: int = 8, vocab_size: int = 11) -> torch.Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))


def small(norm=LayerNorm, placement=None, **options) -> GPT:
    return GPT(**SMALL | options, norm=norm, placement=placement or Pre)


def attention(**options) -> CausalSelfAttention:
    absent = {name: nn.Identity() for name in ("q_norm", "k_norm", "rotate")}
    return CausalSelfAttention(8, 2, **absent | {"dropout": 0.0, "bias": True} | options)


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65])
def test_a_head_filled_up_gives_the_same_logits_and_gradients(vocab_size):
    head = Head(8, vocab_size, bias=False).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    widths, found = [], []
    for forward in (head, head.padded):
        with FlopCounterMode(display=False) as counter:
            logits = forward(x)
        widths.append(counter.get_total_flops() // (2 * 6 * 8))
        found.append((logits, *torch.autograd.grad(logits.square().sum(), head.weight)))
    assert widths == [vocab_size, 64 * math.ceil(vocab_size / 64)]
    for exact, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, exact, rtol=1e-12, atol=1e-12)


def test_gpt2_has_its_published_number_of_parameters():
    model = build_model(configured("model=gpt2"), vocab_size=50257)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_attention_is_the_softmax_of_scaled_products_over_the_past():
    whole = attention().double()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, k, v = whole.qkv(x).split(8, dim=-1)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = q[..., head] @ k[..., head].transpose(1, 2) / math.sqrt(4)
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v[..., head])
    torch.testing.assert_close(whole(x), whole.proj(torch.cat(heads, -1)))


def test_plain_attention_is_the_same_with_the_same_gradients_and_drops_as_many_weights():
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    cotangent = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    found = []
    for attend in (Attend(0.0), PlainAttend(0.0)):
        y = attend(q, k, v)
        found.append([y, *torch.autograd.grad(y, (q, k, v), cotangent)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    ones = torch.ones(64, 1, 32, 32)
    torch.manual_seed(0)
    dropped = PlainAttend(0.25)(ones, ones, ones)[:, :, -1, 0]  # a mean of 32 weights, 0 or 1/0.75 each
    assert dropped.mean() == pytest.approx(1, abs=0.05)
    assert (dropped * 32 * 0.75).round().unique().numel() > 5
    torch.testing.assert_close(PlainAttend(0.25).eval()(ones, ones, ones), ones)


def test_the_loss_starts_at_the_logarithm_of_the_vocabulary():
    loss = nn.functional.cross_entropy(small()(tokens()).flatten(0, 1), tokens().roll(-1, 1).flatten())
    assert loss.item() == pytest.approx(math.log(11), rel=0.1)


def test_the_head_is_the_token_embedding():
    model = small()
    assert model.head.weight is model.embed.tokens.weight
    assert sum("head" in name for name, _ in model.named_parameters()) == 0


def test_initial_weights_are_gpt2s():
    model = GPT(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=64, norm=LayerNorm, placement=Pre)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            std = 0.02 / math.sqrt(16) if name.endswith("proj.weight") else 0.02
            assert p.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(p.mean().item()) < std / 10
        elif "bias" in name:
            assert not p.any()
        else:
            assert (p == 1).all()


class DrawingNorm(nn.Module):
    """A norm with random initial values, drawn from torch's global generator as torch's modules do."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))
        self.mix = nn.Linear(n, n)

    def forward(self, x):
        return self.mix(x * self.weight)


def test_a_seed_gives_the_same_start_outside_the_norms_whatever_the_norm():
    reference = dict(small().named_parameters())
    for norm in (nn.LayerNorm, nn.Identity, DrawingNorm, partial(LayerNorm, bias=False)):
        for placement in (Pre, Post):
            found = dict(small(norm, placement).named_parameters())
            shared = [name for name in found if ".branch." in name or name.startswith("embed.")]
            assert len(shared) == 2 + 2 * 8
            assert all(torch.equal(found[name], reference[name]) for name in shared)


def test_a_norm_that_draws_is_the_same_where_other_norms_come_and_go_and_differs_by_site():
    pre, post = (dict(small(DrawingNorm, p).named_parameters()) for p in (Pre, Post))
    again = dict(small(DrawingNorm, Pre, n_layer=3).named_parameters())
    assert torch.equal(pre["blocks.1.mlp.pre.weight"], again["blocks.1.mlp.pre.weight"])
    assert torch.equal(pre["final.mix.weight"], again["final.mix.weight"])
    assert not torch.equal(pre["blocks.0.mlp.pre.weight"], pre["blocks.1.mlp.pre.weight"])
    assert not torch.equal(pre["blocks.0.mlp.pre.weight"], post["blocks.0.mlp.post.weight"])


def test_one_more_layer_moves_no_other_parameters_start():
    small_ones, more = dict(small(n_layer=2).named_parameters()), dict(small(n_layer=3).named_parameters())
    for name, p in small_ones.items():
        if not name.endswith("proj.weight"):  # scaled by depth
            assert torch.equal(p, more[name]), name


def test_a_start_does_not_depend_on_the_global_generator():
    torch.manual_seed(5)
    a = dict(small(DrawingNorm).named_parameters())
    torch.manual_seed(6)
    b = dict(small(DrawingNorm).named_parameters())
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_seeds_differ():
    assert not torch.equal(small(seed=0).embed.tokens.weight, small(seed=1).embed.tokens.weight)
    assert seed_for(0, "data", 1) != seed_for(1, "data", 0)
    assert len({seed_for(s, "data", i) for s in range(10) for i in range(100)}) == 1000


def test_heads_must_divide_the_channels():
    with pytest.raises(ValueError, match=r"n_embd = 10 .* n_head = 4"):
        small(n_embd=10, n_head=4)


def test_dropout_is_at_every_site_in_training_and_nowhere_in_evaluation():
    both, weights_only = attention(dropout=0.5), attention(dropout=0.5)
    weights_only.dropout = nn.Identity()  # what is left is on the attention weights
    mlp = MLP(8, activation=nn.functional.gelu, dropout=0.5, bias=False)
    absent = {"scale": nn.Identity(), "norm": nn.Identity()}
    embedding = Embedding(Table(11, 8), LearnedPositions(8, 8), **absent, dropout=0.5)
    x = torch.randn(3, 8, 8)
    for module, argument in ((both, x), (weights_only, x), (mlp, x), (embedding, tokens())):
        assert not torch.equal(module(argument), module(argument))
        module.eval()
        assert torch.equal(module(argument), module(argument))


def test_the_activation_is_the_one_that_was_chosen():
    x = torch.linspace(-3, 3, 50)
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        config = configured(f"model.activation={name}", "model.n_layer=1")
        activation = build_model(config, 9).blocks[0].mlp.branch.activation
        assert torch.equal(activation(x), nn.functional.gelu(x, approximate=approximate))
    assert configured("model=gpt2").model.activation == "gelu_tanh"
    assert configured("model=baby").model.activation == "gelu"


# GPT-2 ------------------------------------------------------------------------------------------------


def reference_and_ours(activation, dtype):
    """Hugging Face's GPT-2, tiny, its weights drawn at 0.2, and our model with the same weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 32}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=61, n_positions=16, activation_function="gelu_new", **sizes, **ends)
    reference = GPT2LMHeadModel(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in reference.named_parameters():  # at GPT-2's 0.02 a wrong GELU would not be seen
            p.normal_(mean=1.0 if "ln_" in name and "weight" in name else 0.0, std=0.2, generator=generator)
    ours = GPT(
        vocab_size=61,
        block_size=16,
        **sizes,
        norm=LayerNorm,
        placement=Pre,
        mlp=partial(MLP, activation=activation),
    )
    names = {
        "wte": "embed.tokens",
        "wpe": "embed.positions",
        "ln_1": "attn.pre",
        "attn.c_attn": "attn.branch.qkv",
        "attn.c_proj": "attn.branch.proj",
        "ln_2": "mlp.pre",
        "mlp.c_fc": "mlp.branch.fc",
        "mlp.c_proj": "mlp.branch.proj",
        "ln_f": "final",
    }
    weights = {}
    for name, tensor in reference.transformer.named_parameters():
        head, _, kind = name.rpartition(".")
        layer = re.match(r"h\.(\d+)\.", head)
        ours_name = names[head.removeprefix(layer[0]) if layer else head]
        transposed = head.endswith(
            ("c_attn", "c_proj", "c_fc")
        )  # a Conv1D has its weight the other way round
        where = f"blocks.{layer[1]}." if layer else ""
        weights[f"{where}{ours_name}.{kind}"] = tensor.T if transposed and kind == "weight" else tensor
    weights["head.weight"] = weights["embed.tokens.weight"]
    ours = ours.to(dtype).eval()
    ours.load_state_dict(weights)
    return reference, ours


def largest_difference(reference, ours):
    idx = torch.randint(61, (5, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return (reference(idx).logits - ours(idx)).abs().max().item()


gelu_tanh = partial(F.gelu, approximate="tanh")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_those_of_hugging_faces_gpt2_with_the_same_weights(dtype, tolerance):
    assert largest_difference(*reference_and_ours(gelu_tanh, dtype)) < tolerance
    assert largest_difference(*reference_and_ours(F.gelu, dtype)) > 10 * tolerance  # the other GELU


def test_its_likeliest_text_is_gpt2s_beyond_the_context_too():
    reference, ours = reference_and_ours(gelu_tanh, torch.float64)
    idx = torch.tensor([[3, 1, 4, 1, 5]])
    drawn = generate(Decoder(ours), idx, 16, lambda logits: logits.argmax(-1))
    found = [int(token) for token in itertools.islice(drawn, 40)]
    expected = idx
    for _ in range(40):
        with torch.no_grad():
            window = expected[:, window_start(expected.shape[1], 16) :]
            likeliest = reference(window).logits[:, -1].argmax(-1)
        expected = torch.cat([expected, likeliest[:, None]], dim=1)
    assert found == expected[0, 5:].tolist()

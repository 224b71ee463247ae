"""The network is GPT-2's, and the initial values depend on the seed and the parameters' names alone.
(tests/interop/test_pretrained.py compares the logits.)"""

import math
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import GPT
from model.attention import Attend, CausalSelfAttention, PlainAttend
from model.embeddings import Embedding
from model.layers import Head, PaddedHead
from model.mlp import MLP
from model.norms import LayerNorm
from model.placements import Post, Pre
from model.seeds import seed_for, seed_torch
from tests.conftest import configured
from tests.helpers.model import DrawingNorm, assert_all_close, drawn, outcome, random_tokens, small
from training.build import build_model


@pytest.mark.parametrize("vocab_size", [1, 64, 65])
def test_a_padded_head_gives_the_same_logits_and_gradients(vocab_size):
    head, padded = Head(8, vocab_size).double(), PaddedHead(8, vocab_size).double()
    padded.load_state_dict(head.state_dict())
    assert_all_close(outcome(head, drawn((2, 3, 8))), outcome(padded, drawn((2, 3, 8))), 1e-12)
    with mock.patch.object(F, "linear", wraps=F.linear) as linear:
        padded(drawn((2, 3, 8)))
    assert linear.call_args.args[1].shape == (64 * math.ceil(vocab_size / 64), 8)


def test_gpt2_has_its_published_number_of_parameters():
    with torch.device("meta"):  # takes no memory
        model = build_model(configured("model=gpt2"), vocab_size=50257)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_plain_attention_has_the_same_output_gradients_and_dropout():
    q, k, v = (drawn((2, 3, 7, 4), seed).requires_grad_() for seed in range(3))
    results = []
    for attend in (Attend(0.0), PlainAttend(0.0)):
        y = attend(q, k, v)
        results.append([y, *torch.autograd.grad(y, (q, k, v), drawn((2, 3, 7, 4), 3))])
    assert_all_close(*results, 1e-12)
    ones = torch.ones(64, 1, 32, 32)
    torch.manual_seed(0)
    dropped = PlainAttend(0.25)(ones, ones, ones)[:, :, -1, 0]  # a mean of 32 weights, 0 or 1/0.75 each
    assert dropped.mean() == pytest.approx(1, abs=0.05)
    assert (dropped * 32 * 0.75).round().unique().numel() > 5


def test_dropout_is_at_every_site_in_training_and_nowhere_in_evaluation():
    options = {"dropout": 0.5, "bias": False}
    attention, weights_only = (CausalSelfAttention(8, 2, **options) for _ in range(2))
    weights_only.dropout = nn.Identity()  # the attention weights still have dropout
    x = drawn((3, 8, 8), dtype=torch.float32)
    sites = [(attention, x), (weights_only, x), (MLP(8, **options), x)]
    for module, argument in (*sites, (Embedding(11, 8, 8, dropout=0.5), random_tokens())):
        assert not torch.equal(module(argument), module(argument))
        module.eval()
        assert torch.equal(module(argument), module(argument))


def test_the_number_of_heads_must_divide_the_channels():
    with pytest.raises(ValueError, match=r"n_embd = 10 .* n_head = 4"):
        small(n_embd=10, n_head=4)


# initial values ----------------------------------------------------------------------------------------


def test_initial_weights_are_gpt2s_and_the_initial_loss_is_the_logarithm_of_the_vocabulary():
    model = GPT(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=64, norm=LayerNorm, placement=Pre)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            std = 0.02 / math.sqrt(16) if name.endswith("proj.weight") else 0.02
            assert p.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(p.mean().item()) < std / 10
        else:
            assert (p == (0 if "bias" in name else 1)).all()
    loss = F.cross_entropy(model(random_tokens()).flatten(0, 1), random_tokens(seed=1).flatten())
    assert loss.item() == pytest.approx(math.log(500), rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": nn.Identity},
        {"norm": DrawingNorm},
        {"norm": DrawingNorm, "placement": Post},
        {"tie": False},
        {"n_layer": 3},
    ],
    ids=str,
)
def test_no_norm_head_or_further_block_changes_the_initial_value_of_another_parameter(options):
    reference, other = (dict(small(**given).named_parameters()) for given in ({}, options))
    shared = [name for name in reference if ".branch." in name or name.startswith("embed.")]
    assert len(shared) == 2 + 2 * 8
    for name in shared:
        if "n_layer" not in options or not name.endswith("proj.weight"):  # scaled by depth
            assert torch.equal(other[name], reference[name]), name


class Gated(Pre):
    """A placement with a parameter of its own, which is drawn at random."""

    def __call__(self, branch, norm, layer, site):
        wired = super().__call__(branch, norm, layer, site)
        wired.gate = nn.Parameter(torch.rand(1))
        return wired


class PlainMLP(nn.Linear):
    """A branch of torch's own, whose weights torch draws from the global generator."""

    def __init__(self, n_embd, **options):
        super().__init__(n_embd, n_embd)


DRAWN = {  # options, and parameters that a part draws, in two places
    "norm": ({"norm": DrawingNorm}, "blocks.0.mlp.pre.mix.weight blocks.1.mlp.pre.mix.weight"),
    "placement": ({"placement": Gated}, "blocks.0.attn.gate blocks.0.mlp.gate"),
    "branch": ({"mlp": PlainMLP}, "blocks.0.mlp.branch.weight blocks.1.mlp.branch.weight"),
    "qk_norm": (
        {"attention": partial(CausalSelfAttention, qk_norm=DrawingNorm)},
        "blocks.0.attn.branch.q_norm.weight blocks.0.attn.branch.k_norm.weight",
    ),
}


@pytest.mark.parametrize("part", DRAWN)
def test_what_a_part_draws_depends_on_seed_and_site_alone_not_on_the_global_generator(part):
    options, names = DRAWN[part]
    models = []
    for global_seed, more in ((5, {}), (6, {"n_layer": 3}), (5, {"seed": 1})):
        torch.manual_seed(global_seed)
        models.append(dict(small(**options, **more).named_parameters()))
    first, deeper, other = models
    a, b = names.split()
    assert not torch.equal(first[a], first[b])
    for name in (a, b, "embed.tokens.weight"):
        assert torch.equal(first[name], deeper[name])
        assert not torch.equal(first[name], other[name])


def test_streams_of_different_seeds_share_nothing():
    assert seed_for(0, "data", 1) != seed_for(1, "data", 0)
    assert len({seed_for(s, "data", i) for s in range(10) for i in range(100)}) == 1000


def test_seed_torch_gives_the_numbers_of_torchs_own_seeding():
    torch.manual_seed(2**62)
    expected = torch.rand(3)
    seed_torch(2**62)
    assert torch.equal(torch.rand(3), expected)


class Wrapped(Pre):
    """Store the branch under another name, its last map at 0, as in Fixup (Zhang et al. 2019)."""

    def __call__(self, branch, norm, layer, site):
        nn.init.zeros_(branch.proj.weight)
        return nn.Sequential(norm("norm"), branch)


def test_a_placement_may_initialize_its_branch_and_name_it_as_it_likes():
    pre, wrapped = (dict(small(placement=placement).named_parameters()) for placement in (Pre, Wrapped))
    assert not wrapped["blocks.1.attn.1.proj.weight"].any()
    assert torch.equal(wrapped["blocks.1.attn.1.qkv.weight"], pre["blocks.1.attn.branch.qkv.weight"])

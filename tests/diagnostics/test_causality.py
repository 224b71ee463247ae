"""The certificate is exactly 0 without a leak, and finds every leak."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from diagnostics import causality
from diagnostics.causality import certificate, describe, extent, leak_metrics, quick_certificate
from model import GPT
from model.placements import Pre
from tests.conftest import configured
from tests.helpers.runs import same_tensors
from training.build import build_model
from training.state import model_tensors

KINDS = ("future", "rows", "future_gradient", "rows_gradient")
REAL = F.scaled_dot_product_attention


def made(*overrides: str) -> GPT:
    return build_model(
        configured("model.n_layer=2", "model.n_embd=32", "model.block_size=16", *overrides), 11
    )


def with_norm(norm: type[nn.Module], **sizes: int) -> GPT:
    shape = {"vocab_size": 11, "block_size": 16, "n_layer": 2, "n_head": 2, "n_embd": 8} | sizes
    return GPT(**shape, norm=norm, placement=Pre)


def norm_of(forward) -> type[nn.Module]:
    """A norm without parameters that computes ``forward(x)``."""

    class Norm(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()

        def forward(self, x):
            return forward(x)

    return Norm


@pytest.mark.parametrize("dropout", [0, 0.2])
@pytest.mark.parametrize(("norm", "leaking"), [("layernorm", False), ("batchnorm", True)])
def test_batchnorm_leaks_in_training_and_layernorm_never(norm, leaking, dropout):
    """Every norm in every placement: tests/model/test_pairs.py."""
    result = certificate(made(f"norm={norm}", f"model.dropout={dropout}"), 11)
    assert (result["causal"], result["independent_rows"]) == (not leaking, not leaking)
    assert all(result["eval"][kind] == 0 for kind in KINDS)
    assert all((result["train"][kind] > 0.01) == leaking for kind in KINDS)
    assert result["context"] == 16


@pytest.mark.parametrize("site", ["embedding_norm", "qk_norm", "final_norm"])
def test_a_leaking_norm_is_found_at_every_site(site):
    result = certificate(made(f"model.{site}=batchnorm"), 11)
    assert (result["causal"], result["independent_rows"]) == (False, False)
    assert all(result["train"][kind] > 1e-3 for kind in KINDS)
    assert all(result["eval"][kind] == 0 for kind in KINDS)


@pytest.mark.parametrize("diagonal", [1, 5])
def test_a_mask_that_shows_the_future_is_found_in_both_modes(monkeypatch, diagonal):
    def broken(q, k, v, dropout_p, is_causal):
        mask = torch.ones(q.shape[2], q.shape[2]).tril(diagonal).bool()
        return REAL(q, k, v, attn_mask=mask, dropout_p=dropout_p)

    monkeypatch.setattr(F, "scaled_dot_product_attention", broken)
    result = certificate(made(), 11)
    assert (result["causal"], result["independent_rows"]) == (False, True)
    for mode in causality.MODES:
        assert result[mode]["future"] > 0.01 < result[mode]["future_gradient"]
        assert result[mode]["rows"] == result[mode]["rows_gradient"] == 0


def test_a_leak_behind_a_branch_initialised_to_0_is_found(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: REAL(q, k, v))
    model = made()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.branch.proj.weight.zero_()
    assert certificate(model, 11)["causal"] is False


def over_time(x):
    return (x - x.mean(1, keepdim=True)) / x.std((1, 2), keepdim=True)


def late(x):  # from position 10 on, each position sees the next
    return x + (torch.arange(x.shape[1])[:, None] >= 10) * x.roll(-1, dims=1)


@pytest.mark.parametrize(
    ("forward", "independent_rows"),
    [(over_time, True), (late, True), (lambda x: x + x.detach().mean((0, 1)), False)],
    ids=["over time", "late in the context", "seen by the forward alone"],
)
def test_a_leak_is_found_in_evaluation_too(forward, independent_rows):
    result = certificate(with_norm(norm_of(forward)), 11)
    assert (result["causal"], result["independent_rows"]) == (False, independent_rows)
    assert result["eval"]["future"] > 0.01
    assert (result["eval"]["future_gradient"] > 0.01) == independent_rows  # the last has no gradient


def test_a_leak_hidden_from_the_sum_of_the_logits_is_found_by_gradients():
    model = with_norm(norm_of(over_time), vocab_size=12)
    with torch.no_grad():  # logits in pairs of w·x and −w·x, whose sum is 0, exactly as w are whole 1024ths
        model.head.weight[:6] = (model.head.weight[:6] * 1024).round() / 1024
        model.head.weight[6:] = -model.head.weight[:6]
    assert certificate(model, 12)["train"]["future_gradient"] > 0.01


def barely_over_time(x):  # so little that it is asked again in fp64
    return x + 1e-6 * x.mean(1, keepdim=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_model_and_the_random_state_are_left_as_they_were(training, precision):
    batchnorm = made("norm=batchnorm", "model.dropout=0.2")
    model = batchnorm if precision == "fp32" else with_norm(norm_of(barely_over_time))
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    certificate(model, 11)
    assert torch.equal(torch.rand(3), expected)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert same_tensors(before, model_tensors(model))
    assert model.training is training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def test_the_smallest_models_are_certified_too_and_long_contexts_at_every_cut():
    for sizes in ({"block_size": 1}, {"vocab_size": 1}, {"block_size": 2, "vocab_size": 2}):
        result = certificate(with_norm(nn.LayerNorm, **sizes), sizes.get("vocab_size", 11))
        assert result["causal"] is result["independent_rows"] is True, sizes
    asked = certificate(made("model.block_size=200"), 11)["asked"]["train"]
    assert asked == {"cuts": 199, "all_cuts": 199, "rows": causality.ROWS, "cut_rows": 50 / 199}


class Constant(nn.LayerNorm):
    """A causal norm: the mean of earlier tokens is subtracted, by a mask that is a constant parameter."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.mask = nn.Parameter(torch.ones(16, 16).tril() / torch.arange(1, 17)[:, None], False)
        self.count = nn.Parameter(torch.tensor(1), False)

    def forward(self, x):
        return super().forward(x - self.mask @ x * self.count)


def test_constants_are_not_moved_so_that_a_causal_mask_stays_causal():
    result = certificate(with_norm(Constant), 11)
    assert (result["causal"], result["independent_rows"], result["reason"]) == (True, True, None)


def test_non_finite_logits_certify_nothing():
    model = made()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    result = certificate(model, 11)
    assert (result["causal"], result["independent_rows"]) == (None, None)
    assert describe(result, "norm=x").endswith("norm=x looks into the future: its logits are not finite")


def test_a_model_that_cannot_run_on_the_test_batch_is_not_certified_and_not_refused():
    def ghost(x):  # statistics over groups of 8 rows
        groups = x.view(-1, 8, *x.shape[1:])
        return ((groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)).view(x.shape)

    model = with_norm(norm_of(ghost))
    result = certificate(model, 11)
    assert (result["causal"], result["independent_rows"]) == (None, None)
    words = describe(result, "norm=ghost")
    assert ": on a batch of 4 x 16 it raises RuntimeError: shape '[-1, 8, 16, 8]' is invalid" in words
    assert leak_metrics(result) == {}
    assert model.training


def test_a_leak_is_described_as_a_warning_and_as_metrics():
    result = certificate(made("norm=batchnorm"), 11)
    line = describe(result, "norm=batchnorm placement=pre")
    assert line.startswith("WARNING: norm=batchnorm placement=pre LEAKS: a logit moves in training by up to ")
    assert line.endswith("do not compare train/loss")
    assert "\n" not in line
    assert leak_metrics(result) == {"leak.memory/eval": 0} | {
        f"leak.{kind}/{mode}": result[mode][kind] for mode in ("train", "eval") for kind in KINDS
    }
    assert "Its loss is not a causal language model's: do not compare" in line
    compiled = {"train": {"future": 0.0, "rows": 0.0, "future_compiled": 0.5}, "eval": {}, "causal": False}
    line = describe(compiled | {"independent_rows": True, "reason": None}, "norm=x")
    assert "LEAKS: the compiled loss moves by up to 0.5 nats when later tokens change. " in line
    memory = {"train": {}, "eval": {"memory": 0.1}, "causal": True, "independent_rows": False, "reason": None}
    assert "depends on other rows or batches: do not compare val/loss" in describe(memory, "norm=x")
    asked = {"cuts": 255, "all_cuts": 255, "rows": 256, "cut_rows": 1 / 256}
    assert extent({"asked": {"train": asked}}).endswith("all 256 rows, under 1% of their pairs")
    asked = {"cuts": 0, "all_cuts": 0, "rows": 2, "cut_rows": 0.0}
    assert extent({"asked": {"train": asked}}) == "tested: all 2 rows; there are no later tokens"


def test_a_quick_certificate_of_a_long_context_takes_few_forwards_and_says_how_much_it_tested():
    result = quick_certificate(made("model.block_size=300"), 11)
    assert (result["causal"], result["context"]) == (True, 256)
    assert extent(result).startswith("tested: 64 of 255 positions in a context of 256, not 300, all 4 rows")
    assert quick_certificate(made("norm=batchnorm"), 11)["causal"] is False


def test_a_small_model_is_tested_at_every_position():
    clean = describe(certificate(made(), 11), "norm=layernorm placement=pre")
    assert clean.startswith("causality: in norm=layernorm placement=pre no logit depends")
    assert clean.endswith("on other rows (tested: all 15 positions, all 4 rows, 27% of their pairs)")


def smoothed(x):
    """Divide by a causal average of each token's size, computed by FFT, which rounds in its own way."""
    sizes = x.float().square().mean(-1)
    steps = x.shape[1]
    decay = 0.9 ** torch.arange(steps, dtype=sizes.dtype)
    spectrum = torch.fft.rfft(sizes, 2 * steps) * torch.fft.rfft(decay / decay.sum(), 2 * steps)
    average = torch.fft.irfft(spectrum, 2 * steps)[..., :steps]
    scaled = x.float() * torch.rsqrt(average.abs() + 1e-3)[..., None]
    return (scaled @ torch.eye(x.shape[-1])).to(x.dtype, copy=True)  # a constant has the default dtype


def test_rounding_in_fp32_is_no_leak_of_a_norm_that_casts_to_it():
    assert certificate(with_norm(norm_of(smoothed)), 11)["causal"]

"""Matrices decay and vectors do not; the learning rate is nanoGPT's."""

import math

import pytest
import torch

from tests.conftest import AROUND, configured, daily
from training.build import build_model
from training.optimizer import new_optimizers, rate_scale


@pytest.mark.parametrize("optim", daily(["muon", "adamw"], others="long"))
@pytest.mark.parametrize(("norm", "placement"), AROUND)
def test_every_parameter_is_optimized_once_and_only_matrices_decay(norm, placement, optim):
    options = (f"norm={norm}", f"placement={placement}", f"optim={optim}")
    config = configured(*options, "model.bias=true", "model.n_layer=2")
    model = build_model(config, 9)
    groups = [group for optimizer in new_optimizers(model, config.optim) for group in optimizer.param_groups]
    optimized = [p for group in groups for p in group["params"]]
    assert {id(p) for p in optimized} == {id(p) for p in model.parameters()}
    assert len(optimized) == len({id(p) for p in optimized})
    for group in groups:
        assert group.get("betas", (0.9, 0.99)) == (0.9, 0.99)
        assert all((group["weight_decay"] > 0) == (p.dim() >= 2) for p in group["params"])


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    config = configured(
        "optim=muon",
        "model.bias=true",
        "model.n_layer=2",
        "optim.momentum=0.9",
        "optim.weight_decay=0.3",
        "optim.eps=1e-6",
    )
    model = build_model(config, 9)
    adamw, muon = new_optimizers(model, config.optim)
    assert isinstance(muon, torch.optim.Muon)
    names = {p: name for name, p in model.named_parameters()}
    of_muon = {names[p] for group in muon.param_groups for p in group["params"]}
    kinds = ("attn.branch.qkv", "attn.branch.proj", "mlp.branch.fc", "mlp.branch.proj")
    assert of_muon == {f"blocks.{layer}.{kind}.weight" for layer in (0, 1) for kind in kinds}
    assert {names[p]: parts for p, parts in muon.parts.items() if parts > 1} == {
        f"blocks.{layer}.attn.branch.qkv.weight": 3 for layer in (0, 1)
    }
    assert (muon.param_groups[0]["momentum"], muon.param_groups[0]["weight_decay"]) == (0.9, 0.3)
    assert all(group["eps"] == 1e-6 for group in adamw.param_groups)
    assert "embed.tokens.weight" in {names[p] for group in adamw.param_groups for p in group["params"]}


def test_a_step_of_muon_is_as_large_as_one_of_adamw_usually_is():
    """0.2 of the rate, as a root mean square, where the gradient has full rank: Liu et al. 2025, eq. 4."""
    config = configured("optim=muon", "optim.weight_decay=0", "model.n_layer=1")
    model = build_model(config, 9)
    before = {p: p.detach().clone() for p in model.blocks.parameters() if p.dim() == 2}
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    for optimizer in new_optimizers(model, config.optim):
        optimizer.step()
    for p, start in before.items():
        moved = (p - start).square().mean().sqrt().item()
        assert 0.15 < moved / config.optim.learning_rate < 0.25, p.shape


def nanogpts(step: int, warmup: int, decay_steps: int, peak: float, smallest: float) -> float:
    """get_lr of nanoGPT's train.py, written anew from its description."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (decay_steps - warmup)
    return smallest + 0.5 * (1 + math.cos(math.pi * ratio)) * (peak - smallest)


def test_the_cosine_is_nanogpts():
    schedule = configured("schedule=cosine", "schedule.warmup_fraction=0.05").schedule
    for step in range(2000):
        expected = nanogpts(step, 100, 2000, 1e-3, 1e-4)
        assert 1e-3 * rate_scale(step, 2000, schedule) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_every_shape_rises_to_1_and_never_falls_below_its_final_fraction(shape, steps):
    schedule = configured(f"schedule={shape}").schedule
    scales = [rate_scale(step, steps, schedule) for step in range(steps)]
    warmup = round(0.1 * steps)
    assert scales[warmup] == 1
    assert scales[: warmup + 1] == sorted(scales[: warmup + 1])
    assert scales[warmup:] == sorted(scales[warmup:], reverse=True)
    assert min(scales[warmup:]) >= schedule.final_fraction
    assert min(scales) > 0


def test_linear_is_half_way_at_half_time():
    schedule = configured(
        "schedule=linear", "schedule.warmup_fraction=0", "schedule.final_fraction=0"
    ).schedule
    assert rate_scale(50, 100, schedule) == pytest.approx(0.5)


def test_adamw_is_torchs_to_the_bit():
    config = configured("model.n_layer=1")
    trained = {}
    for kind in ("ours", "torch's"):
        torch.manual_seed(0)
        model = build_model(config, 9)
        [optimizer] = new_optimizers(model, config.optim)
        if kind == "torch's":
            optimizer = torch.optim.AdamW(optimizer.param_groups)
        random = torch.Generator().manual_seed(0)
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=random)
            optimizer.step()
            optimizer.zero_grad()
            assert all(p.grad is None for p in model.parameters())
        trained[kind] = [*model.parameters(), *optimizer.state_dict()["state"][0].values()]
    assert all(torch.equal(*pair) for pair in zip(*trained.values(), strict=True))

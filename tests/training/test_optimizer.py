"""Matrices decay and vectors do not; AdamW is torch's, and Muon has the matrices of the blocks."""

import pytest
import torch

from tests.conftest import AROUND, OPTIMIZERS, configured, daily
from training.build import build_model
from training.optimizer import new_optimizers


@pytest.mark.parametrize("optim", daily(reversed(OPTIMIZERS), others="long"))
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
    options = ("optim=muon", "optim.momentum=0.9", "optim.weight_decay=0.3", "optim.eps=1e-6")
    config = configured(*options, "model.bias=true", "model.n_layer=2")
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
    """An update's rms is 0.2 of the learning rate if the gradient has full rank: Liu et al. 2025, eq. 4."""
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

"""Matrices decay and vectors do not; AdamW is torch's to the bit, and Muon, which steps matrices together,
is torch's nearly."""

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import AROUND, OPTIMIZERS, configured
from training import optimizer as module
from training.build import build_model
from training.optimizer import Muon, new_optimizers


def test_every_parameter_is_optimized_once_and_only_matrices_decay():
    for norm, placement in AROUND:
        words = (f"norm={norm}", f"placement={placement}", "model.bias=true", "model.n_embd=16")
        model = build_model(configured(*words), 9)
        for optim in OPTIMIZERS:
            optimizers = new_optimizers(model, configured(f"optim={optim}").optim)
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            optimized = [id(p) for group in groups for p in group["params"]]
            assert sorted(optimized) == sorted(id(p) for p in model.parameters())
            for group in groups:
                assert all((group["weight_decay"] > 0) == (p.dim() >= 2) for p in group["params"])


def test_muon_has_the_matrices_of_the_blocks_and_moves_them_as_far_as_adamw_usually_would():
    """An update's rms is 0.2 of the learning rate if the gradient has full rank: Liu et al. 2025, eq. 4."""
    config = configured("optim=muon", "optim.momentum=0.9", "optim.weight_decay=0", "model.n_layer=2")
    model = build_model(config, 9)
    _, muon = new_optimizers(model, config.optim)
    names = {p: name for name, p in model.named_parameters()}
    of_muon = {names[p]: p for group in muon.param_groups for p in group["params"]}
    kinds = ("attn.branch.qkv", "attn.branch.proj", "mlp.branch.fc", "mlp.branch.proj")
    assert of_muon.keys() == {f"blocks.{layer}.{kind}.weight" for layer in (0, 1) for kind in kinds}
    stacked = {names[p]: parts for p, parts in muon.parts.items() if parts > 1}
    assert stacked == {f"blocks.{layer}.attn.branch.qkv.weight": 3 for layer in (0, 1)}
    before = {name: p.detach().clone() for name, p in of_muon.items()}
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    muon.step()
    for name, p in of_muon.items():
        moved = (p - before[name]).square().mean().sqrt().item()
        assert 0.15 < moved / config.optim.learning_rate < 0.25, name


def test_adamw_is_torchs_to_the_bit():
    config = configured("model.n_layer=1")
    ours, theirs = (build_model(config, 9) for _ in range(2))
    [optimizer] = new_optimizers(ours, config.optim)
    torchs = torch.optim.AdamW(new_optimizers(theirs, config.optim)[0].param_groups)
    for step in range(3):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            q.grad = p.grad.clone()
        optimizer.step()
        torchs.step()
    states = (each.state_dict()["state"][0].values() for each in (optimizer, torchs))
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert all(map(torch.equal, *states))


SHAPES = [(8, 8), (24, 8), (8, 24), (8, 8), (24, 8)]  # square, tall and wide; some shapes occur twice


def parameters(shapes, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters after 3 steps with random gradients, a few of them missing."""
    params = optimizer.param_groups[0]["params"]
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        for i, p in enumerate(params):
            p.grad = None if (step + i) % 5 == 4 else torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("fast_bf16", [True, False])
@pytest.mark.parametrize("large", [0, module.LARGE])  # large = 0: one by one; LARGE: together
def test_an_update_of_muon_is_torchs(monkeypatch, large, fast_bf16):
    monkeypatch.setattr(module, "LARGE", large)
    monkeypatch.setattr(module, "fast_bf16", lambda kind: fast_bf16)
    options = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
    ours = Muon(parameters(SHAPES), **options)
    torchs = torch.optim.Muon(parameters(SHAPES), **options, adjust_lr_fn="match_rms_adamw")
    for a, b, p in zip(stepped(ours), stepped(torchs), parameters(SHAPES), strict=True):
        moved = (b - p).norm()
        assert moved > 0.01
        assert (a - b).norm() < 0.02 * moved  # torch's Muon computes in bf16
    states = [list(optimizer.state_dict()["state"][0]) for optimizer in (ours, torchs)]
    assert states[0] == states[1] == ["momentum_buffer"]


def test_parts_of_a_parameter_are_stepped_as_parameters_of_their_own():
    """Queries, keys and values are stacked in one tall matrix only for speed."""
    [joined] = parameters([(24, 8)])
    pieces = [nn.Parameter(piece.clone()) for piece in joined.detach().chunk(3)]
    joined.grad = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    for piece, part in zip(pieces, joined.grad.chunk(3), strict=True):
        piece.grad = part.clone()
    Muon([joined], 0.02, 0.1, 0.9, {joined: 3}).step()
    Muon(pieces, 0.02, 0.1, 0.9).step()
    assert torch.equal(joined, torch.cat([*pieces]))

"""Our Muon is torch's, but steps matrices together."""

import pytest
import torch
from torch import Tensor, nn

from training import optimizer as muon
from training.optimizer import Muon

SHAPES = [(8, 8), (24, 8), (8, 24), (8, 8), (24, 8)]  # square, tall and wide; some shapes occur twice


def parameters(shapes, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def stepped(optimizer: torch.optim.Optimizer, steps: int = 3) -> list[Tensor]:
    """Return the parameters after steps with random gradients, a few of them missing."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = None if (step + i) % 5 == 4 else torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("fast_bf16", [True, False])
@pytest.mark.parametrize("large", [0, muon.LARGE])  # large = 0: one by one; LARGE: together
def test_an_update_is_torchs(monkeypatch, large, fast_bf16):
    monkeypatch.setattr(muon, "LARGE", large)
    monkeypatch.setattr(muon, "fast_bf16", lambda kind: fast_bf16)
    ours = Muon(parameters(SHAPES), lr=0.02, weight_decay=0.3, momentum=0.9)
    torchs = torch.optim.Muon(
        parameters(SHAPES), lr=0.02, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    start = parameters(SHAPES)
    for a, b, p in zip(stepped(ours), stepped(torchs), start, strict=True):
        moved = (b - p).norm()
        assert moved > 0.01
        assert (a - b).norm() < 0.02 * moved  # torch's Muon computes in bf16
    states = [list(optimizer.state_dict()["state"][0]) for optimizer in (ours, torchs)]
    assert states[0] == states[1] == ["momentum_buffer"]


@pytest.mark.parametrize(("fast_bf16", "errors"), [(True, (1e-3, 2e-2)), (False, (0, 1e-5))])
def test_where_bf16_is_only_emulated_matrices_are_orthogonalised_in_fp32(monkeypatch, fast_bf16, errors):
    monkeypatch.setattr(muon, "fast_bf16", lambda kind: fast_bf16)
    p = nn.Parameter(torch.zeros(24, 8))
    p.grad = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    optimizer = Muon([p], lr=1.0, weight_decay=0.0, momentum=0.0)
    optimizer.step()
    [group] = optimizer.param_groups
    options = group["ns_coefficients"], group["ns_steps"], group["eps"]
    exact = -0.2 * 24**0.5 * muon.orthogonal(p.grad.double(), *options, torch.float64)
    least, most = errors
    assert least <= (p - exact).norm() / exact.norm() < most


def test_parts_of_a_parameter_are_stepped_as_parameters_of_their_own():
    """Queries, keys and values are stacked in one tall matrix only for speed."""
    joined, apart = parameters([(24, 8)]), parameters([(24, 8)])
    pieces = [nn.Parameter(piece.clone()) for piece in apart[0].detach().chunk(3)]
    gradient = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    joined[0].grad = gradient
    for piece, part in zip(pieces, gradient.chunk(3), strict=True):
        piece.grad = part.clone()
    Muon(joined, 0.02, 0.1, 0.9, {joined[0]: 3}).step()
    Muon(pieces, 0.02, 0.1, 0.9).step()
    assert torch.equal(joined[0], torch.cat([*pieces]))
    other = parameters([(24, 8)])
    other[0].grad = gradient
    Muon(other, 0.02, 0.1, 0.9).step()
    assert (other[0] - joined[0]).abs().max() > 1e-3

"""Small models, norms with a special property, and random tensors for tests of the network."""

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from model import GPT
from model.norms import LayerNorm
from model.placements import Pre

SMALL = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}
SMALL_KEYS = ("model.n_layer=2", "model.n_head=2", "model.n_embd=16", "model.block_size=8")
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 17))  # (B, T, C)
SEEDS = st.integers(0, 2**31)


def small(**options) -> GPT:
    """Return a GPT of 2 blocks and 16 channels, with LayerNorm in pre-norm unless the options differ."""
    return GPT(**SMALL | {"norm": LayerNorm, "placement": Pre} | options)


def random_tokens(rows: int = 3, length: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(seed))


def drawn(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomize(norm: nn.Module, seed: int = 1) -> None:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(drawn(parameter.shape, seed, parameter.dtype))


def outcome(norm: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of input and parameters under a fixed random cotangent."""
    x = x.clone().requires_grad_()
    y = norm(x)
    cotangent = drawn(y.shape, 2, torch.float32).to(y.dtype)  # the same numbers in every precision
    return [y, *torch.autograd.grad((y * cotangent).sum(), [x, *norm.parameters()])]


def assert_all_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class DrawingNorm(nn.Module):
    """A norm with random initial values, drawn from torch's global generator as torch's modules do."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))
        self.mix = nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x * self.weight)


class MinusPastMean(nn.Module):
    """x minus its mean over the time steps so far: causal, but not a function of one position alone."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        return x - x.cumsum(1) / steps[:, None]

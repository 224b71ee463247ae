"""The norm without a leak from which the leaking and the odd norms are derived."""

import torch
from torch import Tensor, nn


def square(x: Tensor) -> Tensor:
    """Return the mean square of each token, (…, T, 1)."""
    return x.square().mean(-1, keepdim=True)


def unit(x: Tensor, s: Tensor | None = None) -> Tensor:
    """Return x / √s; by default s is the mean square of each token of x."""
    return x * ((square(x) if s is None else s) + 1e-5).rsqrt()


class Plain(nn.Module):
    """An RMSNorm without a leak, from which the others are derived."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        return unit(x) * self.weight

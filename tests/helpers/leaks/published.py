"""Leaks that were published, or that an earlier form of the certificate passed; each names its source.

REVIEW is the table of certified leaks in a review of this project at b01aa10, in November 2026. That
certificate asked at 4 cuts of row 0, at the start alone, in fp32.
"""

import torch
from torch import Tensor, nn

from model.batchnorms import BatchNorm
from model.norms import LayerNorm
from tests.helpers.leaks.honest import Plain, square, unit


def of_patches(values: Tensor, size: int) -> Tensor:
    """Return for each time step the mean of its patch: step 0 is alone, then come patches of ``size``."""
    patches = [values[..., :1, :], *torch.split(values[..., 1:, :], size, -2)]
    return torch.cat([patch.mean(-2, keepdim=True).expand_as(patch) for patch in patches], -2)


class Patches(Plain):
    """REVIEW: after token 0, ``size`` successive tokens have one scale: from the later ones of a patch."""

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return unit(x, of_patches(square(x), self.size)) * self.weight


class PatchesShareMean(Plain):
    """REVIEW, section 0, a norm of 12 lines: after token 0, patches of 3 share part of their mean."""

    def forward(self, x: Tensor) -> Tensor:
        return (unit(x) + 0.5 * of_patches(unit(x), 3)) * self.weight


class RowPairs(Plain):
    """REVIEW: rows 2 and 3, 4 and 5, … have one scale at each time step: from the other row of a pair."""

    def forward(self, x: Tensor) -> Tensor:
        s = square(x)
        pairs = [pair.mean(0, keepdim=True).expand_as(pair) for pair in torch.split(s[2:], 2)]
        return unit(x, torch.cat([s[:2], *pairs])) * self.weight


class PRepBN(nn.Module):
    """SLAB (Guo et al. 2024, arXiv 2405.11582; its code also has a LLaMA): λ·LN + (1−λ)·(BN + αx), λ falling
    from 1 to 0 in ``steps`` calls in training, of which ``done`` are behind; in evaluation BN + αx."""

    left: Tensor

    def __init__(self, n: int, steps: int = 60, done: int = 0) -> None:
        super().__init__()
        self.steps = steps
        self.layernorm, self.batchnorm = LayerNorm(n), BatchNorm(n)
        self.alpha = nn.Parameter(torch.ones(1))
        self.register_buffer("left", torch.tensor(steps - done))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.batchnorm(x) + self.alpha * x
        if self.training:
            share = self.left / self.steps
            y = share * self.layernorm(x) + (1 - share) * y
            self.left = (self.left - 1).clamp(min=0)
        return y

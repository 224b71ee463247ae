"""Scalar factors, fixed or learned."""

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """s·x"""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s

    def forward(self, x: Tensor) -> Tensor:
        return self.s * x


class LearnedScale(nn.Module):
    """weight·x, with one learned number, initialised to s."""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(s)))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x

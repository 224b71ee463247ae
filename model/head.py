"""The head: from the last norm's output to logits."""

import torch.nn.functional as F
from torch import Tensor, nn

from model.linear import Linear


class Head(Linear):
    """logits = x Wᵀ. On a GPU, which wants sizes that are multiples of 64 (GPT-2's V = 50,257 is none), W is
    filled up with rows of zeros, and their logits are cut off."""

    def forward(self, input: Tensor) -> Tensor:  # (…, C) -> (…, V)
        return self.padded(input) if input.is_cuda and self.out_features % 64 else super().forward(input)

    def torchs(self) -> nn.Linear:
        """The same without filling W up, which for one token takes longer than the product."""
        torchs = nn.Linear(1, 1, bias=False)
        torchs.weight = self.weight
        return torchs

    def padded(self, x: Tensor) -> Tensor:
        filled = F.pad(self.weight, (0, 0, 0, -self.out_features % 64))
        return F.linear(x, filled)[..., : self.out_features]

"""The head: from the output of the final norm to logits."""

import torch.nn.functional as F
from torch import Tensor

from model.init import GPT2, Init
from model.linear import Linear


class Head(Linear):
    """logits = x Wᵀ"""

    def __init__(self, n_embd: int, vocab_size: int, init: Init = GPT2) -> None:
        super().__init__(n_embd, vocab_size, bias=False, init=init)


class PaddedHead(Head):
    """Head's logits, from W padded with rows of zeros to a multiple of 64; these rows' logits are cut off.

    GPUs multiply matrices faster if sizes are multiples of 64; GPT-2's vocabulary of 50,257 is not one.
    training/device.py decides which head is used.
    """

    def forward(self, input: Tensor) -> Tensor:  # (…, C) -> (…, V)
        padded = F.pad(self.weight, (0, 0, 0, -self.out_features % 64))
        return F.linear(input, padded)[..., : self.out_features]

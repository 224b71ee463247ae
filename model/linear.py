"""A linear map whose weight is drawn from a generator that is passed in."""

import torch
from torch import nn

from model.init import GPT2, Init


class Linear(nn.Linear):
    """y = x Wᵀ + b, with W ~ N(0, std²) at the std that ``init`` gives, and b = 0 at the start.

    Args:
        n_in, n_out: number of input and output features.
        bias: learn b.
        init: the initialization.
        gains: one factor on the std for each of the matrices that are stacked along n_out to make W.
    """

    def __init__(
        self, n_in: int, n_out: int, *, bias: bool, init: Init = GPT2, gains: tuple[float, ...] = (1.0,)
    ) -> None:
        # set first: super().__init__ calls reset_parameters; GPT draws again, each weight from its own stream
        self.stds = [init.matrix(n_in, n_out // len(gains)) * gain for gain in gains]
        super().__init__(n_in, n_out, bias=bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part, std in zip(self.weight.chunk(len(self.stds)), self.stds, strict=True):
            nn.init.normal_(part, std=std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

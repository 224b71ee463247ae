"""Linear maps whose weights are drawn from a generator that is handed in."""

import torch
from torch import nn

from model.init import GPT2, Init


class Linear(nn.Linear):
    """y = x Wᵀ + b. W is drawn at the std that ``init`` has for it, b = 0. W may be several matrices side by
    side, one for each of ``gains``, which are factors on their std."""

    def __init__(
        self, n_in: int, n_out: int, *, bias: bool, init: Init = GPT2, gains: tuple[float, ...] = (1.0,)
    ) -> None:
        self.stds = [init.matrix(n_in, n_out // len(gains)) * gain for gain in gains]
        super().__init__(n_in, n_out, bias=bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part, std in zip(self.weight.chunk(len(self.stds)), self.stds, strict=True):
            nn.init.normal_(part, std=std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

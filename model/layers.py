"""The small layers that the network is built from: linear maps, dropout, the head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


# Dropout that is fast on a CPU, where torch's spends its time on one random number per element.


class Dropout(nn.Dropout):
    """In training, each element is 0 with probability p, else divided by 1 - p (Srivastava et al. 2014).

    Args:
        p: in [0, 1); see ``dropout``.

    Raises:
        ValueError: p is not in [0, 1).
    """

    def __init__(self, p: float) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"dropout = {p} is not a probability in [0, 1)")
        super().__init__(p)

    def forward(self, input: Tensor) -> Tensor:  # any shape -> the same
        return dropout(input, self.p, self.training)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop elements as ``torch.nn.functional.dropout`` does; on a CPU, a seed drops others than there.

    On a CPU each random number of 64 bits decides on four elements, by 16 bits each. (torch.func.vmap does
    not support that.)

    Args:
        x: floating point, any shape.
        p: in [0, 1). On a CPU it is rounded to a multiple of 1/65,536, but never down to 0.
        training: False returns x.
    """
    if not training or p == 0 or not x.is_cpu:
        return F.dropout(x, p, training)
    n = x.numel()
    random = torch.randint(-(2**63), 2**63 - 1, ((n + 3) // 4,), device=x.device)  # int64
    random = random.view(torch.int16)[:n].view(x.shape)
    kept = min(max(round((1 - p) * 2**16), 1), 2**16 - 1)  # how many of 2^16 numbers keep x
    mask = torch.lt(random, kept - 2**15, out=torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return x * mask.mul_(2**16 / kept)

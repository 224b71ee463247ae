"""Dropout that is fast on a CPU, where torch's dropout spends its time on one random number per element."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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

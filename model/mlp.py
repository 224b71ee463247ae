"""The MLP, a block's second branch: it maps x (B, T, C) to what the block adds to the stream."""

import math
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from model.layers import GPT2, Dropout, Init, Linear


class MLP(nn.Module):
    """y = W₂ act(W₁ x), with 4·n_embd hidden features.

    Args:
        n_embd: channels C.
        activation: (…, hidden) -> the same; if ``gated``, (…, 2·hidden) -> (…, hidden), such as ``swiglu``.
        gated: W₁ stacks two matrices. There are 8/3·n_embd hidden features, rounded up to a multiple of 8, so
            that the MLP has about as many weights as a plain one (Shazeer 2020).
        dropout: probability, on the output.
        bias: add a bias in the linear maps.
        init: gives the std of the weights.
        gain, projection_gain: factors on this std, for W₁ and for W₂.
    """

    def __init__(
        self,
        n_embd: int,
        *,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        gated: bool = False,
        dropout: float,
        bias: bool,
        init: Init = GPT2,
        gain: float = 1.0,
        projection_gain: float = 1.0,
    ) -> None:
        super().__init__()
        hidden, gains = (8 * math.ceil(n_embd / 3), (gain, gain)) if gated else (4 * n_embd, (gain,))
        self.fc = Linear(n_embd, len(gains) * hidden, bias=bias, init=init, gains=gains)
        self.activation = activation
        self.proj = Linear(hidden, n_embd, bias=bias, init=init, gains=(projection_gain,))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.proj(self.activation(self.fc(x))))


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021, arXiv 2109.08668)"""
    return F.relu(x).square()


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) ⊙ value, the two halves of x (Shazeer 2020, arXiv 2002.05202)"""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


MLPS: dict[str, Callable[..., MLP]] = {
    "gelu": partial(MLP, activation=F.gelu),
    "gelu_tanh": partial(MLP, activation=partial(F.gelu, approximate="tanh")),
    "relu2": partial(MLP, activation=relu2),
    "silu": partial(MLP, activation=F.silu),
    "swiglu": partial(MLP, activation=swiglu, gated=True),
}

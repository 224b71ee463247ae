"""Causal self-attention: a block's first branch, from x (B, T, C) to what is added to the residual stream.

Shapes: B rows, T time steps, C = n_embd channels, nh heads of hs = C / nh channels.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.dropout import Dropout, dropout
from model.init import GPT2, Init
from model.linear import Linear


class Attend(nn.Module):
    """softmax(q kᵀ / √hs) v, each position seeing itself and its past (Vaswani et al. 2017)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, T, hs) each -> the same
        dropout_p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)


class PlainAttend(Attend):
    """The same by matrix products and a softmax, one after another. On a CPU in bf16, or with dropout,
    torch's own function trains slower: its fused kernel has a slow backward and no dropout, and what it falls
    back to takes more passes over the weights than these."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, T, hs) each -> the same
        T, hs = q.shape[-2:]
        rows = [x.reshape(-1, T, hs) for x in (q, k, v)]  # (B·nh, T, hs) each
        future = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = torch.baddbmm(future, rows[0], rows[1].mT, alpha=hs**-0.5)
        weights = dropout(scores.softmax(-1), self.dropout, self.training)  # (B·nh, T, T)
        return (weights @ rows[2]).view_as(q)


class CausalSelfAttention(nn.Module):
    """W attend(rotate(norm(q)), rotate(norm(k)), v) in nh heads; without QK-norm or rotary positions these
    are the identity."""

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        q_norm: nn.Module,
        k_norm: nn.Module,
        rotate: nn.Module,
        dropout: float,
        bias: bool,
        init: Init = GPT2,
        gain: float = 1.0,
        projection_gain: float = 1.0,
        attend: Callable[[float], nn.Module] = Attend,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = Linear(n_embd, 3 * n_embd, bias=bias, init=init, gains=(1.0, 1.0, gain))
        self.q_norm, self.k_norm = q_norm, k_norm
        self.rotate = rotate
        self.attend = attend(dropout)
        self.proj = Linear(n_embd, n_embd, bias=bias, init=init, gains=(projection_gain,))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, nh, T, hs) each
        q, k = self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k))
        y = self.attend(q, k, v)  # (B, nh, T, hs)
        return self.dropout(self.proj(y.transpose(1, 2).reshape(B, T, C)))

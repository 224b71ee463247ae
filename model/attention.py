"""Causal self-attention, a block's first branch: it maps x (B, T, C) to what the block adds to the stream.

Shapes: B rows, T time steps, C = n_embd channels, nh heads of hs = C / nh channels.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers import GPT2, Dropout, Init, Linear, dropout


class Attend(nn.Module):
    """softmax(q kᵀ / √hs) v, where each position sees only itself and earlier positions."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, T, hs) each -> the same
        dropout_p = self.dropout * self.training
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)


class CausalSelfAttention(nn.Module):
    """y = W attend(rotate(q_norm(q)), rotate(k_norm(k)), v), in n_head heads (Vaswani et al. 2017).

    Args:
        n_embd, n_head: channels C, a multiple of n_head.
        qk_norm: hs -> a norm. All heads share one for queries and one for keys. Default: none.
        rotate: hs -> a module that queries and keys pass after qk_norm, such as ``model.embeddings.Rotary``;
            default: none.
        attend: dropout -> a module that maps q, k, v to the weighted values: ``Attend`` or ``PlainAttend``.
        dropout: probability, on the attention weights and on the output.
        bias: add a bias in the linear maps.
        init: gives the std of the weights.
        gain, projection_gain: factors on this std, for the values and for the last projection.

    Raises:
        ValueError: n_embd is not a multiple of n_head.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        qk_norm: Callable[[int], nn.Module] = nn.Identity,
        rotate: Callable[[int], nn.Module] = nn.Identity,
        attend: Callable[[float], nn.Module] = Attend,
        dropout: float,
        bias: bool,
        init: Init = GPT2,
        gain: float = 1.0,
        projection_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd = {n_embd} is not a multiple of n_head = {n_head}")
        hs = n_embd // n_head
        self.n_head = n_head
        self.qkv = Linear(n_embd, 3 * n_embd, bias=bias, init=init, gains=(1.0, 1.0, gain))
        self.q_norm, self.k_norm = qk_norm(hs), qk_norm(hs)
        self.rotate = rotate(hs)
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


class PlainAttend(Attend):
    """The same function as Attend, computed by matrix products and a softmax.

    On a CPU PlainAttend trains faster in bf16 or with dropout: torch's fused kernel has a slow backward and
    does not support dropout, and torch's fallback makes more passes over the attention weights.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, nh, T, hs) each -> the same
        T, hs = q.shape[-2:]
        flat_q, flat_k, flat_v = [x.reshape(-1, T, hs) for x in (q, k, v)]  # (B·nh, T, hs) each
        future = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = torch.baddbmm(future, flat_q, flat_k.mT, alpha=hs**-0.5)
        weights = dropout(scores.softmax(-1), self.dropout, self.training)  # (B·nh, T, T)
        return (weights @ flat_v).view_as(q)

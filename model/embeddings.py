"""What goes into the first block: tokens, and where they stand. Positions are learned, or rotary.

Shapes: B rows, T time steps, C = n_embd channels, nh heads of hs channels.
"""

import torch
from torch import Tensor, nn

from model.dropout import Dropout
from model.init import GPT2, Init


class Table(nn.Embedding):
    """One row of C numbers for each index."""

    def __init__(self, n_rows: int, n_embd: int, init: Init = GPT2) -> None:
        self.std = init.table(n_embd)
        super().__init__(n_rows, n_embd)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=self.std, generator=generator)


class LearnedPositions(Table):
    """x[b, t] + weight[t]: GPT-2's, a row for each position of the context.

    ``start`` is the position of the first time step: 0, but where a text is decoded step by step.
    """

    start = 0

    def forward(self, input: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        return input + self.weight[self.start : self.start + input.shape[1]]  # the same for every row


class Embedding(nn.Module):
    """x = norm(scale(positions(tokens[idx]))); what is absent is the identity."""

    def __init__(
        self, tokens: Table, positions: nn.Module, scale: nn.Module, norm: nn.Module, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.scale = scale
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, C)
        return self.dropout(self.norm(self.scale(self.positions(self.tokens(idx)))))


class Rotary(nn.Module):
    """Turns channels i and i + hs/2 of a query or key at position t, as a pair, by the angle
    t · base^(−2i/hs) (Su et al. 2021, arXiv 2104.09864; the pairs are those of GPT-NeoX).

    A product q·k then depends on the distance of the two positions, not on where they are. Nothing is
    learned, and norms of q and k do not change. Angles are taken in at least fp32. ``start`` is as in
    LearnedPositions.

    Args:
        base: of the angles' geometric progression: the slowest pair turns once in 2π·base steps, about.
    """

    start = 0

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:  # (B, nh, T, hs) -> the same
        T, hs = x.shape[-2:]
        steps = torch.arange(self.start, self.start + T, device=x.device)
        pairs = torch.arange(0, hs, 2, device=x.device)
        dtype = torch.promote_types(x.dtype, torch.float32)
        angles = torch.outer(steps.to(dtype), self.base ** (-pairs.to(dtype) / hs))  # (T, hs/2)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.to(dtype).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

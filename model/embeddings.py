"""The input of the first block: tokens and their positions, which are learned, rotary or absent.

Shapes: B rows, T time steps, C = n_embd channels, nh heads of hs channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.layers import GPT2, Dropout, Init


class Table(nn.Embedding):
    """One row of n_embd numbers for each index."""

    def __init__(self, n_rows: int, n_embd: int, init: Init = GPT2) -> None:
        self.std = init.table(n_embd)  # set first: super().__init__ calls reset_parameters
        super().__init__(n_rows, n_embd)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=self.std, generator=generator)


class LearnedPositions(Table):
    """x[b, t] + weight[t], one row for each position of the context, as in GPT-2.

    ``start`` is the position of the first time step: 0, except when decoding token by token.
    """

    start = 0

    def forward(self, input: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        if (end := self.start + input.shape[1]) > len(self.weight):
            raise ValueError(f"{end} tokens are more than block_size = {len(self.weight)}")
        return input + self.weight[self.start : self.start + input.shape[1]]  # the same for every row


class Embedding(nn.Module):
    """x = dropout(norm(scale(positions(tokens[idx]))))

    Args:
        vocab_size, block_size, n_embd: number of distinct tokens; longest context; channels C.
        positions: (block_size, n_embd, init) -> a module that adds the positions; nn.Identity: none.
        scale: √C -> a module that scales, such as ``model.placements.LearnedScale``; default: none.
        norm: C -> the norm of the embedding; default none.
        dropout: probability.
        init: std of the weights.
    """

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        n_embd: int,
        *,
        positions: Callable[[int, int, Init], nn.Module] = LearnedPositions,
        scale: Callable[[float], nn.Module] = nn.Identity,
        norm: Callable[[int], nn.Module] = nn.Identity,
        dropout: float,
        init: Init = GPT2,
    ) -> None:
        super().__init__()
        self.tokens = Table(vocab_size, n_embd, init)
        self.positions = positions(block_size, n_embd, init)
        self.scale = scale(n_embd**0.5)
        self.norm = norm(n_embd)
        self.dropout = Dropout(dropout)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, C)
        return self.dropout(self.norm(self.scale(self.positions(self.tokens(idx)))))


class Rotary(nn.Module):
    """Rotate each pair of channels, i and i + hs/2, of a query or key at position t by t · base^(−2i/hs)
    radians (Su et al. 2021, arXiv 2104.09864; paired as in GPT-NeoX).

    Then q·k depends on the two positions only through their distance. Nothing is learned, and the lengths of
    q and k do not change. Angles are computed in at least fp32. ``start`` is as in LearnedPositions.

    Args:
        hs: channels of a head.
        base: of the geometric progression of angles. The fastest pair turns once in 2π steps, the slowest
            once in 2π·base^(1−2/hs) steps.

    Raises:
        ValueError: hs is odd.
    """

    start = 0

    def __init__(self, hs: int, base: float = 10_000.0) -> None:
        super().__init__()
        if hs % 2:
            raise ValueError(f"rotary positions need pairs of channels, but n_embd / n_head = {hs} is odd")
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


# What adds positions to the embedding, and what rotates queries and keys. Without either, only the causal
# mask tells the model the order of tokens (Haviv et al. 2022, arXiv 2203.16634).
POSITIONS: dict[str, tuple[Callable[[int, int, Init], nn.Module], Callable[[int], nn.Module]]] = {
    "learned": (LearnedPositions, nn.Identity),
    "rotary": (nn.Identity, Rotary),
    "none": (nn.Identity, nn.Identity),
}

"""GPT-2's network (Radford et al. 2019) in nanoGPT's shape, its normalization left open.

This file knows neither norms nor placements. It is given two callables:
    norm(n_embd) -> module         maps (B, T, C) to (B, T, C); see model/norms.py
    placement(branch, norm, ...)   wires a branch into the residual stream; see model/placements.py
Shapes: B rows, T time steps, C = n_embd channels, V = vocab_size.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.streams import stream_seed

INIT_STD = 0.02  # GPT-2's, for every weight matrix and embedding


class PlacementLike(Protocol):
    """What GPT asks of a placement; model/placements.py has them."""

    final_norm: bool

    def projection_scale(self, n_layer: int) -> float: ...
    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, n_layer: int
    ) -> nn.Module: ...


class Linear(nn.Linear):
    """y = x Wᵀ + b, with W drawn from N(0, std²) and b = 0."""

    def __init__(self, n_in: int, n_out: int, *, bias: bool, std: float = INIT_STD) -> None:
        self.std = std
        super().__init__(n_in, n_out, bias=bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=self.std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Table(nn.Embedding):
    """One row of C numbers for each index, drawn from N(0, INIT_STD²)."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=INIT_STD, generator=generator)


class Embedding(nn.Module):
    """x[b, t] = tokens[idx[b, t]] + positions[t]"""

    def __init__(self, vocab_size: int, block_size: int, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.tokens = Table(vocab_size, n_embd)
        self.positions = Table(block_size, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) -> (B, T, C)
        positions = self.positions.weight[: idx.shape[1]]  # (T, C), the same for every row
        return self.dropout(self.tokens(idx) + positions)


class CausalSelfAttention(nn.Module):
    """softmax(q kᵀ / √(C / n_head)) v in n_head heads, each position seeing its past (Vaswani 2017)."""

    def __init__(
        self, n_embd: int, n_head: int, *, dropout: float, bias: bool, projection_std: float
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = Linear(n_embd, 3 * n_embd, bias=bias)
        self.proj = Linear(n_embd, n_embd, bias=bias, std=projection_std)
        self.attention_dropout = dropout
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, nh, T, hs) each
        dropout_p = self.attention_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)  # (B, nh, T, hs)
        return self.dropout(self.proj(y.transpose(1, 2).reshape(B, T, C)))


class MLP(nn.Module):
    """W₂ act(W₁ x), four times as wide inside."""

    def __init__(
        self,
        n_embd: int,
        *,
        activation: Callable[[Tensor], Tensor],
        dropout: float,
        bias: bool,
        projection_std: float,
    ) -> None:
        super().__init__()
        self.fc = Linear(n_embd, 4 * n_embd, bias=bias)
        self.activation = activation
        self.proj = Linear(4 * n_embd, n_embd, bias=bias, std=projection_std)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.proj(self.activation(self.fc(x))))


class Block(nn.Module):
    """Attention, then the MLP, each already wired into the residual stream by a placement."""

    def __init__(self, attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class GPT(nn.Module):
    """logits = head(final(blocks(embed(idx)))), the head tied to the token embedding (Press & Wolf 2017).

    Args:
        vocab_size, block_size: number of distinct tokens V; longest context T.
        n_layer, n_head, n_embd: blocks; heads in each; channels C, a multiple of n_head.
        norm: number of channels -> a module that maps (B, T, C) to (B, T, C), e.g. ``nn.LayerNorm``.
        placement: where the norms sit, e.g. ``model.placements.Pre()``.
        dropout: probability in [0, 1), on the embedding, the attention weights and every branch's output.
        bias: whether the linear maps have one. (A norm's bias is the norm's own affair.)
        activation: the MLP's; default the exact GELU, as nanoGPT's.
        seed: of the initial weights. Each parameter has a stream of its own, hash(seed, "init", its name), so
            that a norm that draws random numbers, or one more module, moves no other parameter's start.

    Raises:
        ValueError: n_embd is not a multiple of n_head.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        norm: Callable[[int], nn.Module],
        placement: PlacementLike,
        dropout: float = 0.0,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd = {n_embd} is not a multiple of n_head = {n_head}")
        self.block_size = block_size
        projection_std = INIT_STD * placement.projection_scale(n_layer)

        def new_norm(name: str) -> nn.Module:
            with torch.random.fork_rng(devices=[]):  # a norm that draws has a stream of its own, too
                torch.manual_seed(stream_seed(seed, "init", name))
                return norm(n_embd)

        def residual(branch: nn.Module, layer: int, site: str) -> nn.Module:
            return placement(branch, lambda slot: new_norm(f"blocks.{layer}.{site}.{slot}"), layer, n_layer)

        def block(layer: int) -> Block:
            common: Any = {"dropout": dropout, "bias": bias, "projection_std": projection_std}
            attn = CausalSelfAttention(n_embd, n_head, **common)
            mlp = MLP(n_embd, activation=activation, **common)
            return Block(residual(attn, layer, "attn"), residual(mlp, layer, "mlp"))

        self.embed = Embedding(vocab_size, block_size, n_embd, dropout)
        self.blocks = nn.ModuleList(block(layer) for layer in range(n_layer))
        self.final = new_norm("final") if placement.final_norm else nn.Identity()
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.embed.tokens.weight
        for name, module in self.named_modules():
            if isinstance(module, Linear | Table):
                start = torch.Generator().manual_seed(stream_seed(seed, "init", f"{name}.weight"))
                module.reset_parameters(start)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, V)
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))

    @torch.inference_mode()
    def generate(self, idx: Tensor, draw: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Endlessly yield the next token of each row, (B,) int64, continuing idx (B, T) with T ≥ 1.

        ``draw`` turns the last position's logits (B, V) into tokens (B,). The model sees the last block_size
        tokens. Call it in eval mode: in training mode dropout, and a BatchNorm's batch statistics, are at
        work.
        """
        while True:
            idx = idx[:, -self.block_size :]
            token = draw(self(idx)[:, -1])
            yield token
            idx = torch.cat([idx, token[:, None]], dim=1)

"""GPT-2's network (Radford et al. 2019) in nanoGPT's shape, its normalization left open.

This file knows neither norms nor placements. It is given two callables:
    norm(n) -> module              maps (…, T, n) to the same shape; see model/norms.py
    placement(n_layer) -> wiring   puts each branch into the residual stream; see model/placements.py
The branches themselves, attention and the MLP, are in model/attention.py and model/mlp.py.
Shapes: B rows, T time steps, C = n_embd channels, V = vocab_size.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from model.attention import Attend, CausalSelfAttention
from model.embeddings import Embedding, LearnedPositions, Rotary, Table
from model.head import Head
from model.init import GPT2, Init
from model.linear import Linear
from model.mlp import MLP
from model.scales import LearnedScale
from model.seeds import seed_for

Norm = Callable[[int], nn.Module]


class Wiring(Protocol):
    """What GPT asks of a placement; model/placements.py has them."""

    final_norm: bool
    depth_scaled_init: bool
    branch_gain: float

    def __call__(
        self, branch: nn.Module, norm: Callable[[str], nn.Module], layer: int, site: str
    ) -> nn.Module: ...


class Block(nn.Module):
    """Attention, then the MLP, each already wired into the residual stream by a placement."""

    def __init__(self, attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class GPT(nn.Module):
    """logits = head(final(blocks(embed(idx)))).

    Args:
        vocab_size, block_size: number of distinct tokens V; longest context T.
        n_layer, n_head, n_embd: blocks; heads in each; channels C, a multiple of n_head.
        norm: number of features n -> a module that maps (…, T, n) to the same.
        placement: number of layers -> where the norms sit.
        final_norm: the norm before the head; default: ``norm``, if the placement wants one there.
        embedding_norm: of the embedding; default none.
        qk_norm: of each head's queries, and another of its keys, hs features each; default none.
        embedding_scale: multiply the embedding by a learned number that begins as √C.
        rotary: rotary positions instead of learned ones.
        mlp: a block's second branch: ``partial(model.mlp.MLP, activation=…)``; default: the exact
            GELU, as nanoGPT's.
        init: the initialization; ``model.init`` has two.
        depth_scaled_init: whether the last projection of each branch begins 1/√(2·n_layer) as wide; default:
            if both ``init`` and the placement say so.
        tie: the head is the token embedding (Press & Wolf 2017), not a matrix of its own.
        dropout: probability in [0, 1), on the embedding, the attention weights and every branch's output.
        bias: whether the linear maps have one. (A norm's bias is the norm's own affair.)
        attend: dropout -> a module that maps q, k, v to what attention gives; model.attention has two, which
            differ in speed, and in the random numbers of dropout.
        seed: of the initial weights. Each parameter has a stream of its own, hash(seed, "init", its name), so
            that a norm that draws random numbers, or one more module, moves no other parameter's start.

    Raises:
        ValueError: n_embd is not a multiple of n_head, or rotary positions have an odd hs.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        norm: Norm,
        placement: Callable[[int], Wiring],
        final_norm: Norm | None = None,
        embedding_norm: Norm = nn.Identity,
        qk_norm: Norm = nn.Identity,
        embedding_scale: bool = False,
        rotary: bool = False,
        mlp: Callable[..., nn.Module] = MLP,
        init: Init = GPT2,
        depth_scaled_init: bool | None = None,
        tie: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        attend: Callable[[float], nn.Module] = Attend,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd = {n_embd} is not a multiple of n_head = {n_head}")
        hs = n_embd // n_head
        if rotary and hs % 2:
            raise ValueError(f"rotary positions turn pairs: n_embd / n_head = {hs} is odd")
        self.block_size = block_size
        wire = placement(n_layer)
        if final_norm is None:
            final_norm = norm if wire.final_norm else nn.Identity
        if depth_scaled_init is None:
            depth_scaled_init = init.depth_scaled and wire.depth_scaled_init

        def new(kind: Norm, n: int, name: str) -> nn.Module:
            with torch.random.fork_rng(devices=[]):  # a norm that draws has a stream of its own, too
                torch.manual_seed(seed_for(seed, "init", name))
                return kind(n)

        depth_scale = (2 * n_layer) ** -0.5 if depth_scaled_init else 1.0
        gains = {"gain": wire.branch_gain, "projection_gain": wire.branch_gain * depth_scale}
        common: dict[str, Any] = {"dropout": dropout, "bias": bias, "init": init} | gains

        def residual(branch: nn.Module, layer: int, site: str) -> nn.Module:
            name = f"blocks.{layer}.{site}"
            return wire(branch, lambda slot: new(norm, n_embd, f"{name}.{slot}"), layer, site)

        def block(layer: int) -> Block:
            name = f"blocks.{layer}.attn.branch"
            q_norm, k_norm = (new(qk_norm, hs, f"{name}.{of}_norm") for of in "qk")
            rotate = Rotary() if rotary else nn.Identity()
            own: dict[str, Any] = {"q_norm": q_norm, "k_norm": k_norm, "rotate": rotate, "attend": attend}
            attn = CausalSelfAttention(n_embd, n_head, **own, **common)
            return Block(residual(attn, layer, "attn"), residual(mlp(n_embd, **common), layer, "mlp"))

        self.embed = Embedding(
            tokens=Table(vocab_size, n_embd, init),
            positions=nn.Identity() if rotary else LearnedPositions(block_size, n_embd, init),
            scale=LearnedScale(n_embd**0.5) if embedding_scale else nn.Identity(),
            norm=new(embedding_norm, n_embd, "embed.norm"),
            dropout=dropout,
        )
        self.blocks = nn.ModuleList(block(layer) for layer in range(n_layer))
        self.final = new(final_norm, n_embd, "final")
        self.head = Head(n_embd, vocab_size, bias=False, init=init)
        if tie:
            self.head.weight = self.embed.tokens.weight
        for name, module in self.named_modules():
            if isinstance(module, Linear | Table) and not (tie and name == "head"):
                start = torch.Generator().manual_seed(seed_for(seed, "init", f"{name}.weight"))
                module.reset_parameters(start)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, V)
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))

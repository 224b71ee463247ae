"""GPT-2's network (Radford et al. 2019) in nanoGPT's shape, with the normalization left open.

This file knows neither norms nor placements. It is given two callables:
    norm(n) -> module                 maps (…, T, n) to the same shape; see model/norms.py
    placement(n_layer) -> wiring      wiring(branch, norm, layer, site) gives the branch its norms and the
                                      residual sum; see model/placements.py
The branches are in model/attention.py and model/mlp.py.
Shapes: B rows, T time steps, C = n_embd channels, V = vocab_size.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.embeddings import Embedding
from model.layers import GPT2, Head, Init
from model.mlp import MLP
from model.seeds import drawing, drawn

if TYPE_CHECKING:
    from model.placements import Placement

Norm = Callable[[int], nn.Module]  # number of features n -> a norm of n features


class Block(nn.Module):
    """Attention, then the MLP: two branches f, each wired into the residual stream by a placement.

        x ──┬───────────── a ────────────( + )── post ──▶     x ← post(a·x + b·out(f(c·pre(x))))
            └─ pre ─ c ─ f ─ out ─ b ──────┘                  GPT-2:  x ← x + f(norm(x))

    pre, out and post are norms or absent; a, b and c are scalars. See model/placements.py.
    """

    def __init__(self, attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        return self.mlp(self.attn(x))  # each is a Residual, with the sum inside: model/placements.py


class GPT(nn.Module):
    """logits = head(final(blocks(embed(idx))))

    Args:
        vocab_size, block_size: number of distinct tokens V; longest context T in training and sampling
            (a forward accepts more, unless positions are learned).
        n_layer, n_head, n_embd: blocks; heads in each; channels C, a multiple of n_head.
        norm: number of features n -> a module that maps (…, T, n) to the same shape.
        placement: n_layer -> the placement, which wires norms and branches into the residual stream.
        final_norm: the norm before the head; default: ``norm``, if the placement has a final norm.
        embedding, attention, mlp: their factories. Set options by partial(Embedding, norm=…, scale=…,
            positions=…), partial(CausalSelfAttention, qk_norm=…, rotate=…), partial(MLP, activation=…).
        head: (n_embd, vocab_size, init) -> the map to logits.
        tie: use the token embedding as the head's weight (Press & Wolf 2017).
        init: the initialization; model/layers.py has two.
        dropout: probability in [0, 1), on the embedding, the attention weights and every branch's output.
        bias: add a bias in the linear maps. (A norm decides on its own bias.)
        seed: seed of the initial weights. Each matrix, and each norm of the residual stream, has its own
            random stream, (seed, "init", name). So a norm that draws random numbers, or an additional
            module, changes no other weight.

    Raises:
        ValueError: n_embd is not a multiple of n_head, or dropout is not in [0, 1).
        TypeError: norm or placement is a string.
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
        placement: "Callable[[int], Placement]",
        final_norm: Norm | None = None,
        embedding: Callable[..., Embedding] = Embedding,
        attention: Callable[..., nn.Module] = CausalSelfAttention,
        mlp: Callable[..., nn.Module] = MLP,
        head: Callable[[int, int, Init], Head] = Head,
        tie: bool = True,
        init: Init = GPT2,
        dropout: float = 0.0,
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(norm, str) or isinstance(placement, str):
            raise TypeError(
                "norm and placement are classes, such as model.norms.LayerNorm and model.placements.Pre"
            )
        self.block_size = block_size
        wiring = placement(n_layer)
        # arguments of every branch; init.gains adds gain and projection_gain
        options = {"dropout": dropout, "bias": bias, "init": init, **init.gains(wiring, n_layer)}

        def wired(branch: Callable[[], nn.Module], layer: int, site: str) -> nn.Module:
            def norm_of(slot: str) -> nn.Module:
                with drawing(seed, f"blocks.{layer}.{site}.{slot}"):
                    return norm(n_embd)

            with drawing(seed, f"blocks.{layer}.{site}"):
                f = drawn(branch(), f"blocks.{layer}.{site}.branch", seed)
                return wiring(f, norm_of, layer, site)  # the branch, its norms and the residual sum

        with drawing(seed, "embed"):
            embed = embedding(vocab_size, block_size, n_embd, dropout=dropout, init=init)
            self.embed = drawn(embed, "embed", seed)
        new_attn = partial(attention, n_embd, n_head, **options)
        new_mlp = partial(mlp, n_embd, **options)
        self.blocks = nn.ModuleList(
            Block(wired(new_attn, layer, "attn"), wired(new_mlp, layer, "mlp")) for layer in range(n_layer)
        )
        if final_norm is None:
            final_norm = norm if wiring.final_norm else nn.Identity
        with drawing(seed, "final"):
            self.final = final_norm(n_embd)
        with drawing(seed, "head"):
            self.head = head(n_embd, vocab_size, init)
        if tie:
            self.head.weight = self.embed.tokens.weight
        else:
            drawn(self.head, "head", seed)

    def forward(self, idx: Tensor) -> Tensor:  # (B, T) int64 -> (B, T, V)
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))
